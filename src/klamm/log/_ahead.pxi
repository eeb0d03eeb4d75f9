"""Blocks ahead of the commit: the active segment of a log that is synced has them before it is written.

To sync a file that has grown, the file system has to write its new size and the blocks it was given, through its
journal. Where both are there before, a sync takes about a third less. So a process that syncs a log makes the active
segment longer than the commit, by as much as it has, 64 KiB at least and 1 MiB at most, when it is about to write
beyond what is allocated; the file system fills that with zeros. It gives the rest back when it closes its files.

Promises
  AHD1  The end of the active segment is the position of the commit, never the size of the file. Behind it are zeros, or
        what a writer that died has left, and then `intent` differs from `seq`.
  AHD2  A closed segment ends with its last batch: a roll gives the rest back before its commit.
  AHD3  A rest of zeros was never written: recovery cuts it off, and keeps no `.cut-…` of it.
"""

cdef enum:
    AHEAD_LEAST = 65536                 # of a segment that is smaller nothing is allocated: small partitions stay small
    AHEAD_MOST = 1048576


cdef int is_written(Writer *w, int64_t position) noexcept nogil:
    """Return 1 if there is anything but zeros where the next batch goes, else 0, or -errno."""
    cdef unsigned char header[HEADER_SIZE]
    cdef ssize_t i, size = os_pread(w.log_fd, header, HEADER_SIZE, position)
    if size < 0:
        return -errno
    for i in range(size):
        if header[i]:
            return 1
    return 0


cdef void allocate_ahead(Writer *w, Commit *now, int64_t size) noexcept nogil:
    """Allocate space ahead, before a batch is written. A disk without space for it is not an error: the batch may still
    fit. Called under the append lock.
    """
    cdef int64_t end = min(now.position + max(size, min(now.position, AHEAD_MOST)), w.segment_bytes)
    if now.position >= AHEAD_LEAST and end > now.position + size:
        os_allocate(w.log_fd, now.position, end - now.position)
        w.room = end


cdef int give_back(Writer *w, Commit *now) noexcept nogil:
    """Let the active segment end with the commit. Return 0 or -errno. Called under the append lock."""
    cdef stat_t status
    if fstat(w.log_fd, &status):
        return -errno
    if status.st_size > now.position and os_ftruncate(w.log_fd, now.position):
        return -errno
    if w.room != INT64_MAX:
        w.room = now.position
    return 0


cdef void give_back_idle(Writer *w) noexcept nogil:
    """Like `give_back`, before files are closed, unless another process has the lock. Called with the mutex."""
    cdef Commit now
    if w.log_fd < 0 or w.synced_base != w.log_base or w.room == INT64_MAX or not w.life.number:
        return
    if owner_take(&w.slot.owner, &w.life, OWNER_TRY):
        return
    if not is_reused(w) and not refused(w):
        now = w.slot.ring[w.slot.seq % RING]
        if now.seq == w.slot.seq == w.slot.intent and now.crc == commit_crc(&now) and now.active_base == w.log_base:
            give_back(w, &now)
    owner_drop(&w.slot.owner, &w.life)


cdef void close_idle_files(Writer *w) noexcept nogil:
    """Close the files, except those that another thread uses just now."""
    if klamm_mutex_lock(&w.append_mutex, 0) == 0:
        give_back_idle(w)
        close_append_files(w)
        pthread_mutex_unlock(&w.append_mutex)
    if klamm_mutex_lock(&w.flush_mutex, 0) == 0:
        close_sync_file(w)
        pthread_mutex_unlock(&w.flush_mutex)
