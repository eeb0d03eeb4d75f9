"""Lock bytes held for the length of a `with` block: the native half of locks.py.

CPython runs signal handlers between bytecodes: when a call has returned, and before the first bytecode of a Python
function, `__exit__` included. If a handler raises there (Ctrl-C does), a byte that was just taken, or is about to be
released, stays held for as long as the process lives, and every other process waits for it. So bytes are taken and
released by native code: between `__enter__` here and the block of its `with` statement, and between the block and
`__exit__`, no handler runs; inside of these two, handlers run only where nothing is held.
"""

cdef enum:
    # between two looks at a byte that another process holds and does not wake us for
    POLL_INTERVAL_NS = 1000000              
    SLEEP_NS = 20000000             # at most so long in one piece, where the holder wakes us
    QUEUE_NS = 500000000            # the same in the queue: a process that wakes by itself sleeps again behind all others
    SHOW_NS = 100000000             # a wait that takes longer is shown to others (see locks.WAITING)
    IN_A_ROW = 128                  # so often the last holder may take the byte again before it queues up
    # after this long, the first in the queue takes the byte as soon as it is free
    ROW_NS = 5000000              
    ALL_BITS = 0xffffffff

cdef int64_t WAIT_NS = <int64_t>1 << 61     # forever
cdef int64_t WAITING_AT = <int64_t>1 << 62
cdef int64_t first_interval_ns = POLL_INTERVAL_NS
WAITING = WAITING_AT


def set_first_interval(int64_t ns=POLL_INTERVAL_NS):
    """Set how long the first in a queue sleeps at most. For tests, which wait for the wake-up alone."""
    global first_interval_ns
    first_interval_ns = ns


cdef int interval() except -1:
    """Sleep a moment, or until a signal comes; then run its handler, which may raise."""
    cdef uint32_t word = 0
    with nogil:
        os_futex_wait(&word, 0, 1, klamm_monotonic_ns() + POLL_INTERVAL_NS)
    PyErr_CheckSignals()
    return 0


cdef class ByteMutex:
    """Keeps the threads of this process apart that want one lock byte: an OFD lock does not.

    With the address of the byte's KlammLockNote in `heads`, which `owner` keeps mapped, the process records there that
    it holds the byte, and sleeps there while it waits.
    """
    cdef KlammMutex mutex
    cdef int in_a_row               # times the byte was taken without queueing; under the mutex
    cdef unsigned long thread       # that holds the byte; 0: none
    cdef KlammLockNote *note
    cdef uint32_t identity
    cdef object owner

    @property
    def holding_thread(self):
        """The thread of this process that holds the byte; None if there is none."""
        return self.thread or None

    def __cinit__(self, owner=None, uint64_t address=0):
        klamm_mutex_init(&self.mutex, NULL)
        self.owner, self.note = owner, <KlammLockNote *><uintptr_t>address
        self.identity = klamm_identity() if address else 0


