"""Handlers of a fork that an interrupt neither ends nor leaves with a lock held: the native half of fork.py."""

cdef extern from "Python.h":
    int PyThreadState_SetAsyncExc(unsigned long ident, PyObject *kind)

cdef enum:
    FORK_TRIES = 50                 # of a handler that is interrupted


cdef class ForkHandlers:
    """The handlers of fork.py. What a signal handler raises in one of them neither ends it nor leaves a lock held: the
    interrupted handler is called again, and the exception is raised when the fork is over.
    """
    cdef object guard, list_owners, raised
    cdef list owners                # (owner, hooks)
    cdef dict taken                 # locks that are held until the fork is over, by their identity
    cdef bint collects              # whether garbage was collected before the fork

    def __cinit__(self, guard, list_owners):
        self.guard, self.list_owners, self.owners, self.taken, self.raised = guard, list_owners, [], {}, None

    cdef object insist(self, action, tuple arguments):
        """Call `action` until no exception comes out of it. One that always fails has an error of its own."""
        cdef int tries
        raised = self.raised
        for tries in range(FORK_TRIES):
            try:
                return action(*arguments)
            except BaseException as error:
                self.raised = self.raised or type(error)
                if tries == FORK_TRIES - 1:
                    self.raised = raised
                    PyErr_SetObject(type(error), error)
                    PyErr_WriteUnraisable(action)
        return None

    def take(self, lock):
        """Take a lock of this process until the fork is over, unless that was done."""
        key = id(lock)
        if key in self.taken:
            return
        self.taken[key] = lock              # before it is taken: this may raise MemoryError
        try:
            lock.acquire()
        except BaseException:
            del self.taken[key]
            raise

    def before(self):
        self.insist(self.take, (self.guard,))
        self.collects = gc.isenabled()
        gc.disable()
        self.owners = self.insist(self.list_owners, ()) or []
        for owner, hooks in self.owners:
            if hooks.before is not None:
                self.insist(hooks.before, (owner, self.take))

    def after_in_parent(self):
        cdef list held = list(self.taken.values())
        self.taken = {}
        for lock in held[:0:-1]:
            lock.release()
        self.end()

    def after_in_child(self):
        self.taken, self.raised = {}, None  # the owners replace their locks; what was raised is the parent's
        for owner, hooks in reversed(self.owners):
            self.insist(hooks.in_child, (owner,))
        self.end()

    cdef int end(self) except -1:
        owners, self.owners = self.owners, []
        if self.collects:
            gc.enable()
        self.guard.release()
        owners = None                       # maybe the last reference to a store, whose finalizer takes the locks
        raised, self.raised = self.raised, None
        if raised is not None:
            PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), <PyObject *>raised)
        return 0
