# Batches -> records, some at a time.

cdef enum:
    ON_BAD_RAISE = 0
    ON_BAD_SKIP = 1
    ON_BAD_RAW = 2
    RECORD_BYTES = 160                  # of memory that a Record takes, above its key and value

BAD_RAISE, BAD_SKIP, BAD_RAW = ON_BAD_RAISE, ON_BAD_SKIP, ON_BAD_RAW


@cython.final
cdef class Decoder:
    """Records of whole, verified batches of one partition, some at a time.

    Only the batch that is being read is uncompressed, and only the records that are taken become objects. Control
    batches are skipped.

        offset         of the next record, or less, where offsets are missing; behind the last one, the end of the data
        leader_epoch   of the records that were taken last; -1: none were
    """
    cdef Decoding how
    cdef int on_bad
    cdef View view
    cdef Py_ssize_t position            # in the data: behind the batch that is being read
    cdef int64_t end_offset
    cdef klamm_batch batch
    cdef bytes unpacked                 # its records, if it is compressed
    cdef const uint8_t *next            # its next record
    cdef const uint8_t *end
    cdef int64_t left                   # its records from there on
    cdef int64_t first                  # where `take` began
    cdef list offsets                   # of what it has taken, once one does not follow on
    cdef Py_ssize_t bytes_left          # that it may take
    cdef readonly int64_t offset
    cdef readonly int32_t leader_epoch

    def __init__(self, str topic not None, int32_t partition):
        self.how = Decoding.__new__(Decoding)
        self.how.topic, self.how.partition, self.how.upto = topic, partition, INT64_MAX
        self.leader_epoch = -1

    def use(self, int form, key_of, value_of, int on_bad=ON_BAD_RAISE):
        """What records are made into from now on. `on_bad`: BAD_RAISE, BAD_SKIP or BAD_RAW (both stay bytes)."""
        if form not in (RECORDS, TUPLES, VALUES) or not ON_BAD_RAISE <= on_bad <= ON_BAD_RAW:
            raise ValueError(f"form {form}, on_bad {on_bad}")
        self.how.form, self.how.key_of, self.how.value_of, self.on_bad = form, key_of, value_of, on_bad

    def seek(self, int64_t offset):
        """Drop the data; the next data begins at `offset`."""
        self.view, self.unpacked = None, None
        self.left = self.position = 0
        self.offset = self.end_offset = offset
        self.leader_epoch = -1

    def feed(self, data, int64_t end_offset):
        """Go on with the whole, verified batches of `data`, which end before `end_offset`. The data before is used up."""
        self.view = viewed(data)
        self.position, self.left, self.end_offset = 0, 0, end_offset
        self.skip()

    @property
    def has_more(self):
        """Whether there are batches with records that were not taken."""
        return self.left > 0 or self.view is not None

    cdef int skip(self) except -1:
        """Step over batches without records that are wanted; at the end of the data, let go of it."""
        cdef klamm_batch batch
        cdef int code
        while self.position < self.view.size:
            code = klamm_read_batch(self.view.data + self.position, self.view.size - self.position, &batch)
            if code != KLAMM_OK:
                return 0                            # enter() says what is wrong
            if batch.record_count and batch.next_offset > self.offset and not batch.attributes & KLAMM_CONTROL:
                return 0
            self.position += batch.size
            self.offset = max(self.offset, batch.next_offset)
        self.view = None
        self.offset = max(self.offset, self.end_offset)
        return 0

    cdef int enter(self) except -1:
        """Begin with the next batch, and check all of its records: a batch is returned whole, or not at all."""
        cdef klamm_batch batch
        cdef klamm_record r
        cdef const uint8_t *p = self.view.data + self.position
        cdef const uint8_t *end
        cdef bytes unpacked = None
        cdef int64_t i, last = -1
        cdef int code = klamm_read_batch(p, self.view.size - self.position, &batch)
        if code != KLAMM_OK:
            raise damage(code, self.view.data, self.position, 0, False)
        if batch.attributes & KLAMM_CODEC_MASK:
            unpacked = unpack(&batch, self.view, self.position)
            p = <const uint8_t *> PyBytes_AS_STRING(unpacked)
            end = p + PyBytes_GET_SIZE(unpacked)
        else:
            end = p + batch.size
            p += KLAMM_HEADER
        if batch.record_count > (end - p) // KLAMM_SMALLEST_RECORD:
            raise bad_records(&batch, self.position, f"{batch.record_count} records in {end - p} bytes")
        self.next = p
        for i in range(batch.record_count):
            p = klamm_read_record(p, end, &r)
            if p == NULL:
                raise bad_records(&batch, self.position, f"record {i} does not follow the format")
            if r.offset_delta <= last or r.offset_delta > batch.last_offset_delta:
                raise bad_records(&batch, self.position, f"record {i} has offset delta {r.offset_delta} after {last}")
            last = r.offset_delta
        if p != end:
            raise bad_records(&batch, self.position, f"{end - p} bytes after the last record")
        self.batch, self.unpacked, self.end, self.left = batch, unpacked, end, batch.record_count
        self.position += batch.size
        return 0

    def take(self, Py_ssize_t most, Py_ssize_t most_bytes=INT64_MAX):
        """Return the next records, at most `most`, all of one leader epoch, and their offsets.

        Records of compressed batches take about `most_bytes` of memory, or are one. The offsets are None if they follow on
        from `offset`, without a gap. What is wrong with a batch, or with a record by its serde, is raised when it comes
        first: what is good before it is returned by one call, and the next call raises.
        """
        cdef list out = []
        self.first, self.offsets, self.bytes_left = self.offset, None, most_bytes
        try:
            while len(out) < most and self.bytes_left > 0:
                if self.left == 0:
                    if self.view is None or (out and self.begins_epoch()):
                        break
                    if self.take_whole(most, out):
                        continue
                    self.enter()
                if self.how.key_of is None and self.how.value_of is None and self.unpacked is None:
                    self.take_plain(most, out)
                else:
                    self.take_of_batch(most, out)
                if self.left == 0:
                    self.offset = max(self.offset, self.batch.next_offset)
                    self.unpacked = None
                    self.skip()
        except Exception:
            if not out:
                raise
        offsets, self.offsets = self.offsets, None
        return out, offsets

    cdef bint take_whole(self, Py_ssize_t most, list out) except -1:
        """Take and check the next batch in one pass, if all of it is wanted, as it lies there: whether it was taken."""
        cdef klamm_batch batch
        cdef Decoding how = self.how
        cdef const uint8_t *p = self.view.data + self.position
        cdef Py_ssize_t before = len(out)
        if how.key_of is not None or how.value_of is not None or self.offsets is not None:
            return False
        if klamm_read_batch(p, self.view.size - self.position, &batch) != KLAMM_OK or batch.attributes & KLAMM_CODEC_MASK:
            return False
        if (batch.record_count > most - before or batch.base_offset != self.first + before
                or batch.record_count != batch.last_offset_delta + 1):
            return False
        try:
            how.batch_records(&batch, p + KLAMM_HEADER, batch.size - KLAMM_HEADER, self.position, out)
        except BaseException:
            del out[before:]
            raise
        self.batch = batch
        self.position += batch.size
        self.leader_epoch, self.offset = batch.leader_epoch, batch.next_offset
        self.skip()
        return True

    cdef bint begins_epoch(self):
        """Whether the next batch is of another leader epoch than the last one."""
        return <int32_t> klamm_get32(self.view.data + self.position + 12) != self.batch.leader_epoch

    cdef int take_plain(self, Py_ssize_t most, list out) except -1:
        """Like `take_of_batch`, for bytes as they lie there: nothing but memory can fail, and then all is read again."""
        cdef klamm_record r
        cdef const uint8_t *p = self.next
        cdef const uint8_t *end = self.end
        cdef int64_t left = self.left, room = most - len(out), low = self.offset - self.batch.base_offset, last = low - 1
        cdef Decoding how = self.how
        while left and room:
            p = klamm_read_record(p, end, &r)
            if p == NULL:
                raise AssertionError("records changed after they were checked")
            left -= 1
            if r.offset_delta >= low:
                last = r.offset_delta
                out.append(how.make(&self.batch, &r))
                room -= 1
                if self.offsets is not None:
                    self.offsets.append(self.batch.base_offset + last)
                elif self.batch.base_offset + last != self.first + len(out) - 1:
                    self.offsets = [*range(self.first, self.first + len(out) - 1), self.batch.base_offset + last]
        self.next, self.left = p, left
        self.offset, self.leader_epoch = self.batch.base_offset + last + 1, self.batch.leader_epoch
        return 0

    cdef int take_of_batch(self, Py_ssize_t most, list out) except -1:
        cdef klamm_record r
        cdef const uint8_t *p
        cdef int64_t offset
        while self.left and len(out) < most and self.bytes_left > 0:
            p = klamm_read_record(self.next, self.end, &r)
            if p == NULL:
                raise AssertionError("records changed after they were checked")
            offset = self.batch.base_offset + r.offset_delta
            if offset >= self.offset:
                if self.add(&r, offset, out):
                    if self.offsets is not None:
                        self.offsets.append(offset)
                    elif offset != self.first + len(out) - 1:
                        self.offsets = [*range(self.first, self.first + len(out) - 1), offset]
                self.leader_epoch = self.batch.leader_epoch
                self.offset = offset + 1
            if self.unpacked is not None:
                self.bytes_left -= (p - self.next) + RECORD_BYTES
            self.next = p
            self.left -= 1
        return 0

    cdef bint add(self, const klamm_record *r, int64_t offset, list out) except -1:
        """Add the record, if it is not to be skipped: whether it was added."""
        cdef Decoding how = self.how
        cdef object key_of = how.key_of, value_of = how.value_of
        try:
            out.append(how.make(&self.batch, r))
        except Exception as error:
            if self.on_bad == ON_BAD_SKIP:
                return False
            if self.on_bad == ON_BAD_RAISE:
                error.add_note(
                    f"while reading {how.topic}/{how.partition} at offset {offset}: its key or value does not suit the"
                    f" serde; seek to {offset + 1} to skip it, or say on_bad_record")
                raise
            how.key_of = how.value_of = None
            try:
                out.append(how.make(&self.batch, r))
            finally:
                how.key_of, how.value_of = key_of, value_of
        return True
