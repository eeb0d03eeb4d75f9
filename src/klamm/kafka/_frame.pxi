"""Fields of requests and responses, for native code: what is read may be any bytes, and nothing beyond their end is.

A module that includes this has the names of klamm.batch.externs and of libc.stdint.
"""

cdef enum:
    ID_BYTES = 16               # of a topic
    LONGEST_NAME = 249          # of a topic


cdef struct Cursor:
    const uint8_t *p            # NULL: what is there is not ordinary
    const uint8_t *end
    int is_flexible


cdef inline const uint8_t *take(Cursor *at, int64_t size) noexcept nogil:
    """Return the next `size` bytes, or NULL."""
    cdef const uint8_t *p = at.p
    if p == NULL or size < 0 or size > at.end - p:
        at.p = NULL
        return NULL
    at.p = p + size
    return p


cdef inline int32_t take_int32(Cursor *at) noexcept nogil:
    cdef const uint8_t *p = take(at, 4)
    return 0 if p == NULL else <int32_t> klamm_get32(p)


cdef inline int32_t take_int16(Cursor *at) noexcept nogil:
    cdef const uint8_t *p = take(at, 2)
    return 0 if p == NULL else <int16_t> klamm_get16(p)


cdef inline int64_t take_length(Cursor *at, int is_short) noexcept nogil:
    """Take the length of what follows; -1: null. A varint of up to 4 bytes is more than any ordinary length needs."""
    cdef const uint8_t *p
    cdef int64_t value = 0
    cdef int shift = 0
    if not at.is_flexible:
        return take_int16(at) if is_short else take_int32(at)
    while shift < 28:
        p = take(at, 1)
        if p == NULL:
            return -1
        value |= <int64_t> (p[0] & 0x7f) << shift
        if p[0] < 0x80:
            return value - 1
        shift += 7
    at.p = NULL
    return -1


cdef inline void take_no_tags(Cursor *at) noexcept nogil:
    cdef const uint8_t *p
    if at.is_flexible:
        p = take(at, 1)
        if p != NULL and p[0]:
            at.p = NULL


cdef inline int is_ascii(const uint8_t *p, int64_t size) noexcept nogil:
    cdef uint8_t bits = 0
    cdef int64_t i
    for i in range(size):
        bits |= p[i]
    return bits < 0x80


cdef uint8_t *put_length(uint8_t *p, int64_t length, int is_flexible, int is_short) noexcept nogil:
    if not is_flexible:
        if is_short:
            klamm_put16(p, <uint16_t> length)
            return p + 2
        klamm_put32(p, <uint32_t> length)
        return p + 4
    length += 1
    while length > 0x7f:
        p[0] = <uint8_t> (length & 0x7f | 0x80)
        length >>= 7
        p += 1
    p[0] = <uint8_t> length
    return p + 1


cdef int skip_client_id(Cursor *at) noexcept nogil:
    """Return whether the client id of the header is plain text: it has the same form in all versions."""
    cdef int64_t size = take_int16(at)
    cdef const uint8_t *name
    if size > 0:
        name = take(at, size)
        return name != NULL and is_ascii(name, size)
    return at.p != NULL and size >= -1
