"""Find the end of a range of a segment, limited in bytes and by an offset.

The index says where to start looking, and batch headers say the rest. Both are read in pieces of a page: an index has
128 entries in one, and headers of small batches lie close together. What is read may be anything: each number is
checked before it is used, and an entry of the index only counts if the batch is there that it speaks of.
"""

cdef enum:
    CUT_BYTES = 4096
    CUT_ENTRIES = 128               # in so many bytes
    CUT_FOUND = 0
    CUT_WOULD_BLOCK = 1
    CUT_CORRUPT = 2                 # there is no batch where one should be

cdef struct Cut:
    int log_fd, index_fd
    bint may_block
    int headers_left                # that may be looked at; -1: as many as there are
    int64_t index_end               # entries that speak of bytes beyond it do not count
    int64_t start, end              # of the range, if it is not cut
    int64_t max_end, limit
    bint at_least_one
    int64_t position, next_offset   # where it is cut; -1: before the first batch
    int64_t held_position           # what is in `held`
    ssize_t held_size
    unsigned char held[4096]


cdef ssize_t read_piece(Cut *cut, int fd, void *data, size_t size, int64_t position) noexcept nogil:
    return os_pread(fd, data, size, position) if cut.may_block else os_pread_cached(fd, data, size, position)


cdef bint holds(const Cut *cut, IndexEntry *entry) noexcept nogil:
    """Return whether an entry is whole, and within the range: true up to some entry, and false from there on."""
    return (entry.crc == index_crc(entry) and 0 <= entry.position <= cut.max_end and entry.position <= cut.index_end
            and entry.offset <= cut.limit)


