# Records -> a batch.

cdef enum:
    FIRST_CAPACITY = 4096
    AHEAD = 8  # records whose objects are prefetched


cdef extern from "record.h" nogil:
    void finish_header "klamm_finish_header"(
        uint8_t *data, size_t size, int32_t count, int32_t last_offset_delta, int64_t first_timestamp,
        int64_t max_timestamp, uint16_t attributes, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence)


cdef inline int64_t checked_timestamp(int64_t timestamp) except? -1:
    if timestamp >= 0:
        return timestamp
    if timestamp == -1:
        return klamm_now_ms()
    raise ValueError(f"timestamp {timestamp} is negative")


cdef int check_fits(int64_t alone, int64_t limit) except -1:
    if KLAMM_HEADER + alone > limit:
        raise RecordTooLarge(f"a record of {alone} bytes does not fit a batch of at most {limit}")
    return 0


@cython.final
cdef class Builder:
    """One batch, growing in its own memory up to `limit` bytes, header included, before compression."""

    cdef Memory memory
    cdef Memory sealed  # a compressed copy
    cdef Py_ssize_t used
    cdef readonly Py_ssize_t limit
    cdef readonly int32_t count
    cdef readonly int64_t skipped  # offsets that no record has, of those so far
    cdef bint busy  # a thread works on it without the GIL
    cdef int64_t first
    cdef int64_t newest
    cdef public int64_t earliest  # timestamps outside of [earliest, latest] are refused
    cdef public int64_t latest

    def __init__(self, limit):
        if not KLAMM_HEADER < limit <= INT32_MAX:
            raise ValueError(f"a batch of at most {limit} bytes")
        self.limit = limit
        self.memory = new_memory(min(self.limit, FIRST_CAPACITY))
        self.used = KLAMM_HEADER
        self.earliest, self.latest = INT64_MIN, INT64_MAX

    cdef int check_time(self, int64_t timestamp) except -1:
        if timestamp < self.earliest or timestamp > self.latest:
            raise InvalidTimestamp.outside("a record", timestamp, self.earliest, self.latest)
        return 0

    @property
    def size(self):
        """Bytes so far, header included."""
        return self.used

    @property
    def first_timestamp(self):
        """Of the first record; -1 when there is none."""
        return self.first if self.count else -1

    @property
    def max_timestamp(self):
        """Largest of all records; -1 when there is none."""
        return self.newest if self.count else -1

    def clear(self):
        """Empty the batch; the memory stays allocated."""
        if self.busy:
            raise_busy()
        self.used = KLAMM_HEADER
        self.count = 0
        self.skipped = 0

    cdef int make_room(self, Py_ssize_t need) except -1:
        """Make space for `need` more bytes. The caller has checked the limit."""
        cdef Py_ssize_t capacity = min(self.limit, max(2 * self.memory.capacity, self.used + need))
        if self.used + need > self.memory.capacity:
            self.memory = grown_memory(self.memory, self.used, capacity)
        return 0

    cdef int64_t put(self, const uint8_t *key, Py_ssize_t key_size, const uint8_t *value, Py_ssize_t value_size,
                     const uint8_t *headers, Py_ssize_t headers_size, int64_t timestamp, Py_ssize_t most) except -2:
        """Add a record and return its index; -1 when the batch would then exceed `most` bytes. `headers` NULL: none."""
        cdef int64_t delta = timestamp - self.first if self.count else 0
        cdef int64_t body = klamm_body_size(delta, self.count, key_size, value_size, headers_size)
        cdef int64_t need = body + klamm_varint_size(body)
        cdef uint8_t *p
        if self.busy:
            raise_busy()
        if self.skipped:
            raise ValueError("the batch has gaps: records are added to it by their offsets")
        if self.used + need > most:
            # Alone in a batch its deltas are zero, and it may be a few bytes shorter.
            need = klamm_body_size(0, 0, key_size, value_size, headers_size)
            check_fits(need + klamm_varint_size(need), self.limit)
            return -1
        if self.used + need > self.memory.capacity:
            self.make_room(need)
        p = klamm_put_record(self.memory.data + self.used, body, delta, self.count, key, key_size, value, value_size)
        if headers == NULL:
            p[0] = 0
        else:
            memcpy(p, headers, headers_size)
        if self.count == 0:
            self.first = self.newest = timestamp
        elif timestamp > self.newest:
            self.newest = timestamp
        self.used += need
        self.count += 1
        return self.count - 1

    cdef int64_t put_objects(self, key, value, headers, int64_t timestamp, Py_ssize_t most) except -2:
        cdef Slice k
        cdef Slice v
        cdef bytes encoded = None
        if headers is not None:
            encoded = encode_headers(headers)
        timestamp = checked_timestamp(timestamp)
        self.check_time(timestamp)
        take(key, &k, "key")
        try:
            take(value, &v, "value")
        except:
            give_back(&k)
            raise
        try:
            if encoded is None:
                return self.put(k.data, k.size, v.data, v.size, NULL, 1, timestamp, most)
            return self.put(k.data, k.size, v.data, v.size, <const uint8_t *> PyBytes_AS_STRING(encoded),
                            PyBytes_GET_SIZE(encoded), timestamp, most)
        finally:
            give_back(&k)
            give_back(&v)

    def add(self, key, value, headers=None, int64_t timestamp=-1):
        """Add a record and return its index in the batch; -1 if it does not fit beside what is there: nothing changed.

        `timestamp` is in milliseconds, -1 for now. A record that exceeds the limit alone raises RecordTooLarge.
        """
        return self.put_objects(key, value, headers, timestamp, self.limit)

    cdef Py_ssize_t put_record(self, record, int64_t timestamp) except -2:
        """Add one element of `extend`, of any of its forms."""
        cdef tuple t
        if not isinstance(record, (tuple, list)):
            raise TypeError(f"a record is {type(record).__name__}, expected a (key, value) tuple")
        t = tuple(record)
        if not 2 <= len(t) <= 4:
            raise TypeError(f"a record of {len(t)} parts; expected (key, value[, headers[, timestamp]])")
        if len(t) == 4 and t[3] is not None:
            timestamp = t[3]
        return self.put_objects(t[0], t[1], t[2] if len(t) > 2 else None, timestamp, self.limit)

    def extend(self, records, Py_ssize_t start=0, int64_t timestamp=-1):
        """Add (key, value), (key, value, headers) or (key, value, headers, timestamp) tuples, from index `start` on.

        Gives the index of the first one that did not fit; len(records) when all did. When one raises, those before it
        have been added.
        """
        cdef Py_ssize_t i = start, n
        cdef PyObject **items
        cdef PyObject *record
        cdef PyObject *k
        cdef PyObject *v
        cdef const uint8_t *key
        cdef Py_ssize_t key_size, value_size
        cdef int64_t delta, body, need
        cdef int32_t count
        cdef uint8_t *p
        cdef uint8_t *full
        if type(records) is not list and type(records) is not tuple:
            raise TypeError(f"records are {type(records).__name__}, expected a list or a tuple")
        if start < 0:
            raise IndexError(f"start is {start}")
        timestamp = checked_timestamp(timestamp)
        self.check_time(timestamp)
        while i < klamm_length(records):
            # The fast path: pairs of exact bytes or None, from the second record on, as long as the memory suffices.
            if self.count > 0 and not self.busy and not self.skipped:
                items = klamm_items(records)
                n = klamm_length(records)
                count = self.count
                delta = timestamp - self.first
                p = self.memory.data + self.used
                full = self.memory.data + self.memory.capacity
                while i < n:
                    if i + 2 * AHEAD < n:
                        _prefetch(items[i + 2 * AHEAD])
                        klamm_prefetch_pair(items[i + AHEAD])
                    record = items[i]
                    if not PyTuple_CheckExact(record) or PyTuple_GET_SIZE(<object> record) != 2:
                        break
                    k = PyTuple_GET_ITEM(<object> record, 0)
                    v = PyTuple_GET_ITEM(<object> record, 1)
                    if PyBytes_CheckExact(k):
                        key = <const uint8_t *> PyBytes_AS_STRING(<object> k)
                        key_size = PyBytes_GET_SIZE(<object> k)
                    elif k == <PyObject *> None:
                        key = NULL
                        key_size = -1
                    else:
                        break
                    if not PyBytes_CheckExact(v):
                        break
                    value_size = PyBytes_GET_SIZE(<object> v)
                    body = klamm_body_size(delta, count, key_size, value_size, 1)
                    need = body + klamm_varint_size(body)
                    if need > full - p:
                        break
                    p = klamm_put_record(p, body, delta, count, key, key_size,
                                         <const uint8_t *> PyBytes_AS_STRING(<object> v), value_size)
                    p[0] = 0
                    p += 1
                    count += 1
                    i += 1
                self.used = p - self.memory.data
                if count > self.count and timestamp > self.newest:
                    self.newest = timestamp
                self.count = count
                if i >= n:
                    break
            # The slow path for one record: it grows the memory, raises, or does not fit.
            if self.put_record(<object> klamm_items(records)[i], timestamp) < 0:
                return i
            i += 1
        return i

    def extend_values(self, values, Py_ssize_t start=0, int64_t timestamp=-1):
        """Like `extend`, for values without keys."""
        cdef Py_ssize_t i = start, n
        cdef PyObject **items
        cdef PyObject *v
        cdef Py_ssize_t value_size
        cdef int64_t delta, body, need
        cdef int32_t count
        cdef uint8_t *p
        cdef uint8_t *full
        if type(values) is not list and type(values) is not tuple:
            raise TypeError(f"values are {type(values).__name__}, expected a list or a tuple")
        if start < 0:
            raise IndexError(f"start is {start}")
        timestamp = checked_timestamp(timestamp)
        self.check_time(timestamp)
        while i < klamm_length(values):
            if self.count > 0 and not self.busy and not self.skipped:
                items = klamm_items(values)
                n = klamm_length(values)
                count = self.count
                delta = timestamp - self.first
                p = self.memory.data + self.used
                full = self.memory.data + self.memory.capacity
                while i < n:
                    if i + AHEAD < n:
                        klamm_prefetch_value(items[i + AHEAD])
                    v = items[i]
                    if not PyBytes_CheckExact(v):
                        break
                    value_size = PyBytes_GET_SIZE(<object> v)
                    body = klamm_body_size(delta, count, -1, value_size, 1)
                    need = body + klamm_varint_size(body)
                    if need > full - p:
                        break
                    p = klamm_put_record(p, body, delta, count, NULL, -1,
                                         <const uint8_t *> PyBytes_AS_STRING(<object> v), value_size)
                    p[0] = 0
                    p += 1
                    count += 1
                    i += 1
                self.used = p - self.memory.data
                if count > self.count and timestamp > self.newest:
                    self.newest = timestamp
                self.count = count
                if i >= n:
                    break
            if self.put_objects(None, <object> klamm_items(values)[i], None, timestamp, self.limit) < 0:
                return i
            i += 1
        return i

    def seal(self, int codec=0, level=None, int64_t producer_id=-1, int producer_epoch=-1, int64_t base_sequence=-1,
             int attributes=0):
        """Return the whole batch, writable, with base offset 0 and leader epoch 0; valid until the next add or clear.

        `attributes` are flags besides the codec. Without compression nothing is copied.
        """
        cdef Memory memory = self.memory
        cdef Py_ssize_t size = self.used
        cdef bytes packed
        cdef uint16_t flags = <uint16_t> (attributes | codec)
        cdef int32_t last = <int32_t> (self.count + self.skipped - 1)
        if self.busy:
            raise_busy()
        if self.count == 0:
            raise ValueError("an empty batch")
        if codec < 0 or codec > KLAMM_CODEC_MASK or attributes & KLAMM_CODEC_MASK:
            raise ValueError(f"codec {codec} with attributes {attributes}")
        if codec:
            self.memory.size = self.used
            packed = _codecs.compress(codec, memoryview(self.memory)[KLAMM_HEADER:], level)
            size = KLAMM_HEADER + PyBytes_GET_SIZE(packed)
            if self.sealed is None or self.sealed.views > 0 or self.sealed.capacity < size:
                self.sealed = new_memory(size + size // 4)
            memory = self.sealed
            memcpy(memory.data + KLAMM_HEADER, PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed))
        if size < NOGIL_SIZE:
            finish_header(memory.data, size, self.count, last, self.first, self.newest, flags, producer_id,
                          <int16_t> producer_epoch, <int32_t> base_sequence)
        else:
            self.busy = True
            with nogil:
                finish_header(memory.data, size, self.count, last, self.first, self.newest, flags, producer_id,
                              <int16_t> producer_epoch, <int32_t> base_sequence)
            self.busy = False
        memory.size = size
        return PyMemoryView_FromObject(memory)


