"""Lock bytes held for the length of a `with` block: the native half of locks.py.

CPython runs signal handlers between bytecodes: when a call has returned, and before the first bytecode of a Python
function, `__exit__` included. If a handler raises there (Ctrl-C does), a byte that was just taken, or is about to be
released, stays held for as long as the process lives, and every other process waits for it. So bytes are taken and
released by native code: between `__enter__` here and the block of its `with` statement, and between the block and
`__exit__`, no handler runs; inside of these two, handlers run only where nothing is held.
"""

cdef enum:
    NAP_NS = 1000000                # between two looks at a byte that another process holds
    IN_A_ROW = 128                  # so often the last holder may take the byte again before it queues up
    ALL_BITS = 0xffffffff

cdef int64_t WAIT_NS = <int64_t>1 << 61     # for ever


cdef int nap() except -1:
    """Sleep a moment, or until a signal comes; then run its handler, which may raise."""
    cdef uint32_t word = 0
    with nogil:
        os_futex_wait(&word, 0, 1, klamm_monotonic_ns() + NAP_NS)
    PyErr_CheckSignals()
    return 0


cdef class ByteMutex:
    """Keeps the threads of this process apart that want one lock byte: an OFD lock does not."""
    cdef KlammMutex mutex
    cdef int in_a_row               # times the byte was taken without queueing; under the mutex

    def __cinit__(self):
        klamm_mutex_init(&self.mutex, NULL)


cdef class Hold:
    """One byte of a LockFile, held alone for the length of a `with` block. See LockFile.hold."""
    cdef object file
    cdef ByteMutex mutex
    cdef int64_t byte, queue, timeout_ms, deadline
    cdef int fd
    cdef bint held

    def __cinit__(self, file, ByteMutex mutex not None, int64_t byte, int64_t timeout_ms, int64_t queue):
        """`timeout_ms` and `queue`: -1 for none."""
        self.file, self.mutex, self.byte, self.timeout_ms, self.queue = file, mutex, byte, timeout_ms, queue

    def __enter__(self):
        assert not self.held
        self.deadline = klamm_monotonic_ns() + self.timeout_ms * 1000000
        self.lock_mutex()
        try:
            self.fd = self.file.fd
            self.lock_byte()
        except BaseException:
            klamm_mutex_unlock(&self.mutex.mutex)
            raise
        self.held = True

    def __exit__(self, *_):
        cdef int error = 0
        if not self.held:
            return
        self.held = False
        if self.fd == self.file.fd and os_lock(self.fd, self.byte, F_UNLCK, 0):     # else a forked child has closed it
            error = errno
        klamm_mutex_unlock(&self.mutex.mutex)
        if error:
            raise OSError(error, _std.strerror(error), self.file.path)

    cdef int lock_mutex(self) except -1:
        cdef int error
        while True:
            error = klamm_mutex_lock(&self.mutex.mutex, 0)
            if error == 0:
                return 0
            self.check_deadline()
            with nogil:
                error = klamm_mutex_lock(&self.mutex.mutex, 1)
            if error == 0:
                return 0
            PyErr_CheckSignals()

    cdef int lock_byte(self) except -1:
        """Behind the mutex: take the byte, in the queue if there is one."""
        if self.queue < 0 and self.timeout_ms < 0:
            lock_byte(self.fd, self.byte)
            return 0
        self.mutex.in_a_row += 1
        if (self.queue < 0 or self.mutex.in_a_row <= IN_A_ROW) and self.try_lock():
            return 0
        self.mutex.in_a_row = 0
        if self.queue < 0:
            return self.await_byte()
        lock_byte(self.fd, self.queue)
        try:
            self.await_byte()
        finally:
            if self.fd == self.file.fd:
                os_lock(self.fd, self.queue, F_UNLCK, 0)
        return 0

    cdef int await_byte(self) except -1:
        while not self.try_lock():
            self.check_deadline()
            nap()
        return 0

    cdef bint try_lock(self) except -1:
        if os_lock(self.fd, self.byte, F_WRLCK, 0) == 0:
            return True
        if errno not in (EAGAIN, EACCES, EINTR):
            raise failed(self.file.path)
        return False

    cdef int check_deadline(self) except -1:
        if self.timeout_ms >= 0 and klamm_monotonic_ns() >= self.deadline:
            raise self.file.busy(self.byte)
        return 0


cdef class Monitor:
    """A mutex with a condition, for the threads of this process: `with monitor:`, and `monitor.wait()` inside of it.

    What threading.Condition does, natively: there an interrupt may leave the lock held, or raise RuntimeError because
    it is not. Waiting threads are all woken by `notify_all`; each looks again whether what it waits for is there.
    """
    cdef KlammMutex mutex
    cdef uint32_t word

    def __cinit__(self):
        klamm_mutex_init(&self.mutex, NULL)

    def acquire(self):
        cdef int error = klamm_mutex_lock(&self.mutex, 0)
        while error:
            with nogil:
                error = klamm_mutex_lock(&self.mutex, 1)
            if error:
                PyErr_CheckSignals()

    def release(self):
        klamm_mutex_unlock(&self.mutex)

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_):
        klamm_mutex_unlock(&self.mutex)

    def wait(self, timeout=None):
        """Release the mutex until `notify_all`, or for `timeout` seconds; take it again. False if the time is up."""
        cdef uint32_t word = self.word
        cdef int64_t until = klamm_monotonic_ns() + (WAIT_NS if timeout is None else <int64_t>(timeout * 1e9))
        klamm_mutex_unlock(&self.mutex)
        try:
            while self.word == word and klamm_monotonic_ns() < until:
                with nogil:
                    os_futex_wait(&self.word, word, ALL_BITS, until)
                PyErr_CheckSignals()
        finally:
            with nogil:
                while klamm_mutex_lock(&self.mutex, 1):
                    pass
        return self.word != word

    def notify_all(self):
        """Wake all that wait. Under the mutex."""
        klamm_fetch_add(&self.word, 1)
        os_futex_wake(&self.word, ALL_BITS)
