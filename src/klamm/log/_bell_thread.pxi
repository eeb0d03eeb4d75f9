"""The bell thread: signals an event loop that heads have moved, without the GIL, by a file descriptor."""

from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc

cdef extern from "unistd.h" nogil:
    ssize_t c_write "write"(int, const void *, size_t)


cdef class BellThread:
    """Heads are watched by index. Once armed, it writes to `fd` (an eventfd) when one of them has moved, and rests
    until it is armed again: however often the bell rings meanwhile, the loop is told once.
    """
    cdef Heads heads
    cdef dict logs              # by index: they keep the mapping
    cdef list free
    cdef pthread_mutex_t mutex  # of the arrays
    cdef Slot **slots
    cdef uint64_t *known
    cdef Py_ssize_t count, room
    cdef uint32_t bits, listening, control, armed, over
    cdef int fd

    cdef void hold(self) noexcept nogil:
        while klamm_mutex_lock(&self.mutex, 1):     # it gives up now and then
            pass

    def __cinit__(self, Heads heads not None, int fd):
        self.heads, self.fd, self.logs, self.free = heads, fd, {}, []
        pthread_mutex_init(&self.mutex, NULL)

    def __dealloc__(self):
        PyMem_RawFree(self.slots)
        PyMem_RawFree(self.known)

    def __len__(self):
        return len(self.logs)

    def watch(self, Log log not None):
        """Watch this head and return its index; its changes are signalled from now on."""
        cdef Py_ssize_t index, room
        cdef void *more
        if self.free:
            index = self.free.pop()
        else:
            index = self.count
        self.hold()
        try:
            if index >= self.room:
                room = max(64, 2 * self.room)
                more = PyMem_RawRealloc(self.slots, room * sizeof(Slot *))
                if more == NULL:
                    raise MemoryError
                self.slots = <Slot **>more
                more = PyMem_RawRealloc(self.known, room * sizeof(uint64_t))
                if more == NULL:
                    raise MemoryError
                self.known, self.room = <uint64_t *>more, room
            self.slots[index] = log.w.slot
            self.known[index] = state_of(log.w.slot)
            self.count = max(self.count, index + 1)
            self.bits |= log.w.bell_bit
        finally:
            pthread_mutex_unlock(&self.mutex)
        self.logs[index] = log
        if load32(&self.armed) and log.w.bell_bit & ~load32(&self.listening):
            self.wake()             # it may sleep because nothing was watched
            self.heads.ring_all()   # it listens to too little
        return index

    def unwatch(self, *indexes):
        cdef Log log
        cdef Py_ssize_t index
        cdef uint32_t bits = 0
        for index in indexes:
            del self.logs[index]    # KeyError for what is none
            self.hold()
            self.slots[index] = NULL
            pthread_mutex_unlock(&self.mutex)
            self.free.append(index)
        for each in self.logs.values():
            log = each
            bits |= log.w.bell_bit
        self.hold()
        self.bits = bits            # at once: the thread looks at it whenever it likes
        pthread_mutex_unlock(&self.mutex)

    def arm(self):
        """Arm the signal: write to the descriptor when a head moves, or has moved already."""
        if not load32(&self.armed):
            store32(&self.armed, 1)
            self.wake()

    def moved(self):
        """Return the indexes of the heads that have moved since the last call."""
        cdef Py_ssize_t i
        cdef uint64_t now
        found = []
        for i in range(self.count):
            if self.slots[i] != NULL:
                now = state_of(self.slots[i])
                if now != self.known[i]:
                    self.known[i] = now
                    found.append(i)
        return found

    def seen(self, Py_ssize_t index):
        """Record that the loop has seen this head as it is."""
        if index not in self.logs:
            raise KeyError(index)
        self.known[index] = state_of(self.slots[index])

    def stop(self):
        store32(&self.over, 1)
        self.wake()
        self.heads.ring_all()

    cdef void wake(self) noexcept:
        fetch_add32(&self.control, 1)
        os_futex_wake(&self.control, 0xffffffffu)

    cdef bint has_moved(self) noexcept nogil:
        cdef Py_ssize_t i
        cdef bint moved = False
        self.hold()
        for i in range(self.count):
            if self.slots[i] != NULL and state_of(self.slots[i]) != self.known[i]:
                moved = True
                break
        pthread_mutex_unlock(&self.mutex)
        return moved

    def run(self):
        """Run, in a thread of its own, until `stop` is called."""
        cdef StoreSlot *store = self.heads.store()
        cdef uint64_t one = 1
        cdef uint32_t control, word
        with nogil:
            while not load32(&self.over):
                control = load32(&self.control)
                if not load32(&self.armed) or not self.bits:
                    store32(&self.listening, 0)
                    if not load32(&self.over) and (not load32(&self.armed) or not self.bits):
                        os_futex_wait(&self.control, control, 0xffffffffu, klamm_monotonic_ns() + interval_ns)
                    continue
                store32(&self.listening, self.bits)
                word = klamm_listen(&store.bell, self.listening)
                if load32(&self.over):
                    break
                if self.has_moved():
                    store32(&self.armed, 0)
                    if c_write(self.fd, &one, sizeof(one)) < 0 and errno != EAGAIN:
                        break
                    continue
                if self.listening == self.bits:
                    os_futex_wait(&store.bell.word, word, self.listening, klamm_monotonic_ns() + interval_ns)
