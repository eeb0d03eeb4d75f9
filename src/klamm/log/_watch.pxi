"""Whether heads have moved, for those who ask before each read: some nanoseconds, however many they are."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc

cdef uint64_t NO_SEQ = <uint64_t>-1


cdef class Watch:
    """`moved` as soon as a head has another seq, or the catalog another version, than what was last `seen`."""
    cdef list logs              # they keep the mapping
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
        return False

    def seen(self, Py_ssize_t place, uint64_t seq):
        """The head of `logs[place]`, as it was; behind the last one, the version of the catalog."""
        if not 0 <= place < self.count:
            raise IndexError(place)
        self.known[place] = seq