cdef class Hold:
    """One byte of a LockFile, held alone for the length of a `with` block. See LockFile.hold."""
    cdef object file, what
    cdef ByteMutex mutex
    cdef int64_t byte, queue, timeout_ms, began
    cdef int fd
    cdef bint held

    def __cinit__(self, file, ByteMutex mutex not None, int64_t byte, int64_t timeout_ms, int64_t queue, what):
        """Prepare to hold a byte. `timeout_ms` and `queue`: -1 for none."""
        self.file, self.mutex, self.byte, self.timeout_ms, self.queue = file, mutex, byte, timeout_ms, queue
        self.what = what

    def __enter__(self):
        assert not self.held
        self.began = 0
        self.lock_mutex()
        try:
            self.fd = self.file.fd
            self.lock_byte()
        except BaseException:
            klamm_mutex_unlock(&self.mutex.mutex)
            raise
        if self.mutex.note != NULL:
            klamm_note_holder(&self.mutex.note.holder, self.mutex.identity)
        self.mutex.thread = PyThread_get_thread_ident()
        self.held = True

    def __exit__(self, *_):
        cdef int error = 0
        if not self.held:
            return
        self.held = False
        self.mutex.thread = 0
        if self.fd == self.file.fd and self.release():  # else a forked child has closed it
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
        """Take the byte, in the queue if there is one. Called with the mutex held."""
        cdef KlammLockNote *queue_note = NULL
        if self.queue < 0:
            self.await_byte(self.byte, self.mutex.note)
            return 0
        self.mutex.in_a_row += 1
        if self.mutex.in_a_row <= IN_A_ROW and self.try_lock(self.byte):
            return 0
        self.mutex.in_a_row = 0
        if self.mutex.note != NULL:
            queue_note = self.mutex.note + (self.queue - self.byte)
        if not self.await_byte(self.queue, queue_note):
            return 0
        try:
            self.await_byte(self.byte, self.mutex.note)
        finally:
            if self.fd == self.file.fd:
                self.unlock(self.queue, queue_note)
        return 0

    cdef bint await_byte(self, int64_t byte, KlammLockNote *note) except -1:
        """Wait for a byte, and take it. False: the queue did not move, and the byte that it is for was free. So a
        process that is stopped in the queue delays others for a moment only.
        """
        cdef int error
        cdef bint shown = False
        cdef int64_t sleep_ns, row_end_ns, looked_ns
        if self.try_lock(byte):
            return True
        looked_ns = klamm_monotonic_ns()
        row_end_ns = looked_ns + max(<int64_t>ROW_NS, first_interval_ns)
        try:
            while True:
                sleep_ns = self.check_deadline()
                if note == NULL:
                    interval()
                    if self.try_lock(byte):
                        return True
                else:
                    if self.queue < 0:
                        sleep_ns = min(sleep_ns, <int64_t>SLEEP_NS)
                    elif byte == self.queue:
                        sleep_ns = min(sleep_ns, <int64_t>(QUEUE_NS if shown else SHOW_NS))
                    else:
                        sleep_ns = min(sleep_ns, first_interval_ns)
                    with nogil:
                        if self.queue >= 0 and byte != self.queue:
                            error = os_lock_after_row(self.fd, byte, note, sleep_ns, row_end_ns)
                        else:
                            error = os_lock_or_sleep(self.fd, byte, note, sleep_ns)
                    if error == 0:
                        return True
                    if error not in (-EAGAIN, -EINTR):
                        raise OSError(-error, _std.strerror(-error), self.file.path)
                    PyErr_CheckSignals()
                if byte == self.queue and klamm_monotonic_ns() - looked_ns >= SHOW_NS:
                    if self.try_lock(self.byte):
                        return False
                    looked_ns = klamm_monotonic_ns()
                if not shown and klamm_monotonic_ns() - self.began >= SHOW_NS:
                    shown = True
                    os_lock(self.fd, WAITING_AT + byte, F_RDLCK, 0)
        finally:
            if shown and self.fd == self.file.fd:
                os_lock(self.fd, WAITING_AT + byte, F_UNLCK, 0)

    cdef bint try_lock(self, int64_t byte) except -1:
        if os_lock(self.fd, byte, F_WRLCK, 0) == 0:
            return True
        if errno not in (EAGAIN, EACCES, EINTR):
            raise failed(self.file.path)
        return False

    cdef int release(self) noexcept:
        """Unlock the byte. The first in its queue is woken only when this process has used up its turns in a row."""
        if self.queue >= 0 and self.mutex.note != NULL and self.mutex.in_a_row < IN_A_ROW:
            return os_unlock_in_row(self.fd, self.byte, self.mutex.note)
        return self.unlock(self.byte, self.mutex.note)

    cdef int unlock(self, int64_t byte, KlammLockNote *note) noexcept:
        return os_lock(self.fd, byte, F_UNLCK, 0) if note == NULL else os_unlock(self.fd, byte, note)

    cdef int64_t check_deadline(self) except -1:
        """Return for how long one may wait yet."""
        cdef int64_t now = klamm_monotonic_ns()
        if self.began == 0:
            self.began = now
        if self.timeout_ms < 0:
            return WAIT_NS
        if self.timeout_ms * 1000000 <= now - self.began:
            raise self.file.busy(self.byte, self.what, self.timeout_ms)
        return self.timeout_ms * 1000000 - (now - self.began)


def take_byte(file, int64_t byte, bint shared):
    """Take a byte of a LockFile for long, and record it in its `_ours`: whether it was free. See LockFile.try_hold.

    One native call under the GIL, without a point at which a signal handler runs: the byte is held if it is recorded.
    """
    cdef dict ours = file._ours
    cdef int fd = file.fd
    if fd < 0 or (not shared and ours.get(byte, False)):
        return False
    known = ours.get(byte)
    ours[byte] = not shared             # before the lock: it may raise MemoryError
    if os_lock(fd, byte, F_RDLCK if shared else F_WRLCK, 0) == 0:
        return True
    if known is None:
        del ours[byte]
    else:
        ours[byte] = known
    if errno not in (EAGAIN, EACCES):
        raise failed(file.path)
    return False


def drop_byte(file, int64_t byte):
    """Release what `take_byte` took. Nothing is done after the file was closed, or in a forked child."""
    cdef dict ours = file._ours
    cdef int fd = file.fd
    ours.pop(byte, None)
    if fd >= 0 and os_lock(fd, byte, F_UNLCK, 0):
        raise failed(file.path)


