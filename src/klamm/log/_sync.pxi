"""Sync, as head.py tells it: from the lock to the unlock without the GIL, without Python objects, without allocation.

So no exception and no signal handler comes between taking the flush lock and releasing it, and none leaves `flushing`
set: that would look like a syncer that died, and the next one would rewrite everything that is not synced yet.
"""

cdef enum:
    DEAD_SYNCER_NS = 20000000       # how often a waiting process looks whether the syncing one still lives
    NAME_ROOM = 256
    BASE_DIGITS = 20


cdef int try_lock_flush(Writer *w) noexcept nogil:
    """The in-process mutex, then the byte: 0, or -EAGAIN while another thread or process syncs, or why not."""
    cdef int error
    if klamm_mutex_lock(&w.flush_mutex, 0):
        return -EAGAIN
    if w.abandoned:
        error = R_ABANDONED
    elif os_lock(w.lock_fd, w.flush_byte, F_WRLCK, 0) == 0:
        return 0
    else:
        error = -errno
    pthread_mutex_unlock(&w.flush_mutex)
    return -EAGAIN if error == -EACCES or error == -EINTR else error


cdef void unlock_flush(Writer *w) noexcept nogil:
    """Release the flush lock, then wake the processes that wait for the round."""
    os_lock(w.lock_fd, w.flush_byte, F_UNLCK, 0)
    pthread_mutex_unlock(&w.flush_mutex)
    fetch_add32(&w.slot.flush_round, 1)
    os_futex_wake(&w.slot.flush_round, 0xffffffffu)


cdef int sync_segment(Writer *w, int64_t base) noexcept nogil:
    """Under the flush lock: fdatasync one segment file. 0 or -errno."""
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
    """The base offset of a segment by its file name; -1 if that is not a segment's."""
    cdef int64_t base = 0
    cdef int i
    for i in range(BASE_DIGITS):
        if not c'0' <= name[i] <= c'9':
            return -1
        base = base * 10 + (name[i] - c'0')
    return base if strcmp(name + BASE_DIGITS, b".log") == 0 else -1


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
    """Sync every segment from the one that holds `flushed` to the active one, and their names. 0 or -errno."""
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
        if first < base <= flushed:
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


cdef int flush_locked(Writer *w, Commit *now) noexcept nogil:
    """Under the flush lock: sync everything that is committed. `now` is the commit up to which that holds."""
    cdef int error
    cdef int64_t flushed
    if load64(&w.slot.flags) & FLAG_SYNC_FAILED or load32(&w.slot.flushing):
        fetch_or64(&w.slot.flags, FLAG_SYNC_FAILED)
        return R_SYNC_FAILED
    error = take_snapshot(w.slot, now)
    if error:
        return error
    store32(&w.slot.flushing, 1)
    flushed = load_i64(&w.slot.flushed_offset)
    if flushed > now.active_base:
        error = sync_segment(w, now.active_base)
    else:                                               # a segment may be new, so its name must be made durable, too
        error = sync_since(w, flushed, now.active_base)
    if error:                                           # the kernel reports it once; so the flag comes first
        fetch_or64(&w.slot.flags, FLAG_SYNC_FAILED)
    else:
        store_i64(&w.slot.flushed_offset, now.next_offset)
    store32(&w.slot.flushing, 0)
    return error


cdef int sync_once(Writer *w, int64_t end_offset, int64_t wait_ns) noexcept nogil:
    """Sync unless another process does; then wait for that, but not longer than `wait_ns`. 0, -EAGAIN or an error.

    Waiting processes sleep on `flush_round`, not on the lock: in a queue for the lock each would wait through the next
    one's sync, and nothing would be grouped.
    """
    cdef Commit now
    cdef uint32_t current = load32(&w.slot.flush_round)     # before the try: it changes after the unlock
    cdef int error = try_lock_flush(w)
    if error == 0:
        if load_i64(&w.slot.flushed_offset) < end_offset:
            error = flush_locked(w, &now)
        unlock_flush(w)
    elif error == -EAGAIN:
        os_futex_wait(&w.slot.flush_round, current, 0xffffffffu, klamm_monotonic_ns() + wait_ns)
    return error


cdef class AppendLock:
    """The append lock of a log, for the length of a `with` block.

    A native type: CPython runs signal handlers between bytecodes, also at the first one of a Python `__exit__`, and an
    exception there would leave the lock held for ever. Between these calls and the `with` statement there is none.
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
    """The flush lock of a log, for the length of a `with` block; native as AppendLock is."""
    cdef Log log

    def __cinit__(self, Log log not None):
        self.log = log

    def __enter__(self):
        cdef Writer *w = &self.log.w
        cdef uint32_t current
        cdef int error
        while True:
            with nogil:
                current = load32(&w.slot.flush_round)
                error = try_lock_flush(w)
                if error == -EAGAIN:
                    os_futex_wait(&w.slot.flush_round, current, 0xffffffffu, klamm_monotonic_ns() + DEAD_SYNCER_NS)
            if error == 0:
                return
            if error != -EAGAIN:
                raise result_error(error, self.log.directory)
            PyErr_CheckSignals()

    def __exit__(self, *_):
        with nogil:
            unlock_flush(&self.log.w)