cdef int find_entry(Cut *cut, int64_t count, IndexEntry *best) noexcept nogil:
    """Find the last entry that holds; `best` stays if there is none. Return CUT_FOUND, CUT_WOULD_BLOCK or -errno."""
    cdef IndexEntry piece[CUT_ENTRIES]
    cdef int64_t low = 0, high = count, first, many, guess = -1
    cdef ssize_t got
    cdef int64_t left, right, middle
    if 0 < cut.max_end < cut.index_end:
        guess = max(<int64_t>(<double>count * cut.max_end / cut.index_end) - CUT_ENTRIES // 2, <int64_t>0)
    while low < high:
        many = min(high - low, <int64_t>CUT_ENTRIES)
        first = low + (high - low - many) // 2
        if guess >= 0:
            first = min(max(guess, low), high - many)      # entries lie at about the same distance from one another
            guess = -1
        got = read_piece(cut, cut.index_fd, piece, many * sizeof(IndexEntry), 64 + first * <int64_t>sizeof(IndexEntry))
        if got < 0:
            return CUT_WOULD_BLOCK if errno == EAGAIN else -errno
        if got < <ssize_t>(many * sizeof(IndexEntry)):
            if not cut.may_block:
                return CUT_WOULD_BLOCK
            high = first                                    # it has become shorter
            continue
        left, right = 0, many
        while left < right:
            middle = (left + right) // 2
            if holds(cut, &piece[middle]):
                best[0] = piece[middle]
                left = middle + 1
            else:
                right = middle
        if left == many:
            low = first + many
        else:
            high = first
            if left:
                break
    return CUT_FOUND


cdef int hold_header(Cut *cut, int64_t position, const unsigned char **header) noexcept nogil:
    """Load the bytes of a header that begins there. Return CUT_FOUND, CUT_WOULD_BLOCK, CUT_CORRUPT or -errno."""
    cdef int64_t at = position - cut.held_position
    if cut.held_size == 0 or at < 0 or at > cut.held_size - HEADER_SIZE:
        cut.held_size = 0
        cut.held_position, at = position, 0
        got = read_piece(cut, cut.log_fd, cut.held, CUT_BYTES, position)
        if got < 0:
            return CUT_WOULD_BLOCK if errno == EAGAIN else -errno
        if got < HEADER_SIZE:
            return CUT_CORRUPT if cut.may_block else CUT_WOULD_BLOCK
        cut.held_size = got
    header[0] = cut.held + at
    return CUT_FOUND


cdef int next_of(const unsigned char *header, int64_t *size, int64_t *next_offset) noexcept nogil:
    """Read size and next offset of a batch, checked as in batch/header.py."""
    cdef int64_t base_offset = <int64_t>be64(header), length = <int32_t>be32(header + LENGTH_AT)
    cdef int64_t last_delta = <int32_t>be32(header + LAST_DELTA_AT), count = <int32_t>be32(header + HEADER_SIZE - 4)
    if header[MAGIC_AT] != 2 or length < HEADER_SIZE - 12 or base_offset < 0 or last_delta < 0:
        return CUT_CORRUPT
    if count < 0 or last_delta < count - 1 or base_offset > INT64_MAX - last_delta - 1:
        return CUT_CORRUPT
    size[0], next_offset[0] = 12 + length, base_offset + last_delta + 1
    return CUT_FOUND


cdef int cut_range_at(Cut *cut, int64_t index_count) noexcept nogil:
    cdef IndexEntry entry
    cdef const unsigned char *header = NULL
    cdef int64_t size = 0, next_offset = 0
    cdef int result
    entry.offset, entry.position = -1, -1
    cut.position, cut.next_offset, cut.held_size = cut.start, -1, 0
    if index_count > 0:
        result = find_entry(cut, index_count, &entry)
        if result:
            return result
        if entry.position >= cut.end:
            cut.position = cut.end              # all of it may be sent
            return CUT_FOUND
        if entry.position > cut.start:
            result = hold_header(cut, entry.position, &header)
            if result == CUT_FOUND:
                if next_of(header, &size, &next_offset) == CUT_FOUND and <int64_t>be64(header) == entry.offset:
                    cut.position, cut.next_offset = entry.position, entry.offset
            elif result != CUT_CORRUPT:
                return result
    while cut.position < cut.end:
        if cut.headers_left == 0:
            return CUT_WOULD_BLOCK
        cut.headers_left -= 1
        result = hold_header(cut, cut.position, &header)
        if result:
            return result
        if next_of(header, &size, &next_offset):
            return CUT_CORRUPT
        if next_offset > cut.limit:
            break
        if size > cut.max_end - cut.position and not (cut.position == cut.start and cut.at_least_one):
            break
        cut.position, cut.next_offset = cut.position + size, next_offset
    return CUT_FOUND


def cut_range(int log_fd, int index_fd, int64_t index_end, int64_t start, int64_t end, int64_t max_end, int64_t limit, *,
              bint at_least_one, bint may_block, int max_headers=-1):
    """Find the last boundary of batches in [start, end] at or before byte `max_end` and offset `limit`.

    Return it with the offset there (-1: it is `start`, or `end`); None if that would take a wait for the disk, or more
    than `max_headers` headers; with the offset -2 if there is no batch. `index_fd`: -1 if there is no index;
    `index_end`: the end of the segment, or of its committed part.
    """
    cdef Cut cut
    cdef stat_t status
    cdef int64_t index_count = 0
    cdef int result
    if start < 0 or end < start:
        raise ValueError("not a range")
    if index_fd >= 0:
        if fstat(index_fd, &status):
            raise OSError(errno, os.strerror(errno))
        index_count = (status.st_size - 64) // <int64_t>sizeof(IndexEntry)
    cut.log_fd, cut.index_fd, cut.may_block, cut.headers_left = log_fd, index_fd, may_block, max_headers
    cut.index_end, cut.start, cut.end, cut.max_end, cut.limit = index_end, start, end, max_end, limit
    cut.at_least_one = at_least_one
    if may_block:
        with nogil:
            result = cut_range_at(&cut, index_count)
    else:
        result = cut_range_at(&cut, index_count)    # some microseconds: another thread may keep the GIL for longer
    if result == CUT_WOULD_BLOCK:
        return None
    if result == CUT_CORRUPT:
        return cut.position, -2
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return cut.position, cut.next_offset
