"""Sync, as head.py describes it: from the lock to the unlock without the GIL, without Python objects, without
allocation.

So no exception and no signal handler comes between taking the flush lock and releasing it, and none leaves `flushing`
set: that would look like a syncer that died, and the next one would rewrite everything that is not synced yet.
"""

cdef enum:
    NAME_ROOM = 256
    BASE_DIGITS = 20

cdef int64_t WAITING = _os.WAITING


cdef int try_lock_flush(Writer *w) noexcept nogil:
    """Take the mutex, then the flush byte. Return 0, -EAGAIN while another thread or process syncs, or why not."""
    cdef int error
    cdef uint64_t word
    if klamm_mutex_lock(&w.flush_mutex, 0):
        return -EAGAIN
    word = load64(&w.slot.flushed)
    w.held_byte, w.generation = flush_byte_of(w.flush_byte, word), word & FLUSH_GENERATION
    if w.abandoned:
        error = R_ABANDONED
    elif os_lock(w.lock_fd, w.held_byte, F_WRLCK, 0):
        error = -errno
    elif load64(&w.slot.flushed) & FLUSH_GENERATION != w.generation:
        os_lock(w.lock_fd, w.held_byte, F_UNLCK, 0)         # of a syncer that was replaced since
        error = -EAGAIN
    elif is_reused(w):
        os_lock(w.lock_fd, w.held_byte, F_UNLCK, 0)
        error = R_DELETED
    else:
        klamm_note_holder(&w.slot.notes[FLUSH - 1].holder, w.identity)
        return 0
    pthread_mutex_unlock(&w.flush_mutex)
    return -EAGAIN if error == -EACCES or error == -EINTR else error


cdef void unlock_flush(Writer *w) noexcept nogil:
    """Release the byte that was taken, though another may be the flush byte by now; then wake processes that wait."""
    os_lock(w.lock_fd, w.held_byte, F_UNLCK, 0)
    pthread_mutex_unlock(&w.flush_mutex)
    wake_syncers(w)


cdef void wake_syncers(Writer *w) noexcept nogil:
    fetch_add32(&w.slot.flush_round, 1)
    os_futex_wake(&w.slot.flush_round, 0xffffffffu)


cdef int replace_syncer(Writer *w, uint64_t word) noexcept nogil:
    """Make the next generation's byte the flush byte, if nothing has happened since `word`. Called under the append
    lock.

    What the replaced process may still do is release its own byte. `flushing` stays, if it is set: its sync counts as
    failed, and what it may have dropped is written again. 0, or -EAGAIN.
    """
    cdef int64_t byte
    cdef uint64_t next = word
    cdef int error
    while True:
        next = next_generation(next)
        byte = flush_byte_of(w.flush_byte, next)
        if next == word:
            return -EAGAIN
        if os_lock(w.lock_fd, byte, F_WRLCK, 0) == 0:
            break                                           # else a process that was replaced long ago has it
    error = 0 if klamm_exchange(&w.slot.flushed, word, next) else -EAGAIN
    os_lock(w.lock_fd, byte, F_UNLCK, 0)
    wake_syncers(w)
    return error


cdef int sync_segment(Writer *w, int64_t base) noexcept nogil:
    """Sync one segment file (fdatasync). Return 0 or -errno. Called under the flush lock."""
    if w.sync_fd < 0 or w.sync_base != base:
        close_sync_file(w)
        w.sync_base = base
        w.sync_fd = open_in(w, base, b".log", O_RDWR)
    while w.sync_fd >= 0:
        if os_fdatasync(w.sync_fd) == 0:
            return 0
        if errno != EINTR:
            break
    return -errno


cdef int64_t base_in_name(const char *name) noexcept nogil:
    """Return the base offset of a segment by its file name; -1 if that is not the name of a segment."""
    cdef uint64_t base = 0
    cdef int i
    for i in range(BASE_DIGITS):
        if not c'0' <= name[i] <= (c'9' if i else c'0'):     # an int64 has 19 digits
            return -1
        base = base * 10 + <uint64_t>(name[i] - c'0')
    return <int64_t>base if base <= <uint64_t>INT64_MAX and strcmp(name + BASE_DIGITS, b".log") == 0 else -1


