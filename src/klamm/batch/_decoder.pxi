# Batches -> records: all of them, or some at a time.

cdef enum:
    ON_BAD_RAISE = 0
    ON_BAD_SKIP = 1
    ON_BAD_RAW = 2
    RECORD_BYTES = 160                  # of memory that a Record takes, above its key and value

BAD_RAISE, BAD_SKIP, BAD_RAW = ON_BAD_RAISE, ON_BAD_SKIP, ON_BAD_RAW


@cython.final
cdef class Decoder:
    """Records of whole, verified batches of one partition, some at a time.

    A batch is returned whole, or not at all: the first call that takes some of its records checks all of them. Only the
    batch that is being read is uncompressed, and only records that are taken become objects. Control batches are
    skipped.

        offset         of the next record, or less, where offsets are missing; behind the last one, the end of the data
        leader_epoch   of the records that were taken last; -1: none were

    While a record is made, by a function of its serde, say, every call is refused: RuntimeError.
    """
    cdef str topic
    cdef int32_t partition
    cdef object name                    # both, as a TopicPartition
    cdef int form
    cdef int on_bad
    cdef object key_of
    cdef object value_of
    cdef bint is_taking                 # memory that it reads must not be given back
    cdef View view
    # in the data: of the next batch; of the one that is being read, until that is checked
    cdef Py_ssize_t position          
    cdef int64_t begin_offset           # records of the data before it are left out
    cdef int64_t end_offset
    cdef klamm_batch batch
    cdef View unpacked                  # its records, if it is compressed
    cdef object memory                  # what they may be in; None: memory of their own
    cdef const uint8_t *next            # its next record
    cdef const uint8_t *end
    cdef int64_t left                   # its records from there on
    cdef int64_t last_delta             # of the record before
    cdef bint is_checked
    cdef int64_t first                  # where `take` began
    cdef list offsets                   # of what it has taken, once one does not follow on
    cdef Py_ssize_t bytes_left          # that it may take
    cdef readonly int64_t offset
    cdef readonly int32_t leader_epoch

    def __init__(self, str topic not None, int32_t partition, memory=None):
        self.check_idle()
        self.topic, self.partition, self.name = topic, partition, _TopicPartition(topic, partition)
        self.memory, self.leader_epoch = memory, -1

    cdef int check_idle(self) except -1:
        if self.is_taking:
            raise RuntimeError("a decoder was used while it makes a record")
        return 0

    def use(self, int form, key_of, value_of, int on_bad=ON_BAD_RAISE):
        """Set the form of records from now on. `on_bad`: BAD_RAISE, BAD_SKIP or BAD_RAW (both stay bytes)."""
        self.check_idle()
        if form not in (RECORDS, TUPLES, VALUES) or not ON_BAD_RAISE <= on_bad <= ON_BAD_RAW:
            raise ValueError(f"form {form}, on_bad {on_bad}")
        self.form, self.key_of, self.value_of, self.on_bad = form, key_of, value_of, on_bad

    def seek(self, int64_t offset):
        """Drop the data; the next data begins at `offset`."""
        self.check_idle()
        self.view, self.unpacked = None, None
        self.left = self.position = 0
        self.offset = self.end_offset = offset
        self.leader_epoch = -1
        self.release()

    def release(self):
        """Give memory back that is held for the next batch, if none is being read."""
        if self.memory is not None and self.unpacked is None:
            self.memory.release()

    def feed(self, data, int64_t end_offset):
        """Go on with the whole, verified batches of `data`, which end before `end_offset`. The data before is used
        up.
        """
        self.check_idle()
        self.view, self.unpacked = viewed(data), None
        self.position, self.left, self.begin_offset, self.end_offset = 0, 0, self.offset, end_offset
        self.skip()

    @property
    def has_more(self):
        """Whether there are batches with records that were not taken."""
        return self.left > 0 or self.view is not None

    cdef int skip(self) except -1:
        """Skip batches without requested records; at the end of the data, release it."""
        cdef klamm_batch batch
        while self.position < self.view.size:
            if klamm_read_batch(self.view.data + self.position, self.view.size - self.position, &batch) != KLAMM_OK:
                return 0                            # enter() reports the error
            if (batch.next_offset > self.begin_offset and not batch.attributes & KLAMM_CONTROL
                    and (batch.record_count or batch.size > KLAMM_HEADER)):
                return 0
            self.position += batch.size
            self.offset = max(self.offset, batch.next_offset)
        self.view = None
        self.offset = max(self.offset, self.end_offset)
        return 0

    cdef int enter(self) except -1:
        """Begin with the next batch."""
        cdef klamm_batch batch
        cdef const uint8_t *p = self.view.data + self.position
        cdef const uint8_t *end
        cdef View unpacked = None
        cdef int code = klamm_read_batch(p, self.view.size - self.position, &batch)
        if code != KLAMM_OK:
            raise damage(code, self.view.data, self.position, 0, False)
        if batch.attributes & KLAMM_CODEC_MASK:
            unpacked = unpack(&batch, self.view, self.position, -1, self.memory)
            p = unpacked.data
            end = p + unpacked.size
        else:
            end = p + batch.size
            p += KLAMM_HEADER
        if batch.record_count > (end - p) // KLAMM_SMALLEST_RECORD:
            raise bad_records(&batch, self.position, f"{batch.record_count} records in {end - p} bytes")
        self.batch, self.unpacked, self.next, self.end, self.left = batch, unpacked, p, end, batch.record_count
        self.last_delta, self.is_checked = -1, False
        return 0

    cdef int check_rest(self) except -1:
        """Check the records of the batch from the next one on, unless that was done."""
        cdef klamm_record r
        cdef const uint8_t *p = self.next
        cdef int64_t i, last = self.last_delta
        if self.is_checked:
            return 0
        for i in range(self.batch.record_count - self.left, self.batch.record_count):
            p = klamm_read_record(p, self.end, &r)
            if p == NULL:
                raise bad_records(&self.batch, self.position, f"record {i} does not follow the format")
            if r.offset_delta <= last or r.offset_delta > self.batch.last_offset_delta:
                raise bad_records(&self.batch, self.position, f"record {i} has offset delta {r.offset_delta} after {last}")
            last = r.offset_delta
        if p != self.end:
            raise bad_records(&self.batch, self.position, f"{self.end - p} bytes after the last record")
        self.position += self.batch.size
        self.is_checked = True
        return 0

    def take(self, Records before not None, Py_ssize_t most, Py_ssize_t most_bytes=INT64_MAX):
        """Return the next records, at most `most`, all of one leader epoch. They follow on from the end of `before`.

        Records of compressed batches take about `most_bytes` of memory, or are one. What is wrong with a batch, or with
        a record by its serde, is raised when it comes first: what is good before it is returned by one call, and the
        next call raises.
        """
        cdef Records found = Records.__new__(Records)
        cdef list out = <list> list.__new__(_Batch)
        found.records = out
        self.begin(most_bytes)
        try:
            while len(out) < most and self.bytes_left > 0 and (self.left or self.view is not None):
                if self.left == 0 and out and self.begins_epoch():
                    break
                self.take_of_batch(most, out)
        except Exception:
            if not out:
                raise
        finally:
            self.is_taking = False
        found.partition, found.size, found.offsets = self.name, len(out), self.offsets
        found.begin, found.epoch_before = before.end, before.epoch
        found.end, found.epoch = self.offset, self.leader_epoch
        if found.offsets is not None:
            del found.offsets[found.size:]                          # of a record that was not added in the end
        elif self.first != found.begin:                             # markers come first
            found.offsets = range(self.first, self.first + found.size)
        self.offsets = None
        return found

    cdef list take_all(self):
        """Return all records; raise if anything is wrong with one of them."""
        cdef list out = []
        self.begin(INT64_MAX)
        try:
            while self.left or self.view is not None:
                self.take_of_batch(INT64_MAX, out)
        finally:
            self.is_taking = False
        return out

    cdef int begin(self, Py_ssize_t most_bytes) except -1:
        self.check_idle()
        self.first, self.offsets, self.bytes_left = self.offset, None, most_bytes
        self.is_taking = True
        return 0

    cdef bint begins_epoch(self):
        """Return whether the next batch has another leader epoch than the last. `enter` reports a truncated header."""
        if self.view.size - self.position < KLAMM_HEADER:
            return False
        return <int32_t> klamm_get32(self.view.data + self.position + 12) != self.batch.leader_epoch

    cdef int take_of_batch(self, Py_ssize_t most, list out) except -1:
        """Take records of the batch that is being read, or else of the next one, until `out` has `most`."""
        cdef int64_t offset = self.offset
        cdef int32_t leader_epoch = self.leader_epoch
        cdef list offsets = self.offsets
        cdef Py_ssize_t before = len(out)
        if self.left == 0:
            self.enter()
        try:
            self.make_records(most, out)
        except Exception as error:
            self.drop_unless_whole(offset, leader_epoch, offsets, out, before)
            self.take_bad(error, out)
        else:
            self.drop_unless_whole(offset, leader_epoch, offsets, out, before)
        if self.left == 0:
            self.offset = max(self.offset, self.batch.next_offset)
            self.unpacked = None
            self.skip()
        return 0

    cdef int drop_unless_whole(self, int64_t offset, int32_t leader_epoch, list offsets, list out,
                               Py_ssize_t before) except -1:
        """Check the rest of the batch. If it is bad, take back its records and raise."""
        try:
            self.check_rest()
        except BaseException:
            del out[before:]
            if offsets is not None:
                del offsets[before:]
            self.offset, self.leader_epoch, self.offsets = offset, leader_epoch, offsets
            self.left, self.unpacked = 0, None
            raise
        return 0

    cdef int make_records(self, Py_ssize_t most, list out) except -1:
        """Make the next records of the batch, until `out` has `most`, or one is bad, or cannot be made: that is the
        next.
        """
        cdef klamm_record r
        cdef const uint8_t *p = self.next
        cdef const uint8_t *following
        cdef const uint8_t *end = self.end
        cdef int64_t left = self.left, last = self.last_delta, low = self.begin_offset - self.batch.base_offset
        cdef int64_t after = low
        cdef int64_t expected = self.first - self.batch.base_offset + len(out), highest = self.batch.last_offset_delta
        cdef Py_ssize_t room = most - len(out), bytes_left = self.bytes_left
        cdef bint is_bounded = self.unpacked is not None
        try:
            while left and room > 0 and bytes_left > 0:
                following = klamm_read_record(p, end, &r)
                if following == NULL or r.offset_delta <= last or r.offset_delta > highest:
                    if self.is_checked:
                        raise AssertionError("records changed after they were checked")
                    break
                if r.offset_delta >= low:
                    record = self.make(&r)
                    if r.offset_delta != expected or self.offsets is not None:
                        self.add_offset(self.batch.base_offset + r.offset_delta, len(out))
                    out.append(record)
                    after = r.offset_delta + 1
                    expected += 1
                    room -= 1
                if is_bounded:
                    bytes_left -= (following - p) + RECORD_BYTES
                p, last = following, r.offset_delta
                left -= 1
        finally:
            self.next, self.left, self.last_delta, self.bytes_left = p, left, last, bytes_left
            if after > low:
                self.offset, self.leader_epoch = self.batch.base_offset + after, self.batch.leader_epoch
        return 0

    cdef int add_offset(self, int64_t offset, Py_ssize_t index) except -1:
        """Record that the record at `index` has `offset`, because it, or one before it, does not follow on."""
        if self.offsets is None:
            self.offsets = [*range(self.first, self.first + index)]
        self.offsets.append(offset)
        return 0

    cdef int take_bad(self, error, list out) except -1:
        """Apply `on_bad` to the next record, which could not be created."""
        cdef klamm_record r
        cdef object key_of = self.key_of, value_of = self.value_of
        cdef const uint8_t *following = klamm_read_record(self.next, self.end, &r)
        if (key_of is None and value_of is None) or isinstance(error, MemoryError) or following == NULL:
            raise error
        cdef int64_t offset = self.batch.base_offset + r.offset_delta
        if self.on_bad == ON_BAD_RAISE:
            error.add_note(
                f"while reading {self.topic}/{self.partition} at offset {offset}: its key or value does not suit the"
                f" serde; seek to {offset + 1} to skip it, or say on_bad_record")
            raise error
        if self.on_bad == ON_BAD_RAW:
            self.key_of = self.value_of = None
            try:
                record = self.make(&r)
            finally:
                self.key_of, self.value_of = key_of, value_of
            if self.offsets is not None or offset != self.first + len(out):
                self.add_offset(offset, len(out))
            out.append(record)
        if self.unpacked is not None:
            self.bytes_left -= (following - self.next) + RECORD_BYTES
        self.next, self.last_delta = following, r.offset_delta
        self.offset, self.leader_epoch = offset + 1, self.batch.leader_epoch
        self.left -= 1
        return 0

    cdef object make(self, const klamm_record *r):
        cdef Record record
        cdef tuple pair
        cdef object key, value
        value = bytes_or_none(r.value, r.value_size)
        if self.value_of is not None and value is not None:
            value = self.value_of(value)
        if self.form == FORM_VALUES:
            return value
        key = bytes_or_none(r.key, r.key_size)
        if self.key_of is not None and key is not None:
            key = self.key_of(key)
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
        record.leader_epoch = self.batch.leader_epoch
        record.offset = self.batch.base_offset + r.offset_delta
        record.timestamp = klamm_timestamp(&self.batch, r)
        record.key = key
        record.value = value
        record.headers = no_headers if r.header_count == 0 else read_headers(r)
        return record


def decode(data, *, int form=RECORDS, int64_t from_offset=0, str topic="", int32_t partition=0):
    """Return the records of whole, verified batches, from `from_offset` on.

    `form` is RECORDS, TUPLES ((key, value)) or VALUES. Control batches are skipped. A batch that does not follow the
    format raises CorruptBatch with its position and the next_offset to go on with.
    """
    cdef Decoder decoder = Decoder(topic, partition)
    decoder.use(form, None, None)
    decoder.seek(from_offset)
    decoder.feed(data, from_offset)
    return decoder.take_all()
