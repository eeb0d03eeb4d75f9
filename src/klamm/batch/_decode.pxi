# Batches -> records.

RECORDS = 0
TUPLES = 1
VALUES = 2

cdef enum:
    FORM_RECORDS = 0
    FORM_TUPLES = 1
    FORM_VALUES = 2


@cython.final
@cython.no_gc  # a reference cycle needs a value that is made to hold its own Record
@cython.freelist(512)
cdef class Record:
    """One record as it was read. Key and value are bytes, or what the consumer's serde made of them."""

    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int32_t leader_epoch
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers

    def __init__(self, str topic not None, int32_t partition, int64_t offset, int64_t timestamp, key, value,
                 headers=(), int32_t leader_epoch=-1):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = tuple(headers)
        self.leader_epoch = leader_epoch

    def __repr__(self):
        headers = f", headers={self.headers!r}" if self.headers else ""
        return (f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
                f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}{headers})")

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self.__reduce__()[1] == other.__reduce__()[1]

    def __hash__(self):
        return hash((self.topic, self.partition, self.offset))

    def __reduce__(self):
        return Record, (self.topic, self.partition, self.offset, self.timestamp, self.key, self.value, self.headers,
                        self.leader_epoch)


cdef object damage(int code, const uint8_t *data, Py_ssize_t position, int64_t expected, bint contiguous):
    """The CorruptBatch for what klamm_read_batch or verify found at `position`."""
    cdef const uint8_t *p = data + position
    cdef int64_t size
    if code == KLAMM_BAD_MAGIC:
        what = f"magic is {p[16]}, want 2"
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
                f"want {klamm_get32(p + 17):08x}")
    elif code == KLAMM_BAD_ORDER:
        what = f"base offset is {<int64_t> klamm_get64(p)}, want {expected}{'' if contiguous else ' or more'}"
    elif code == KLAMM_BAD_EPOCH:
        what = f"leader epoch is {<int32_t> klamm_get32(p + 12)}, less than the one before, or more than there were"
    else:
        what = "the batch is cut short"
    return CorruptBatch(f"byte {position}: {what}", position=position)


cdef object bad_records(const klamm_batch *batch, Py_ssize_t position, str what):
    return CorruptBatch(f"byte {position}: batch at offset {batch.base_offset}: {what}", position=position,
                        next_offset=batch.next_offset)


def walk(data, Py_ssize_t position=0):
    """Headers of the whole batches from `position` on, without a look at CRCs or records.

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
    """(bytes, next offset) of the whole batches that `data` starts with, each checked by its CRC; without the GIL.

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


cdef tuple read_headers(const klamm_record *record):
    """The headers of a record that klamm_read_record has checked."""
    cdef klamm_record_header h
    cdef const uint8_t *p = record.headers
    cdef int64_t i
    cdef list found = []
    for i in range(record.header_count):
        p = klamm_read_header(p, record.end, &h)
        if p == NULL:
            raise AssertionError("headers changed after they were checked")
        name = PyUnicode_DecodeUTF8(<const char *> h.name, h.name_size, "replace")
        found.append((name, bytes_or_none(h.value, h.value_size)))
    return tuple(found)


cdef inline object bytes_or_none(const uint8_t *p, int64_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *> p, size)