cdef int sync_names(Writer *w) noexcept nogil:
    """Sync the partition's directory and the two above it, whose names may be new as well. 0 or -errno."""
    cdef char path[PATH_ROOM + 32]
    cdef int level, error
    cdef size_t end = strlen(w.path)
    memcpy(path, w.path, end)
    for level in range(3):
        while end > 1 and path[end - 1] == c'/':
            end -= 1
        path[end] = 0
        error = os_sync_directory(path)
        if error:
            return error
        while end > 1 and path[end - 1] != c'/':
            end -= 1
    return 0


cdef int sync_since(Writer *w, int64_t flushed, int64_t active_base) noexcept nogil:
    """Sync every segment from the one before `flushed` to the active one, and their names. 0 or -errno."""
    cdef KlammListing listing
    cdef char name[NAME_ROOM]
    cdef int64_t base, first = -1
    cdef int error, segments = 0
    error = os_list(&listing, w.path)
    if error:
        return 0 if error == -ENOENT else error         # nothing was ever appended
    while os_list_next(&listing, name, NAME_ROOM):
        base = base_in_name(name)
        segments += base >= 0
        if first < base < flushed:                      # also one that ends there: a roll has made it shorter
            first = base
    os_list_end(&listing)
    if not segments:
        return 0
    error = os_list(&listing, w.path)
    if error:
        return error
    while error == 0 and os_list_next(&listing, name, NAME_ROOM):
        base = base_in_name(name)
        if base >= 0 and first <= base <= active_base:
            error = sync_segment(w, base)
    os_list_end(&listing)
    return error or sync_names(w)


cdef int flush_locked(Writer *w) noexcept nogil:
    """Sync the commit. Return 0, an error, or -EAGAIN: another process took over. Called under the flush lock."""
    cdef int error
    cdef Commit now
    cdef uint64_t word = load64(&w.slot.flushed)
    if word & FLUSH_GENERATION != w.generation:
        return -EAGAIN
    if load64(&w.slot.flags) & FLAG_SYNC_FAILED or word & FLUSHING:
        return R_SYNC_FAILED
    error = take_own_snapshot(w, &now)
    if error:
        return error
    if now.next_offset > FLUSHED_MAX:
        return -EOVERFLOW
    if not klamm_exchange(&w.slot.flushed, word, word | FLUSHING):
        return -EAGAIN
    word |= FLUSHING
    if flushed_offset_of(word) > now.active_base:
        error = sync_segment(w, now.active_base)
    # a segment may be new, so its name must be made durable, too
    else:                                                 
        error = sync_since(w, flushed_offset_of(word), now.active_base)
    # After an error `flushing` stays set: the kernel reports it once, so the next sync must not be believed, either.
    if error:
        return error if load64(&w.slot.flushed) == word else -EAGAIN
    if not klamm_exchange(&w.slot.flushed, word, <uint64_t>now.next_offset | w.generation):
        return -EAGAIN
    store_i64(&w.slot.flushed_check, ~now.next_offset)
    w.synced_base = now.active_base
    return 0


cdef int sync_once(Writer *w, int64_t end_offset, int64_t wait_ns) noexcept nogil:
    """Sync unless another process does; then wait for that, but not longer than `wait_ns`. 0, -EAGAIN or an error.

    Waiting processes sleep on `flush_round`, not on the lock: in a queue for the lock each would wait through the next
    one's sync, and nothing would be grouped.
    """
    cdef uint32_t current = load32(&w.slot.flush_round)     # before the try: it changes after the unlock
    cdef int error = try_lock_flush(w)
    if error == 0:
        if flushed_offset_of(load64(&w.slot.flushed)) < end_offset:
            error = flush_locked(w)
        unlock_flush(w)
    elif error == -EAGAIN:
        os_futex_wait(&w.slot.flush_round, current, 0xffffffffu, klamm_monotonic_ns() + wait_ns)
    return error


