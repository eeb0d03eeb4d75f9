# Batches -> columns, laid out as Arrow wants them. Nothing of Arrow is imported: `finish` hands out plain buffers.

cdef enum:
    PADDING = 64  # bytes behind each data buffer that a copy may overshoot into

COLUMNS = frozenset({"offset", "timestamp", "timestamp_type", "leader_epoch", "key", "value", "headers"})


cdef struct Strings:  # a binary column being written: offsets[rows + 1], data[used], a bitmap from the first null on
    int32_t *offsets
    uint8_t *data
    uint8_t *validity   # NULL: no null yet
    int64_t used
    int64_t nulls


cdef struct Gather:  # what the loop without the GIL works on; a NULL pointer is a column that was not requested
    int64_t *offset
    int64_t *timestamp
    int32_t *timestamp_type
    int32_t *leader_epoch
    bint key
    bint value
    bint headers
    Strings keys
    Strings values
    int32_t *header_starts
    Strings names
    Strings header_values
    int64_t header_count
    int64_t header_room   # headers that fit the memory, with all the bytes that this batch may bring
    int64_t header_need   # headers of the record that did not fit
    int64_t rows
    int64_t max_rows
    int64_t max_bytes
    int64_t next_offset


cdef enum:
    GATHERED = 0
    GATHER_FULL = 1      # a bound is reached
    GATHER_BAD = 2       # the batch does not follow the format
    GATHER_NULL = 3      # a null needs a bitmap first
    GATHER_HEADERS = 4   # headers need more space first


cdef inline void put_string(Strings *s, int64_t row, const uint8_t *p, int64_t size, const uint8_t *end) noexcept nogil:
    """Write row `row`, for which there is space. A null's bit is already known to exist."""
    if size > 0:
        klamm_copy_loose(s.data + s.used, p, size, end)
        s.used += size
    elif size < 0 and s.validity != NULL:
        s.validity[row >> 3] &= ~(<uint8_t> 1 << (row & 7))
        s.nulls += 1
    s.offsets[row + 1] = <int32_t> s.used


cdef int gather_headers(Gather *g, const klamm_record *r) noexcept nogil:
    cdef klamm_record_header h
    cdef const uint8_t *p = r.headers
    cdef int64_t i
    if g.header_count + r.header_count > g.header_room:
        g.header_need = r.header_count
        return GATHER_HEADERS
    # Looked at before anything is written: a record is taken whole or not at all.
    for i in range(r.header_count):
        p = klamm_read_header(p, r.end, &h)
        if p == NULL:
            return GATHER_BAD
        if h.value_size < 0 and g.header_values.validity == NULL:
            return GATHER_NULL
    p = r.headers
    for i in range(r.header_count):
        p = klamm_read_header(p, r.end, &h)
        if p == NULL:
            return GATHER_BAD
        g.names.used += klamm_put_utf8(g.names.data + g.names.used, h.name, h.name_size)
        g.names.offsets[g.header_count + 1] = <int32_t> g.names.used
        put_string(&g.header_values, g.header_count, h.value, h.value_size, r.end)
        g.header_count += 1
    return GATHERED


cdef int gather(Gather *g, const klamm_batch *batch, const uint8_t **at, const uint8_t *end, int64_t *index,
                int64_t *last, int64_t from_offset, int64_t end_offset) noexcept nogil:
    """Take records of one batch from *at on: *index of them are behind us, the last one had offset delta *last."""
    cdef const uint8_t *p = at[0]
    cdef const uint8_t *after
    cdef klamm_record r
    cdef int64_t row = g.rows, offset, i
    cdef int code
    for i in range(index[0], batch.record_count):
        index[0] = i
        at[0] = p
        after = klamm_read_record(p, end, &r)
        if after == NULL or r.offset_delta <= last[0] or r.offset_delta > batch.last_offset_delta:
            return GATHER_BAD
        offset = batch.base_offset + r.offset_delta
        if offset >= from_offset:
            if offset >= end_offset:
                # Records beyond the requested range are not checked.
                return GATHERED
            if row >= g.max_rows or g.keys.used + g.values.used + g.names.used + g.header_values.used >= g.max_bytes:
                return GATHER_FULL
            if 3 * (after - p) > INT32_MAX - g.max_bytes:
                return GATHER_BAD  # offsets of 32 bits could not hold it
            if (g.key and r.key_size < 0 and g.keys.validity == NULL) or (
                    g.value and r.value_size < 0 and g.values.validity == NULL):
                return GATHER_NULL
            if g.headers:
                if r.header_count:
                    code = gather_headers(g, &r)
                    if code != GATHERED:
                        return code
                g.header_starts[row + 1] = <int32_t> g.header_count
            if g.key:
                put_string(&g.keys, row, r.key, r.key_size, end)
            if g.value:
                put_string(&g.values, row, r.value, r.value_size, end)
            if g.offset != NULL:
                g.offset[row] = offset
            if g.timestamp != NULL:
                g.timestamp[row] = klamm_timestamp(batch, &r)
            if g.timestamp_type != NULL:
                g.timestamp_type[row] = (batch.attributes & KLAMM_LOG_APPEND_TIME) != 0
            if g.leader_epoch != NULL:
                g.leader_epoch[row] = batch.leader_epoch
            row += 1
            g.rows = row
            g.next_offset = offset + 1
        last[0] = r.offset_delta
        p = after
    at[0] = p
    index[0] = batch.record_count
    return GATHERED if p == end else GATHER_BAD


