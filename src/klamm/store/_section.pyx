# cython: language_level=3
"""A SQLite transaction for the length of a `with` block: the native half of database.py.

It holds the database's mutex, and SQLite's own write lock, for which every other process waits. CPython may run a
signal handler at the first bytecode of a Python `__exit__`, and what that raises would leave both held. Here no
handler runs between the block and the end of the transaction (see disk/_hold.pxi).
"""


cdef class Section:
    cdef object database, connection, changes
    cdef bint writes, durable
    cdef readonly bint is_committed                     # true as soon as it is, whatever the block's end raises

    def __cinit__(self, database, *, bint writes, bint durable=True):
        """Prepare a section. Without `writes` it is always rolled back."""
        self.database, self.writes, self.durable = database, writes, durable

    def __enter__(self):
        self.database._mutex.acquire()
        try:
            self.connection = self.database._connect()
            if self.writes and self.durable != self.database._durable:
                self.database._set_durable(self.connection, self.durable)
            self.connection.execute("BEGIN IMMEDIATE" if self.writes else "BEGIN")
            self.changes = self.connection.total_changes
            return self.connection.execute
        except BaseException as error:
            self.end()
            raise self.database._translated(error)

    def __exit__(self, kind, error, traceback):
        if kind is None and self.writes:
            try:
                count = None
                if self.durable and self.connection.total_changes != self.changes:
                    count = self.database.count_write(self.connection.execute)
                self.connection.execute("COMMIT")
                self.is_committed = True
                self.database._generation += 1
                self.database._wrote = True
                if count is not None:
                    self.database.on_count(count)
                self.database._bound_wal(self.connection)
            except BaseException as failed:
                error = failed
        self.end()
        if error is not None:
            translated = self.database._translated(error)
            if translated is not error or kind is None:
                raise translated

    cdef int end(self) except -1:
        """Roll back what is not committed, and release the mutex, whatever happens."""
        connection, self.connection = self.connection, None
        try:
            if connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")
        except Exception:
            pass                                        # SQLite has rolled back by itself, or the file is gone
        finally:
            self.database._mutex.release()
        return 0
