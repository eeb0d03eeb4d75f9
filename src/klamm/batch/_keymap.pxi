# For compaction: the latest offset of each key, and batches with only the records that stay.

cdef extern from "keymap.h" nogil:
    enum:
        KLAMM_TRANSACTIONAL  # of record.h
        KLAMM_DELETE_HORIZON
        KLAMM_MAP_FULL
        KLAMM_BAD_RECORDS

    ctypedef struct klamm_entry:
        int64_t after

    ctypedef struct klamm_keymap:
        uint64_t seed[2]
        klamm_entry *entries
        uint64_t count
        uint64_t used
        uint64_t most

    ctypedef struct klamm_judgement:
        int64_t kept
        int64_t tombstones
        int64_t max_timestamp

    void klamm_siphash128(const uint64_t *seed, const uint8_t *p, size_t n, uint64_t *out)
    klamm_entry *klamm_new_entries(uint64_t count)
    void klamm_free_entries(klamm_entry *entries, uint64_t count)
    klamm_entry *klamm_entry_of(const klamm_keymap *map, const uint64_t *hash)
    int klamm_map_records(klamm_keymap *map, const klamm_batch *batch, const uint8_t *p, const uint8_t *end,
                          int64_t start, int64_t end_offset, int64_t *offset)
    int klamm_map_column(klamm_keymap *map, const int32_t *bounds, const uint8_t *data, int64_t size,
                         const int64_t *offsets, int64_t count, int64_t *offset)
    int klamm_judge_records(const klamm_keymap *map, const klamm_batch *batch, const uint8_t *p, const uint8_t *end,
                            int64_t end_offset, int expired, uint8_t *keep, klamm_judgement *out)
    uint8_t *klamm_copy_records(const klamm_batch *batch, const uint8_t *p, const uint8_t *end, const uint8_t *keep,
                                int64_t base_timestamp, uint8_t *to)


ENTRY_BYTES = 24
cdef enum:
    LEAST_ENTRIES = 64
    GROWTH = 15  # bytes that a record may grow by with another timestamp delta


def siphash128(bytes seed not None, data):
    """Return the hash of a key, for tests."""
    cdef View view = viewed(data)
    cdef uint64_t key[2]
    cdef uint64_t out[2]
    if len(seed) != 16:
        raise ValueError(f"a seed of {len(seed)} bytes, expected 16")
    memcpy(key, PyBytes_AS_STRING(seed), 16)
    klamm_siphash128(key, view.data, view.size, out)
    return PyBytes_FromStringAndSize(<const char *> out, 16)


cdef object not_readable(const klamm_batch *batch, Py_ssize_t position):
    return bad_records(batch, position, "its records do not follow the format")