cdef class Decoding:
    """What every record of one `decode` shares."""

    cdef int form
    cdef int64_t from_offset
    cdef int64_t upto
    cdef str topic
    cdef int32_t partition
    cdef object key_of
    cdef object value_of

    cdef object loaded(self, object load, const uint8_t *p, int64_t size):
        """The key or value, as the user's function makes it of the bytes. A null stays None."""
        if size < 0:
            return None
        raw = PyBytes_FromStringAndSize(<const char *> p, size)
        return raw if load is None else load(raw)

    cdef object make(self, const klamm_batch *batch, const klamm_record *r):
        cdef Record record
        cdef tuple pair
        cdef object key, value
        cdef int64_t offset = batch.base_offset + r.offset_delta
        if self.value_of is None:
            value = bytes_or_none(r.value, r.value_size)
        else:
            value = self.loaded(self.value_of, r.value, r.value_size)
        if self.form == FORM_VALUES:
            return value
        if self.key_of is None:
            key = bytes_or_none(r.key, r.key_size)
        else:
            key = self.loaded(self.key_of, r.key, r.key_size)
        if self.form == FORM_TUPLES:
            pair = PyTuple_New(2)
            Py_INCREF(key)
            PyTuple_SET_ITEM(pair, 0, key)
            Py_INCREF(value)
            PyTuple_SET_ITEM(pair, 1, value)
            if self.key_of is None and self.value_of is None:
                PyObject_GC_UnTrack(<void *> pair)  # holds only bytes: the collector would find that out later
            return pair
        record = Record.__new__(Record)
        record.topic = self.topic
        record.partition = self.partition
        record.leader_epoch = batch.leader_epoch
        record.offset = offset
        record.timestamp = klamm_timestamp(batch, r)
        record.key = key
        record.value = value
        record.headers = () if r.header_count == 0 else read_headers(r)
        return record

    cdef int batch_records(self, const klamm_batch *batch, const uint8_t *p, Py_ssize_t size, Py_ssize_t position,
                           list out) except -1:
        """Appends the wanted records of one batch, whose uncompressed records lie at p."""
        cdef const uint8_t *end = p + size
        cdef klamm_record r
        cdef int64_t last = -1, i, low = self.from_offset - batch.base_offset, high = self.upto - batch.base_offset
        if batch.record_count > size // KLAMM_SMALLEST_RECORD:
            raise bad_records(batch, position, f"{batch.record_count} records in {size} bytes")
        for i in range(batch.record_count):
            p = klamm_read_record(p, end, &r)
            if p == NULL:
                raise bad_records(batch, position, f"record {i} does not follow the format")
            if r.offset_delta <= last or r.offset_delta > batch.last_offset_delta:
                raise bad_records(batch, position, f"record {i} has offset delta {r.offset_delta} after {last}")
            last = r.offset_delta
            if low <= last < high:
                try:
                    out.append(self.make(batch, &r))
                except Exception as error:
                    error.add_note(f"topic {self.topic!r}, partition {self.partition}, offset {batch.base_offset + last}")
                    raise
        if p != end:
            raise bad_records(batch, position, f"{end - p} bytes after the last record")
        return 0


def decode(data, *, int form=RECORDS, int64_t from_offset=0, int64_t upto=INT64_MAX, str topic="", int32_t partition=0,
           key_of=None, value_of=None):
    """Records of whole, verified batches: those with from_offset <= offset < upto.

    `form` is RECORDS, TUPLES ((key, value)) or VALUES. Control batches are skipped. `key_of` and `value_of` make
    objects of the bytes; a null stays None. A batch that does not follow the format raises CorruptBatch with its
    position and the next_offset to go on with; batches from `upto` on are not looked at.
    """
    cdef View view = viewed(data)
    cdef Py_ssize_t size = view.size, position = 0
    cdef const uint8_t *start = view.data
    cdef const uint8_t *p
    cdef klamm_batch batch
    cdef int code
    cdef list out = []
    cdef bytes unpacked
    cdef Decoding how = Decoding.__new__(Decoding)
    if form not in (RECORDS, TUPLES, VALUES):
        raise ValueError(f"form {form}")
    how.form, how.from_offset, how.upto = form, from_offset, upto
    how.topic, how.partition, how.key_of, how.value_of = topic, partition, key_of, value_of
    while position < size:
        p = start + position
        code = klamm_read_batch(p, size - position, &batch)
        if code != KLAMM_OK:
            raise damage(code, start, position, 0, False)
        if batch.base_offset >= upto:
            break
        if batch.next_offset > from_offset and not batch.attributes & KLAMM_CONTROL:
            if batch.attributes & KLAMM_CODEC_MASK:
                unpacked = unpack(&batch, view, position)
                how.batch_records(&batch, <const uint8_t *> PyBytes_AS_STRING(unpacked), PyBytes_GET_SIZE(unpacked),
                                  position, out)
            else:
                how.batch_records(&batch, p + KLAMM_HEADER, batch.size - KLAMM_HEADER, position, out)
        position += batch.size
    return out


cdef bytes unpack(const klamm_batch *batch, View view, Py_ssize_t position, Py_ssize_t limit=-1):
    """The records of a compressed batch, uncompressed; bounded."""
    if limit < 0:
        limit = _codecs.MAX_DECODED_BYTES
    try:
        return _codecs.decompress(batch.attributes & KLAMM_CODEC_MASK,
                                  memoryview(view)[position + KLAMM_HEADER:position + batch.size], limit)
    except CorruptBatch as error:
        raise bad_records(batch, position, error.message) from error.__cause__