cdef class Wait:
    """A wait of this thread for a lock of `log`: interruptible, bounded, and shown to others while it lasts.

    Made when the first nap is over, so what is not contended never sees one. The bound starts again whenever the log
    moves: it is for a holder that does nothing, not for many that take turns.
    """
    cdef Log log
    cdef int lock
    cdef bint shown
    cdef int64_t began, since, asked
    cdef uint64_t seen, word

    def __cinit__(self, Log log not None, int lock):
        self.log, self.lock = log, lock
        self.began = self.since = self.asked = klamm_monotonic_ns()
        self.seen = self.progress()
        self.word = load64(&log.w.slot.flushed)

    def __dealloc__(self):
        if self.shown and self.log is not None:
            self.show(F_UNLCK)

    cdef uint64_t progress(self):
        cdef Slot *slot = self.log.w.slot
        return load64(&slot.seq) if self.lock == APPEND else load32(&slot.flush_round)

    cdef int show(self, int kind) except -1:
        """Hold a byte that says which lock this process waits for."""
        if self.log.w.lock_fd >= 0:
            os_lock(self.log.w.lock_fd, WAITING + self.log.w.first_byte + self.lock, kind, 0)
        return 0

    cdef int go_on(self) except -1:
        """Run signal handlers after a sleep; raise StoreBusy if nothing has moved for the store's busy_timeout_ms."""
        cdef int64_t now = klamm_monotonic_ns(), timeout_ms
        cdef uint64_t seen = self.progress()
        PyErr_CheckSignals()
        if seen != self.seen or (self.lock == FLUSH and load64(&self.log.w.slot.flushed) != self.word):
            self.seen, self.since, self.asked = seen, now, now
            self.word = load64(&self.log.w.slot.flushed)
        if not self.shown and now - self.began > SHOW_NS:
            self.shown = True
            self.show(F_RDLCK)
        if self.log.lock_file is not None:
            timeout_ms = self.log.lock_file.timeout_ms
            if 0 <= timeout_ms * 1000000 <= now - self.since:
                if self.lock == APPEND:
                    raise self.log.life.busy(self.log.directory, self.log.number, timeout_ms)
                raise self.log.lock_file.busy_log(self.log.directory, self.log.flush_byte, timeout_ms)
        return 0


    cdef bint is_replaceable(self) except -1:
        """Return whether the process that syncs has done nothing for so long that another should take over.

        If it is stopped, a second is enough. A process that runs is never replaced: its disk is slow, and would not be
        faster for another one. If that cannot be known from here, it is taken for stopped after a longer time.
        """
        cdef int64_t now = klamm_monotonic_ns()
        file = self.log.lock_file
        if file is None or now - self.asked < file.stopped_after_ms * 1000000:
            return False
        self.asked = now
        stopped = file.is_holder_stopped(flush_byte_of(self.log.w.flush_byte, self.word))
        if stopped is None:
            return now - self.since >= file.unknown_after_ms * 1000000
        return stopped


cdef class AppendLock:
    """The append lock of a log, for the length of a `with` block.

    A native type: CPython runs signal handlers between bytecodes, also at the first one of a Python `__exit__`, and an
    exception there would leave the lock held forever. Between these calls and the `with` statement there is none.
    """
    cdef Log log

    def __cinit__(self, Log log not None):
        self.log = log

    def __enter__(self):
        self.log.lock()

    def __exit__(self, *_):
        with nogil:
            unlock_append(&self.log.w)


cdef class FlushLock:
    """The flush lock of a log, for the length of a `with` block under its append lock; native as AppendLock is."""
    cdef Log log

    def __cinit__(self, Log log not None):
        self.log = log

    def __enter__(self):
        cdef Writer *w = &self.log.w
        cdef uint32_t current
        cdef int error
        cdef Wait wait_for = None
        while True:
            with nogil:
                current = load32(&w.slot.flush_round)
                error = try_lock_flush(w)
                if error == -EAGAIN:
                    os_futex_wait(&w.slot.flush_round, current, 0xffffffffu, klamm_monotonic_ns() + SLEEP_NS)
            if error == 0:
                return
            if error != -EAGAIN:
                raise result_error(error, self.log.directory)
            if wait_for is None:
                wait_for = Wait(self.log, FLUSH)
            wait_for.go_on()
            if wait_for.is_replaceable():
                with nogil:
                    replace_syncer(w, wait_for.word)

    def __exit__(self, *_):
        with nogil:
            unlock_flush(&self.log.w)