def close_locks(file):
    """Close a LockFile: all of its bytes are free then."""
    cdef int fd = file.fd
    (<dict>file._ours).clear()
    file.fd = -1
    if fd >= 0:
        _std.close(fd)


cdef class SharedAgain:
    """Bytes of LockFiles, [(file, byte)], which this process shares again at the end of a `with` block, however that
    ends; in it they may be taken exclusively.
    """
    cdef list held

    def __cinit__(self, held):
        self.held = list(held)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for file, byte in self.held:
            if not take_byte(file, byte, True):
                raise file.busy(byte, None, 0)


cdef class HeldBytes:
    """Bytes of a LockFile that one owner holds for long, by a key of its own: {key: value}, in the order they were
    taken.

    A byte is taken and recorded here in one native call, so an interrupt leaves it free, or held and known. When the
    owner is dropped, whatever it still holds is released: also if its constructor was interrupted.
    """
    cdef object file
    cdef dict values, numbers

    def __cinit__(self, file):
        self.file, self.values, self.numbers = file, {}, {}

    def take(self, key, int64_t byte, value=None):
        """Take `byte` alone, and let `key` have `value`. False if it is taken, be it by this process."""
        if key in self.values:
            raise ValueError(f"{key!r} is held already")
        self.values[key], self.numbers[key] = value, byte
        if take_byte(self.file, byte, False):
            return True
        del self.values[key], self.numbers[key]
        return False

    def release(self, key):
        """Release the byte of `key`; nothing if there is none."""
        byte = self.numbers.pop(key, None)
        self.values.pop(key, None)
        if byte is not None:
            drop_byte(self.file, byte)

    def release_all(self):
        for key in list(self.numbers):
            self.release(key)

    def get(self, key, default=None):
        return self.values.get(key, default)

    def items(self):
        return list(self.values.items())

    def __getitem__(self, key):
        return self.values[key]

    def __contains__(self, key):
        return key in self.values

    def __iter__(self):
        return iter(list(self.values))

    def __len__(self):
        return len(self.values)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release_all()

    def __del__(self):
        self.release_all()


cdef class TimedLock:
    """A lock between threads, held for the length of a `with` block if it was free in time: `as` whether it is held.

    `timeout`: for how many seconds to wait; 0: not at all; None: without limit. In Python, an interrupt may come
    between `acquire` and the `try` that follows it.
    """
    cdef object lock, timeout
    cdef bint held

    def __cinit__(self, lock, timeout=None):
        self.lock, self.timeout = lock, timeout

    def __enter__(self):
        if self.timeout is None:
            self.held = self.lock.acquire()
        elif self.timeout <= 0:
            self.held = self.lock.acquire(False)
        else:
            self.held = self.lock.acquire(True, self.timeout)
        return self.held

    def __exit__(self, *_):
        if self.held:
            self.held = False
            self.lock.release()


cdef class Mutexes:
    """Several in-process locks, held for the length of a `with` block: taken in order, released in any case.

    contextlib.ExitStack does that in Python, where an interrupt may come between a lock and the record of it.
    """
    cdef list locks
    cdef int count

    def __cinit__(self, locks):
        self.locks = list(locks)

    def __enter__(self):
        try:
            for lock in self.locks:
                lock.acquire()
                self.count += 1
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        while self.count:
            self.count -= 1
            self.locks[self.count].release()


cdef bint sleep_on(Monitor monitor, uint32_t *word, timeout) except -1:
    """Release the mutex until `word` changes, or for `timeout` seconds; take it again, also if a handler raises."""
    cdef uint32_t value = word[0]
    cdef int64_t until = klamm_monotonic_ns() + (WAIT_NS if timeout is None else <int64_t>(timeout * 1e9))
    klamm_mutex_unlock(&monitor.mutex)
    try:
        while word[0] == value and klamm_monotonic_ns() < until:
            with nogil:
                os_futex_wait(word, value, ALL_BITS, until)
            PyErr_CheckSignals()
    finally:
        with nogil:
            while klamm_mutex_lock(&monitor.mutex, 1):
                pass
    return word[0] != value


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
        return sleep_on(self, &self.word, timeout)

    def notify_all(self):
        """Wake all that wait. Under the mutex."""
        klamm_fetch_add(&self.word, 1)
        os_futex_wake(&self.word, ALL_BITS)