@cython.final
cdef class KeyMap:
    """Keys, by a hash of 128 bits, and the latest offset of each. It takes at most `memory_bytes`, and never grows.

    `most` is how many keys there can be, if that is known: then it may be smaller. `seed` are 16 random bytes.
    `aborted` are (producer id, first offset, last offset): transactions whose records count as if they were not there.
    """

    cdef klamm_keymap map
    cdef dict aborted
    cdef bint busy
    cdef readonly bint full  # a key had no entry any more

    def __cinit__(self, memory_bytes, bytes seed not None, *, most=None, aborted=()):
        cdef uint64_t count
        if len(seed) != 16:
            raise ValueError(f"a seed of {len(seed)} bytes, expected 16")
        entries = max(memory_bytes // ENTRY_BYTES, LEAST_ENTRIES)
        if most is not None:
            entries = min(entries, max(most + most // 2, LEAST_ENTRIES))
        if entries >= 1 << 48:
            raise ValueError(f"memory_bytes is {memory_bytes}")
        count = entries
        memcpy(self.map.seed, PyBytes_AS_STRING(seed), 16)
        self.map.entries = klamm_new_entries(count)
        if self.map.entries == NULL:
            raise MemoryError
        self.map.count = count
        self.map.most = count - count // 4
        self.aborted = {}
        for producer_id, first, last in sorted(aborted):
            firsts, lasts = self.aborted.setdefault(producer_id, ([], []))
            firsts.append(first)
            lasts.append(last)

    def __dealloc__(self):
        klamm_free_entries(self.map.entries, self.map.count)

    def __len__(self):
        return self.map.used

    @property
    def memory_bytes(self):
        return self.map.count * ENTRY_BYTES

    def latest(self, key):
        """Return the latest offset of a key; None if the map does not have it."""
        cdef View view = viewed(key)
        cdef uint64_t hash[2]
        klamm_siphash128(self.map.seed, view.data, view.size, hash)
        after = klamm_entry_of(&self.map, hash).after
        return after - 1 if after else None

    cdef bint is_aborted(self, const klamm_batch *batch, const uint8_t *p) except -1:
        if not batch.attributes & KLAMM_TRANSACTIONAL or not self.aborted:
            return False
        found = self.aborted.get(<int64_t> klamm_get64(p + 43))
        if found is None:
            return False
        index = _bisect_right(found[0], batch.base_offset) - 1  # transactions of one producer follow one another
        return index >= 0 and batch.base_offset <= found[1][index]

    def add(self, data, int64_t start=0, int64_t end_offset=INT64_MAX):
        """Record the keys of whole, verified batches with start <= offset < end_offset; return where to continue.

        That is the end of `data`, or, once it is `full`, the first offset whose key has no entry. Control batches and
        aborted transactions are left out.
        """
        cdef View view = viewed(data)
        cdef Py_ssize_t size = view.size, position = 0, length
        cdef const uint8_t *p
        cdef const uint8_t *records
        cdef klamm_batch batch
        cdef int64_t offset = start, stopped = 0
        cdef int code
        cdef View unpacked
        if self.busy:
            raise_busy()
        while position < size and not self.full:
            p = view.data + position
            code = klamm_read_batch(p, size - position, &batch)
            if code != KLAMM_OK:
                raise damage(code, view.data, position, 0, False)
            if batch.base_offset >= end_offset:
                break
            if batch.next_offset > start and not batch.attributes & KLAMM_CONTROL and not self.is_aborted(&batch, p):
                records, length = p + KLAMM_HEADER, batch.size - KLAMM_HEADER
                if batch.attributes & KLAMM_CODEC_MASK:
                    unpacked = unpack(&batch, view, position)
                    records, length = unpacked.data, unpacked.size
                if length < NOGIL_SIZE:
                    code = klamm_map_records(&self.map, &batch, records, records + length, start, end_offset, &stopped)
                else:
                    self.busy = True
                    with nogil:
                        code = klamm_map_records(&self.map, &batch, records, records + length, start, end_offset, &stopped)
                    self.busy = False
                if code == KLAMM_BAD_RECORDS:
                    raise not_readable(&batch, position)
                if code == KLAMM_MAP_FULL:
                    self.full = True
                    return stopped
            offset = max(offset, min(batch.next_offset, end_offset))
            position += batch.size
        return offset

    def put(self, bounds, data, offsets):
        """Record a column of keys, as Arrow has it, and an offset for each: n + 1 bounds (int32) in `data`, n int64.

        False once it is `full`: a key had no entry.
        """
        cdef View edges = viewed(bounds), keys = viewed(data), known = viewed(offsets)
        cdef int64_t stopped = 0
        cdef int code
        if known.size % 8 or edges.size != 4 * (known.size // 8 + 1):
            raise ValueError(f"bounds of {edges.size} bytes for offsets of {known.size}")
        if self.busy:
            raise_busy()
        self.busy = True
        with nogil:
            code = klamm_map_column(&self.map, <const int32_t *> edges.data, keys.data, keys.size,
                                    <const int64_t *> known.data, known.size // 8, &stopped)
        self.busy = False
        if code == KLAMM_BAD_RECORDS:
            raise ValueError("bounds that lie outside of the keys, or an offset below 0")
        if code == KLAMM_MAP_FULL:
            self.full = True
        return not self.full


@cython.final
cdef class RecordFilter:
    """Removes from batches, in the order of the log from its start on, records that are not the latest of their key in
    `keys`.

    `end_offset` is how far the keys were noted: what comes after stays as it is. A batch that keeps a tombstone for the first
    time gets `horizon_ms` as its delete horizon, and loses it when `now_ms` is past that; so does a transaction's
    marker once none of its records is left. Everything else about a record stays, its offset and timestamp above all.

    One that does not begin at the start of the log is told in `open_ids` which producers have records before it and no
    marker after them yet. If that is not known: only the markers of `asked_ids` would have been sifted otherwise, and
    a producer that is not in `seen_ids` is as open after it as before.
    """

    cdef KeyMap keys
    cdef int64_t end_offset
    cdef int64_t now_ms
    cdef int64_t horizon_ms
    cdef readonly set open_ids   # producers with records here and no marker after them yet
    cdef readonly set seen_ids   # whose records that stay, or markers, came here
    cdef readonly set asked_ids  # whose marker came before any of those records
    cdef Memory flags
    cdef Memory out
    cdef Py_ssize_t used
    cdef readonly int64_t records       # that came
    cdef readonly int64_t kept          # of them
    cdef readonly int64_t last_horizon  # the latest one that is still to come; -1: none

    def __cinit__(self, KeyMap keys not None, *, int64_t end_offset, int64_t now_ms, int64_t horizon_ms, open_ids=()):
        self.keys, self.end_offset, self.now_ms, self.horizon_ms = keys, end_offset, now_ms, horizon_ms
        self.open_ids, self.seen_ids, self.asked_ids = set(open_ids), set(), set()
        self.flags = new_memory(4096)
        self.last_horizon = -1

    cdef int put(self, const uint8_t *p, Py_ssize_t size) except -1:
        self.make_room(size)
        memcpy(self.out.data + self.used, p, size)
        self.used += size
        return 0

    cdef int make_room(self, Py_ssize_t size) except -1:
        if self.used + size > self.out.capacity:
            self.out = grown_memory(self.out, self.used, max(self.used + size, 2 * self.out.capacity))
        return 0

    def filter(self, data):
        """Return the rest of whole, verified batches; None if they are unchanged."""
        cdef View view = viewed(data)
        cdef Py_ssize_t size = view.size, position = 0, same = 0
        cdef klamm_batch batch
        cdef const uint8_t *p
        cdef int code
        self.out, self.used = None, 0
        while position < size:
            p = view.data + position
            code = klamm_read_batch(p, size - position, &batch)
            if code != KLAMM_OK:
                raise damage(code, view.data, position, 0, False)
            if batch.base_offset >= self.end_offset:
                self.records += batch.record_count
                self.kept += batch.record_count
            else:
                code = self.filter_batch(view, position, same, &batch)
                if code:
                    same = position + batch.size
            position += batch.size
        if self.out is None:
            return None
        self.put(view.data + same, size - same)
        self.out.size = self.used
        out, self.out = self.out, None
        return PyMemoryView_FromObject(out)

    cdef int begin(self, View view, Py_ssize_t same, Py_ssize_t position) except -1:
        """Copy the unchanged bytes up to here: a change follows."""
        if self.out is None:
            self.out = new_memory(view.size + 64)
        return self.put(view.data + same, position - same)

    cdef int filter_batch(self, View view, Py_ssize_t position, Py_ssize_t same, const klamm_batch *batch) except -1:
        """Filter one batch. Return 1 if it changed or was removed: then everything before it and its rest are written.
        """
        cdef const uint8_t *p = view.data + position
        cdef const uint8_t *records = p + KLAMM_HEADER
        cdef Py_ssize_t length = batch.size - KLAMM_HEADER
        cdef int64_t producer_id = <int64_t> klamm_get64(p + 43)
        cdef bint control = batch.attributes & KLAMM_CONTROL != 0
        cdef bint marked = batch.attributes & KLAMM_DELETE_HORIZON != 0
        cdef bint expired = marked and batch.base_timestamp <= self.now_ms
        cdef bint late = marked or batch.next_offset > self.end_offset  # it gets no horizon now
        cdef klamm_judgement found
        cdef klamm_scan scan
        cdef View unpacked = None
        cdef int code
        self.records += batch.record_count
        if control:
            if producer_id not in self.seen_ids:
                self.seen_ids.add(producer_id)
                self.asked_ids.add(producer_id)
            if producer_id in self.open_ids:
                self.open_ids.discard(producer_id)
                self.kept += batch.record_count
                return 0
            if expired:
                return self.begin(view, same, position) + 1
            found.kept, found.tombstones, found.max_timestamp = batch.record_count, 1, batch.max_timestamp
        elif self.keys.is_aborted(batch, p):
            return self.begin(view, same, position) + 1
        if batch.attributes & KLAMM_CODEC_MASK:
            unpacked = unpack(batch, view, position)
            records, length = unpacked.data, unpacked.size
        if batch.record_count > length // KLAMM_SMALLEST_RECORD:
            raise not_readable(batch, position)
        if batch.record_count > self.flags.capacity:
            self.flags = new_memory(2 * batch.record_count)
        if control:
            memset(self.flags.data, 1, batch.record_count)
            if klamm_scan_records(batch, records, records + length, &scan) != KLAMM_MAPPED:
                raise not_readable(batch, position)
        else:
            if length < NOGIL_SIZE:
                code = klamm_judge_records(&self.keys.map, batch, records, records + length, self.end_offset, expired,
                                           self.flags.data, &found)
            else:
                with nogil:
                    code = klamm_judge_records(&self.keys.map, batch, records, records + length, self.end_offset, expired,
                                               self.flags.data, &found)
            if code != KLAMM_MAPPED:
                raise not_readable(batch, position)
            if batch.attributes & KLAMM_TRANSACTIONAL and found.kept:
                self.open_ids.add(producer_id)
                self.seen_ids.add(producer_id)
        self.kept += found.kept
        if not found.kept:  # repair leaves batches without records, too: they go as well
            return self.begin(view, same, position) + 1
        if length + GROWTH * found.kept > _codecs.MAX_DECODED_BYTES:
            late = True
        if found.tombstones:
            self.last_horizon = max(self.last_horizon, batch.base_timestamp if marked else self.horizon_ms)
        if found.kept == batch.record_count and (late or not found.tombstones):
            return 0
        self.begin(view, same, position)
        self.put_batch(p, batch, records, length, &found, found.tombstones > 0 and not late)
        return 1

    cdef int put_batch(self, const uint8_t *header, const klamm_batch *batch, const uint8_t *records,
                       Py_ssize_t length, const klamm_judgement *found, bint mark) except -1:
        """Write the header with what changed in it, and the records that stay, compressed as they were."""
        cdef int64_t base_timestamp = self.horizon_ms if mark else batch.base_timestamp
        cdef uint16_t attributes = batch.attributes | (KLAMM_DELETE_HORIZON if mark else 0)
        cdef Py_ssize_t size = length + (GROWTH * found.kept if mark else 0)
        cdef Memory plain
        cdef uint8_t *to
        cdef bytes packed
        self.make_room(KLAMM_HEADER + size)
        to = self.out.data + self.used + KLAMM_HEADER
        # A marker's record stays as it is, of a fixed size; its time is never used.
        size = klamm_copy_records(batch, records, records + length, self.flags.data,
                                  batch.base_timestamp if attributes & KLAMM_CONTROL else base_timestamp, to) - to
        if attributes & KLAMM_CODEC_MASK:
            plain = new_memory(size)
            memcpy(plain.data, to, size)
            plain.size = size
            packed = _codecs.compress(attributes & KLAMM_CODEC_MASK, memoryview(plain), None)
            if PyBytes_GET_SIZE(packed) < size:
                size = PyBytes_GET_SIZE(packed)
                memcpy(to, PyBytes_AS_STRING(packed), size)
            else:
                attributes &= ~KLAMM_CODEC_MASK
        to -= KLAMM_HEADER
        memcpy(to, header, KLAMM_HEADER)
        size += KLAMM_HEADER
        klamm_put32(to + 8, <uint32_t> (size - KLAMM_LENGTH_END))
        klamm_put16(to + 21, attributes)
        klamm_put64(to + 27, <uint64_t> base_timestamp)
        if not attributes & KLAMM_LOG_APPEND_TIME:
            klamm_put64(to + 35, <uint64_t> found.max_timestamp)
        klamm_put32(to + 57, <uint32_t> found.kept)
        klamm_put32(to + 17, klamm_crc32c(0, to + KLAMM_CRC_START, size - KLAMM_CRC_START))
        self.used += size
        return 0


def scan_records(data, Py_ssize_t limit=-1):
    """Read every record of one whole batch: (whether each has a key, smallest timestamp, largest timestamp).

    A timestamp of -1 counts as none; without any the two are 2**63 - 1 and -1. CorruptBatch if a record cannot be
    read, or if the records are longer than `limit` when decompressed.
    """
    cdef View view = viewed(data)
    cdef klamm_batch batch
    cdef klamm_scan scan
    cdef const uint8_t *records = view.data + KLAMM_HEADER
    cdef Py_ssize_t length
    cdef View unpacked
    cdef int code = klamm_read_batch(view.data, view.size, &batch)
    if code != KLAMM_OK:
        raise damage(code, view.data, 0, 0, False)
    length = batch.size - KLAMM_HEADER
    if batch.attributes & KLAMM_CODEC_MASK:
        unpacked = unpack(&batch, view, 0, limit)
        records, length = unpacked.data, unpacked.size
    if klamm_scan_records(&batch, records, records + length, &scan) != KLAMM_MAPPED:
        raise not_readable(&batch, 0)
    return bool(scan.is_keyed), scan.min_timestamp, scan.max_timestamp
