"""Test whether heads have moved, before each read: it takes some nanoseconds, however many heads there are."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc

cdef uint64_t NO_SEQ = <uint64_t>-1


cdef inline uint64_t state_of(Slot *slot) noexcept nogil:
    """Return a number that changes with every commit, and when the topic is deleted."""
    return load64(&slot.seq) ^ load64(&slot.flags) << 56


cdef class Watch:
    """`moved` as soon as a head has another seq, or the catalog another version, than what was last `seen`; and while
    the store is not at its path."""
    cdef list logs              # they keep the mapping
    cdef StorePath *store_path
    cdef uint64_t **words
    cdef uint64_t *known
    cdef Py_ssize_t count

    def __cinit__(self, list logs not None):
        cdef Py_ssize_t i
        cdef Log log
        self.count = len(logs) + 1
        self.logs = list(logs)
        self.words = <uint64_t **>PyMem_Malloc(self.count * sizeof(uint64_t *))
        self.known = <uint64_t *>PyMem_Malloc(self.count * sizeof(uint64_t))
        if self.words == NULL or self.known == NULL:
            raise MemoryError
        for i in range(self.count - 1):
            if self.logs[i] is None:
                raise TypeError("None is not a log")
            log = self.logs[i]
            self.words[i], self.known[i] = &log.w.slot.seq, NO_SEQ
            self.words[self.count - 1] = &log.w.store.catalog_version
            self.store_path = log.w.store_path
        if self.count == 1:
            raise ValueError("nothing to watch")
        self.known[self.count - 1] = NO_SEQ

    def __dealloc__(self):
        PyMem_Free(self.words)
        PyMem_Free(self.known)

    @property
    def moved(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            if load64(self.words[i]) != self.known[i]:
                return True
        return bool(is_replaced(self.store_path))

    def seen(self, Py_ssize_t index, uint64_t seq):
        """Record the head of `logs[index]` as it was read; behind the last one, the version of the catalog."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        self.known[index] = seq


cdef class WatchedLogs:
    """Logs at indexes, which come and go. `moved` has those whose heads have changed since it last looked: by a commit,
    or because the topic is deleted. A new one counts as moved.
    """
    cdef list logs              # by index: they keep the mapping; None where an index is free
    cdef list free
    cdef Slot **slots
    cdef uint64_t *known
    cdef bint *is_new
    cdef Py_ssize_t count, room

    def __cinit__(self):
        self.logs, self.free = [], []

    def __dealloc__(self):
        PyMem_Free(self.slots)
        PyMem_Free(self.known)
        PyMem_Free(self.is_new)

    def __len__(self):
        return self.count - len(self.free)

    cdef int grow(self) except -1:
        cdef Py_ssize_t room = max(8, 2 * self.room)
        cdef void *more = PyMem_Realloc(self.slots, room * sizeof(Slot *))
        if more == NULL:
            raise MemoryError
        self.slots = <Slot **>more
        more = PyMem_Realloc(self.known, room * sizeof(uint64_t))
        if more == NULL:
            raise MemoryError
        self.known = <uint64_t *>more
        more = PyMem_Realloc(self.is_new, room * sizeof(bint))
        if more == NULL:
            raise MemoryError
        self.is_new, self.room = <bint *>more, room
        return 0

    def add(self, Log log not None):
        """Return the index of this log."""
        cdef Py_ssize_t index
        if self.free:
            index = self.free.pop()
            self.logs[index] = log
        else:
            if self.count == self.room:
                self.grow()
            index = self.count
            self.logs.append(log)
            self.count += 1
        self.slots[index], self.is_new[index] = log.w.slot, True
        return index

    def remove(self, Py_ssize_t index):
        """Stop watching the head at this index. Raise KeyError if nothing is watched there."""
        if not 0 <= index < self.count or self.slots[index] == NULL:
            raise KeyError(index)
        self.slots[index] = NULL
        self.logs[index] = None
        self.free.append(index)

    def moved(self):
        """Return the indexes of the heads that have moved."""
        cdef Py_ssize_t i
        cdef uint64_t now
        cdef list indexes = []
        for i in range(self.count):
            if self.slots[i] != NULL:
                now = state_of(self.slots[i])
                if self.is_new[i] or now != self.known[i]:
                    self.known[i], self.is_new[i] = now, False
                    indexes.append(i)
        return indexes