cdef class StringMemory:
    """The memory behind one Strings."""

    cdef Memory offsets
    cdef Memory data
    cdef Memory validity

    cdef int make_room(self, Strings *s, int64_t rows, int64_t more_rows, int64_t more_bytes) except -1:
        self.offsets = roomy(self.offsets, (rows + 1) * 4, (more_rows + 1) * 4)
        self.data = roomy(self.data, s.used, more_bytes + PADDING)
        s.offsets = <int32_t *> self.offsets.data
        s.data = self.data.data
        if rows == 0:
            s.offsets[0] = 0
        if self.validity is not None:
            self.make_validity(s, rows, rows + more_rows)
        return 0

    cdef int make_validity(self, Strings *s, int64_t rows, int64_t most) except -1:
        """Make a bitmap for up to `most` rows, of which none from `rows` on is null."""
        cdef Py_ssize_t before = 0 if self.validity is None else self.validity.capacity
        cdef Py_ssize_t size = (most + 8) // 8
        if self.validity is None:
            self.validity = new_memory(size)
        elif size > before:
            self.validity = grown_memory(self.validity, before, max(size, 2 * before))
        if self.validity.capacity > before:
            memset(self.validity.data + before, 0xff, self.validity.capacity - before)
        s.validity = self.validity.data
        return 0

    cdef int forget(self, Strings *s, int64_t rows, int64_t used, int64_t nulls, int64_t end_row) except -1:
        """Go back to `rows` rows: later ones are invalid."""
        cdef int64_t row
        s.used = used
        s.nulls = nulls
        if s.validity != NULL:
            for row in range(rows, end_row):
                s.validity[row >> 3] |= <uint8_t> 1 << (row & 7)
        return 0

    cdef tuple hand_out(self, Strings *s, int64_t rows):
        """Return (null count, validity or None, offsets, data), and start again."""
        cdef tuple out
        self.offsets.size = (rows + 1) * 4
        self.data.size = s.used
        if s.nulls:
            self.validity.size = (rows + 7) // 8
        out = (s.nulls, self.validity if s.nulls else None, self.offsets, self.data)
        # Reserve as much as this time, so that the next run need not grow.
        self.offsets = new_memory(self.offsets.capacity)
        self.data = new_memory(min(self.data.capacity, s.used + s.used // 4 + PADDING))
        self.validity = None
        memset(s, 0, sizeof(Strings))
        s.offsets = <int32_t *> self.offsets.data
        s.data = self.data.data
        s.offsets[0] = 0
        return out


cdef Memory roomy(Memory memory, int64_t used, int64_t more):
    if memory is None:
        return new_memory(more)
    if used + more > memory.capacity:
        return grown_memory(memory, used, max(used + more, 2 * memory.capacity))
    return memory


@cython.final
cdef class Columns:
    """Gathers records of many batches into Arrow buffers, up to `max_rows` rows or `max_bytes` bytes of data."""

    cdef Gather g
    cdef Memory offset
    cdef Memory timestamp
    cdef Memory timestamp_type
    cdef Memory leader_epoch
    cdef Memory header_starts
    cdef StringMemory keys
    cdef StringMemory values
    cdef StringMemory names
    cdef StringMemory header_values
    cdef frozenset wanted
    cdef bint busy  # a thread works on it without the GIL

    def __init__(self, columns=COLUMNS, *, int64_t max_rows=1 << 16, int64_t max_bytes=1 << 24):
        self.wanted = frozenset(columns)
        if not self.wanted <= COLUMNS:
            raise ValueError(f"no column {', '.join(sorted(map(repr, self.wanted - COLUMNS)))}")
        if not 1 <= max_rows <= 1 << 28:
            raise ValueError(f"max_rows is {max_rows}")
        if not 1 <= max_bytes <= 1 << 30:
            raise ValueError(f"max_bytes is {max_bytes}, expected at most 1 GiB: Arrow's binary has offsets of 32 bits")
        self.g.max_rows = max_rows
        self.g.max_bytes = max_bytes
        self.g.key = "key" in self.wanted
        self.g.value = "value" in self.wanted
        self.g.headers = "headers" in self.wanted
        self.keys = StringMemory()
        self.values = StringMemory()
        self.names = StringMemory()
        self.header_values = StringMemory()

    @property
    def rows(self):
        return self.g.rows

    @property
    def bytes(self):
        """Data bytes gathered: keys, values and headers."""
        return self.g.keys.used + self.g.values.used + self.g.names.used + self.g.header_values.used

    @property
    def full(self):
        return self.g.rows >= self.g.max_rows or self.bytes >= self.g.max_bytes

    @property
    def next_offset(self):
        """Where to go on after the last `add`."""
        return self.g.next_offset

    cdef int make_room(self, int64_t more_rows, int64_t more_bytes) except -1:
        cdef int64_t rows = self.g.rows
        if "offset" in self.wanted:
            self.offset = roomy(self.offset, rows * 8, more_rows * 8)
            self.g.offset = <int64_t *> self.offset.data
        if "timestamp" in self.wanted:
            self.timestamp = roomy(self.timestamp, rows * 8, more_rows * 8)
            self.g.timestamp = <int64_t *> self.timestamp.data
        if "timestamp_type" in self.wanted:
            self.timestamp_type = roomy(self.timestamp_type, rows * 4, more_rows * 4)
            self.g.timestamp_type = <int32_t *> self.timestamp_type.data
        if "leader_epoch" in self.wanted:
            self.leader_epoch = roomy(self.leader_epoch, rows * 4, more_rows * 4)
            self.g.leader_epoch = <int32_t *> self.leader_epoch.data
        if self.g.key:
            self.keys.make_room(&self.g.keys, rows, more_rows, more_bytes)
        if self.g.value:
            self.values.make_room(&self.g.values, rows, more_rows, more_bytes)
        if self.g.headers:
            self.header_starts = roomy(self.header_starts, (rows + 1) * 4, (more_rows + 1) * 4)
            self.g.header_starts = <int32_t *> self.header_starts.data
            if rows == 0:
                self.g.header_starts[0] = 0
            # Room for headers is made when a record of this batch has some.
            self.g.header_room = self.g.header_count
        return 0

    cdef int make_header_room(self, int64_t more_headers, int64_t more_bytes) except -1:
        """Make space for so many headers, and for all bytes that are left of the batch: a name may grow threefold."""
        cdef int64_t count = self.g.header_count
        self.names.make_room(&self.g.names, count, more_headers, 3 * more_bytes)
        self.header_values.make_room(&self.g.header_values, count, more_headers, more_bytes)
        self.g.header_room = count + more_headers
        return 0

    cdef int batch_rows(self, const klamm_batch *batch, const uint8_t *p, Py_ssize_t size, Py_ssize_t position,
                        int64_t from_offset, int64_t end_offset) except -1:
        """Gather one batch whose uncompressed records lie at p. Return GATHER_FULL when a bound stopped it."""
        cdef const uint8_t *end = p + size
        cdef int64_t index = 0, last = -1, most
        cdef int64_t rows = self.g.rows, headers = self.g.header_count, next_offset = self.g.next_offset
        cdef Strings keys = self.g.keys
        cdef Strings values = self.g.values
        cdef Strings names = self.g.names
        cdef Strings header_values = self.g.header_values
        cdef int code
        if batch.record_count > size // KLAMM_SMALLEST_RECORD:
            raise bad_records(batch, position, f"{batch.record_count} records in {size} bytes")
        most = min(<int64_t> batch.record_count, self.g.max_rows - self.g.rows)
        self.make_room(most, size)
        while True:
            if size < NOGIL_SIZE:
                code = gather(&self.g, batch, &p, end, &index, &last, from_offset, end_offset)
            else:
                self.busy = True
                with nogil:
                    code = gather(&self.g, batch, &p, end, &index, &last, from_offset, end_offset)
                self.busy = False
            if code == GATHERED or code == GATHER_FULL:
                return code
            if code == GATHER_NULL:
                self.keys.make_validity(&self.g.keys, self.g.rows, rows + most)
                self.values.make_validity(&self.g.values, self.g.rows, rows + most)
                if self.g.headers:
                    self.header_values.make_validity(&self.g.header_values, self.g.header_count, self.g.header_room)
            elif code == GATHER_HEADERS:
                self.make_header_room(max(self.g.header_need, self.g.header_count, 256), end - p)
            else:
                self.keys.forget(&self.g.keys, rows, keys.used, keys.nulls, self.g.rows)
                self.values.forget(&self.g.values, rows, values.used, values.nulls, self.g.rows)
                self.names.forget(&self.g.names, headers, names.used, names.nulls, self.g.header_count)
                self.header_values.forget(&self.g.header_values, headers, header_values.used, header_values.nulls,
                                          self.g.header_count)
                self.g.rows = rows
                self.g.header_count = headers
                self.g.next_offset = next_offset
                raise bad_records(batch, position, f"record {index} does not follow the format"
                                  if index < batch.record_count else f"{end - p} bytes after the last record")

    def add(self, data, int64_t from_offset=0, int64_t end_offset=INT64_MAX):
        """Take records of whole, verified batches, those with from_offset <= offset < end_offset, and return how many.

        It ends early when it is `full`: `finish`, and go on with the same data from `next_offset`. After CorruptBatch
        it holds the rows of the batches before, and `next_offset` is where the bad batch starts or was entered.
        """
        cdef View view = viewed(data)
        cdef Py_ssize_t size = view.size, position = 0
        cdef const uint8_t *start = view.data
        cdef const uint8_t *p
        cdef klamm_batch batch
        cdef int code
        cdef int64_t before = self.g.rows
        cdef View unpacked
        if self.busy:
            raise_busy()
        self.g.next_offset = from_offset
        while position < size:
            p = start + position
            code = klamm_read_batch(p, size - position, &batch)
            if code != KLAMM_OK:
                raise damage(code, start, position, 0, False)
            if batch.base_offset >= end_offset:
                self.g.next_offset = end_offset  # offsets before it may be missing
                break
            if batch.next_offset > from_offset:
                if not batch.attributes & KLAMM_CONTROL:
                    if self.full:
                        return self.g.rows - before
                    if batch.attributes & KLAMM_CODEC_MASK:
                        unpacked = unpack(&batch, view, position)
                        code = self.batch_rows(&batch, unpacked.data, unpacked.size, position, from_offset, end_offset)
                    else:
                        code = self.batch_rows(&batch, p + KLAMM_HEADER, batch.size - KLAMM_HEADER, position,
                                               from_offset, end_offset)
                    if code == GATHER_FULL:
                        return self.g.rows - before
                self.g.next_offset = min(batch.next_offset, end_offset)
            position += batch.size
        return self.g.rows - before

    def finish(self):
        """Return (rows, buffers by column) of what was gathered, without a copy; the next `add` starts again.

        offset, timestamp   int64               timestamp_type, leader_epoch   int32
        key, value          (null count, validity bitmap or None, int32 offsets, data)
        headers             (int32 offsets, header count, names, values), the last two as a key is
        """
        cdef int64_t rows = self.g.rows, headers = self.g.header_count
        cdef dict out = {}
        if self.busy:
            raise_busy()
        self.make_room(0, 0)
        if self.g.headers:
            self.make_header_room(0, 0)
        if self.offset is not None:
            self.offset.size = rows * 8
            out["offset"], self.offset = self.offset, new_memory(self.offset.capacity)
        if self.timestamp is not None:
            self.timestamp.size = rows * 8
            out["timestamp"], self.timestamp = self.timestamp, new_memory(self.timestamp.capacity)
        if self.timestamp_type is not None:
            self.timestamp_type.size = rows * 4
            out["timestamp_type"], self.timestamp_type = self.timestamp_type, new_memory(self.timestamp_type.capacity)
        if self.leader_epoch is not None:
            self.leader_epoch.size = rows * 4
            out["leader_epoch"], self.leader_epoch = self.leader_epoch, new_memory(self.leader_epoch.capacity)
        if self.g.key:
            out["key"] = self.keys.hand_out(&self.g.keys, rows)
        if self.g.value:
            out["value"] = self.values.hand_out(&self.g.values, rows)
        if self.g.headers:
            self.header_starts.size = (rows + 1) * 4
            out["headers"] = (self.header_starts, headers, self.names.hand_out(&self.g.names, headers),
                              self.header_values.hand_out(&self.g.header_values, headers))
            self.header_starts = new_memory(self.header_starts.capacity)
        self.g.rows = 0
        self.g.header_count = 0
        self.g.header_room = 0
        return rows, out
