# Batches -> records.

RECORDS = 0
TUPLES = 1
VALUES = 2

cdef enum:
    FORM_RECORDS = 0
    FORM_TUPLES = 1
    FORM_VALUES = 2


cdef object damage(int code, const uint8_t *data, Py_ssize_t position, int64_t expected, bint contiguous):
    """Return the CorruptBatch for what klamm_read_batch or verify reported at `position`."""
    cdef const uint8_t *p = data + position
    cdef int64_t size
    if code == KLAMM_BAD_MAGIC:
        what = f"magic is {p[16]}, expected 2"
    elif code == KLAMM_BAD_LENGTH:
        what = f"batch length is {<int32_t> klamm_get32(p + 8)}, less than a header"
    elif code == KLAMM_BAD_OFFSET:
        what = f"base offset is {<int64_t> klamm_get64(p)}"
    elif code == KLAMM_BAD_COUNT:
        what = (f"{<int32_t> klamm_get32(p + 57)} records with a last offset delta of "
                f"{<int32_t> klamm_get32(p + 23)}")
    elif code == KLAMM_BAD_CRC:
        size = <int64_t> klamm_get32(p + 8) + KLAMM_LENGTH_END
        what = (f"CRC is {klamm_crc32c(0, p + KLAMM_CRC_START, size - KLAMM_CRC_START):08x}, "
                f"expected {klamm_get32(p + 17):08x}")
    elif code == KLAMM_BAD_ORDER:
        what = f"base offset is {<int64_t> klamm_get64(p)}, expected {expected}{'' if contiguous else ' or more'}"
    elif code == KLAMM_BAD_EPOCH:
        what = f"leader epoch is {<int32_t> klamm_get32(p + 12)}, less than the one before, or more than there were"
    else:
        what = "the batch is cut short"
    return CorruptBatch(f"byte {position}: {what}", position=position)


cdef object bad_records(const klamm_batch *batch, Py_ssize_t position, str what):
    return CorruptBatch(f"byte {position}: batch at offset {batch.base_offset}: {what}", position=position,
                        next_offset=batch.next_offset)


def walk(data, Py_ssize_t position=0):
    """Yield the headers of the whole batches from `position` on, without a look at CRCs or records.

    An incomplete batch at the end is left out. Bad magic, length, offset or count raises CorruptBatch.
    """
    cdef View view = viewed(data)
    cdef Py_ssize_t size = view.size
    cdef const uint8_t *start = view.data
    cdef const uint8_t *p
    cdef klamm_batch batch
    cdef int code
    cdef list found = []
    if position < 0:
        raise IndexError(f"position is {position}")
    while position < size:
        p = start + position
        code = klamm_read_batch(p, size - position, &batch)
        if code == KLAMM_SHORT:
            break
        if code != KLAMM_OK:
            raise damage(code, start, position, 0, False)
        found.append(Header(
            batch.base_offset, batch.size - KLAMM_LENGTH_END, batch.leader_epoch, 2, batch.crc,
            <int16_t> batch.attributes, batch.last_offset_delta, batch.base_timestamp, batch.max_timestamp,
            <int64_t> klamm_get64(p + 43), <int16_t> klamm_get16(p + 51), <int32_t> klamm_get32(p + 53),
            batch.record_count))
        position += batch.size
    return found


cdef extern from "record.h" nogil:
    int check_batches "klamm_check_batches"(
        const uint8_t *start, int64_t size, int64_t *position, int64_t *offset, int contiguous,
        int64_t highest_epoch)


def verify(data, int64_t expected_offset, bint contiguous, int64_t highest_epoch=-1):
    """Return (bytes, next offset) of the whole batches that `data` starts with, each checked by its CRC; without the
    GIL.

    With `contiguous` each base offset must be the previous next offset, starting with `expected_offset`; else it must
    not be less. With `highest_epoch`, leader epochs must not fall, nor be above it. An incomplete batch at the end is
    not counted. Anything wrong raises CorruptBatch with its position.
    """
    cdef View view = viewed(data)
    cdef Py_ssize_t size = view.size
    cdef int64_t position = 0, offset = expected_offset
    cdef const uint8_t *start = view.data
    cdef int code
    if size < NOGIL_SIZE:
        code = check_batches(start, size, &position, &offset, contiguous, highest_epoch)
    else:
        with nogil:
            code = check_batches(start, size, &position, &offset, contiguous, highest_epoch)
    if code != KLAMM_OK:
        raise damage(code, start, position, offset, contiguous)
    return position, offset


cdef Headers read_headers(const klamm_record *record):
    """Return the headers of a record that klamm_read_record has checked."""
    cdef klamm_record_header h
    cdef const uint8_t *p = record.headers
    cdef int64_t i
    cdef tuple pairs = PyTuple_New(record.header_count)
    for i in range(record.header_count):
        p = klamm_read_header(p, record.end, &h)
        if p == NULL:
            raise AssertionError("headers changed after they were checked")
        name = PyUnicode_DecodeUTF8(<const char *> h.name, h.name_size, "replace")
        pair = (name, bytes_or_none(h.value, h.value_size))
        Py_INCREF(pair)
        PyTuple_SET_ITEM(pairs, i, pair)
    return headers_of(pairs)


cdef inline object bytes_or_none(const uint8_t *p, int64_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *> p, size)


cdef View unpack(const klamm_batch *batch, View view, Py_ssize_t position, Py_ssize_t limit=-1, memory=None):
    """Decompress the records of a compressed batch; bounded. `memory`: memory that may be used (batch_memory.py)."""
    if limit < 0:
        limit = _codecs.MAX_DECODED_BYTES
    try:
        return viewed(_codecs.decompress(batch.attributes & KLAMM_CODEC_MASK,
                                         memoryview(view)[position + KLAMM_HEADER:position + batch.size], limit, memory))
    except CorruptBatch as error:
        raise bad_records(batch, position, error.message) from error.__cause__