cdef class PriorityMutex:
    """A mutex for one thread that takes it again and again, and for others that must not starve.

    That thread says `with mutex:`, and lets those go first that say `with mutex.urgent(...)`.
    """
    cdef KlammMutex mutex
    cdef int asking                 # threads that wait in `urgent`; under the GIL
    cdef unsigned long owner

    def __cinit__(self):
        klamm_mutex_init(&self.mutex, NULL)

    @property
    def is_mine(self):
        """Whether this thread holds it."""
        return self.owner == PyThread_get_thread_ident()

    def __enter__(self):
        cdef int error
        while self.asking:
            interval()
        error = klamm_mutex_lock(&self.mutex, 0)
        while error:
            with nogil:
                error = klamm_mutex_lock(&self.mutex, 1)
            if error:
                PyErr_CheckSignals()
        self.owner = PyThread_get_thread_ident()

    def __exit__(self, *_):
        self.owner = 0
        klamm_mutex_unlock(&self.mutex)

    def urgent(self, timeout_s, on_wait, busy):
        """Hold it for the length of a `with` block.

        `on_wait` is called if another thread holds it, to ask that thread for it. If it is not free in time, the
        exception that `busy` returns is raised.
        """
        return UrgentHold(self, timeout_s, on_wait, busy)


cdef class Inside:
    """Counts how often threads are inside its `with` block; an interrupt leaves no wrong count."""
    cdef dict depths                # by thread

    def __cinit__(self):
        self.depths = {}

    @property
    def is_mine(self):
        """Whether this thread is inside."""
        return PyThread_get_thread_ident() in self.depths

    def __enter__(self):
        cdef object me = PyThread_get_thread_ident()
        self.depths[me] = self.depths.get(me, 0) + 1

    def __exit__(self, *_):
        cdef object me = PyThread_get_thread_ident()
        self.depths[me] -= 1
        if not self.depths[me]:
            del self.depths[me]


cdef class UrgentHold:
    """See PriorityMutex.urgent."""
    cdef PriorityMutex mutex
    cdef double timeout_s
    cdef object on_wait, busy

    def __cinit__(self, PriorityMutex mutex not None, double timeout_s, on_wait, busy):
        self.mutex, self.timeout_s, self.on_wait, self.busy = mutex, timeout_s, on_wait, busy

    def __enter__(self):
        if klamm_mutex_lock(&self.mutex.mutex, 0):
            self.mutex.asking += 1
            try:
                self.wait()
            finally:
                self.mutex.asking -= 1
        self.mutex.owner = PyThread_get_thread_ident()

    cdef int wait(self) except -1:
        cdef int64_t until = klamm_monotonic_ns() + <int64_t>(self.timeout_s * 1e9)
        cdef int error
        self.on_wait()
        while True:
            with nogil:
                error = klamm_mutex_lock(&self.mutex.mutex, 1)
            if error == 0:
                return 0
            PyErr_CheckSignals()
            if klamm_monotonic_ns() >= until:
                raise self.busy()

    def __exit__(self, *_):
        self.mutex.owner = 0
        klamm_mutex_unlock(&self.mutex.mutex)


cdef class Condition:
    """A condition of a Monitor's threads: under one mutex there can be several, each with threads that wait for it."""
    cdef Monitor monitor
    cdef uint32_t word

    def __cinit__(self, Monitor monitor not None):
        self.monitor = monitor

    def wait(self, timeout=None):
        """Release the mutex until it is notified, or for `timeout` seconds; take it again. Look again afterwards."""
        cdef uint32_t word = self.word
        try:
            sleep_on(self.monitor, &self.word, timeout)
        except BaseException:
            if self.word != word:       # it may be this thread that was woken: let another one look
                os_futex_wake_one(&self.word)
            raise

    def notify(self, int count=1):
        """Wake one thread that waits, or all if `count` is larger. Under the mutex."""
        if count > 0:
            klamm_fetch_add(&self.word, 1)
            if count == 1:
                os_futex_wake_one(&self.word)
            else:
                os_futex_wake(&self.word, ALL_BITS)


cdef class StopFlag:
    """Tells a thread to end, and wakes it. It has no lock: a signal handler may set it, wherever it interrupts."""
    cdef uint32_t word

    def is_set(self):
        return self.word != 0

    def set(self):
        klamm_fetch_add(&self.word, 1)
        os_futex_wake(&self.word, ALL_BITS)

    def wait(self, timeout):
        """Return whether it is set, as soon as it is, or after `timeout` seconds."""
        cdef int64_t until = klamm_monotonic_ns() + <int64_t>(timeout * 1e9)
        while self.word == 0 and klamm_monotonic_ns() < until:
            with nogil:
                os_futex_wait(&self.word, 0, ALL_BITS, until)
            PyErr_CheckSignals()
        return self.word != 0