def encode_one(bytearray buffer not None, key, value, headers=None, int64_t timestamp=-1):
    """Encode one record as a batch of its own at the start of `buffer`, which grows as needed, and return its size."""
    cdef Slice k
    cdef Slice v
    cdef bytes encoded = None
    cdef int64_t headers_size = 1, body, size
    cdef uint8_t *data
    cdef uint8_t *p
    if headers is not None:
        encoded = encode_headers(headers)
        headers_size = PyBytes_GET_SIZE(encoded)
    timestamp = checked_timestamp(timestamp)
    take(key, &k, "key")
    try:
        take(value, &v, "value")
    except:
        give_back(&k)
        raise
    try:
        body = klamm_body_size(0, 0, k.size, v.size, headers_size)
        size = KLAMM_HEADER + body + klamm_varint_size(body)
        if size > INT32_MAX:
            raise RecordTooLarge(f"a record of {size} bytes")
        if size > PyByteArray_GET_SIZE(buffer):
            PyByteArray_Resize(buffer, size + size // 4)
        data = <uint8_t *> PyByteArray_AS_STRING(buffer)
        p = klamm_put_record(data + KLAMM_HEADER, body, 0, 0, k.data, k.size, v.data, v.size)
        if encoded is None:
            p[0] = 0
        else:
            memcpy(p, PyBytes_AS_STRING(encoded), headers_size)
        finish_header(data, size, 1, 0, timestamp, timestamp, 0, -1, -1, -1)
        return size
    finally:
        give_back(&k)
        give_back(&v)
