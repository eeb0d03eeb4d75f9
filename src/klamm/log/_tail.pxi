"""Read on at the end of the active segment: snapshot, read, check. A fast path of readers that wait there."""


cdef struct Tail:
    int fd                          # of the active segment; -1: not known
    int contiguous
    int64_t base, position, next_offset


cdef int64_t size_behind(Writer *w, const Tail *tail, int64_t most, Commit *now) noexcept nogil:
    """Take a snapshot; return how many bytes to read, at most `most`.

    Return 0 if there is nothing, or in any special case (another segment, an open transaction): a Reader handles those.
    """
    if take_own_snapshot(w, now) or now.active_base != tail.base or now.stable_offset != now.next_offset:
        return 0
    return max(0, min(most, now.position - tail.position)) if tail.next_offset >= now.log_start else 0


cdef int64_t read_behind(const Tail *tail, unsigned char *to, int64_t size, const Commit *now, int64_t *next_offset) noexcept nogil:
    """Read `size` bytes; return how many of them are whole batches, checked, and the offset after them.

    Return 0 for damage or a larger batch: a Reader handles those.
    """
    cdef int64_t done = 0
    next_offset[0] = tail.next_offset
    if os_pread(tail.fd, to, size, tail.position) != size:
        return 0
    if klamm_check_batches(to, size, &done, next_offset, tail.contiguous, now.leader_epoch) != KLAMM_OK:
        return 0
    return done


cdef bint has_transactional(const unsigned char *data, int64_t size) noexcept nogil:
    """Return whether one of these whole batches belongs to a transaction."""
    cdef int64_t position = 0
    while position < size:
        if be16(data + position + ATTRIBUTES_AT) & KLAMM_TRANSACTIONAL:
            return True
        position += 12 + <int64_t>be32(data + position + LENGTH_AT)
    return False
