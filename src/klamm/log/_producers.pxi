"""The table of producer ids: the last five batches of each, so that a repeated batch is recognised.

    producers     mapped, grown by whole chunks, never shrunk or renamed
      header      magic, version, number of chunks, seq
      chunk       64 ids (id + 1; 0: free), then their 64 entries

An entry's places are a ring: place[n % 5] is filled, then `n` is stored; a new producer's id is stored last of all. So
a writer killed in here has either done it or not, and doing it again is harmless. The table changes after the commit
of the batch: until then `redo_seq` in the slot names that commit, and the next writer makes up for a dead one.

`seq` grows with every change by an append, here and then in the slot (`producers_seq`). If the two differ, the table is
not the one that belongs to the log: the file was removed, or an older one put in its place. It is then made again from
the snapshot and the log, and a process that still maps the old file maps the new one.

`first_open_offset` is where the producer's open transaction begins in this log, -1 if it has none. Each transaction has
an epoch of its own, and its marker bears the next one: so a marker that comes late, or again, finds its epoch taken and
is not written, and a batch that comes late, after the marker, is fenced.

Producers over the wire that do not know this yet have one epoch for all their transactions. Their marker bears that
same epoch, ends what is open of exactly it, and is not written where nothing is; their sequences go on after it, so it
takes the last sequence over into its place. Nothing here tells a late one from one in time: whoever writes it knows
(store/wire_transactions.py). The two kinds are told apart by their epochs alone: one has the epoch of what was last in
the table, the other a newer one.
"""

cdef extern from *:
    """
    typedef struct { int64_t base_offset; int32_t first_sequence, last_sequence; int16_t epoch; int16_t unused[3]; } Place;
    typedef struct { uint64_t n; int64_t first_open_offset, last_seen_ms; Place places[5]; } Entry;
    typedef struct { int64_t ids[64]; Entry entries[64]; } Chunk;
    typedef struct { char magic[8]; uint32_t version, chunks; uint64_t seq, unused[5]; } TableHeader;
    typedef struct { TableHeader header; Chunk chunks[]; } Table;
    _Static_assert(sizeof(Place) == 24 && sizeof(Entry) == 144 && sizeof(TableHeader) == 64, "a file format");
    """
    ctypedef struct Place:
        int64_t base_offset
        int32_t first_sequence, last_sequence
        int16_t epoch
    ctypedef struct Entry:
        uint64_t n
        int64_t first_open_offset, last_seen_ms
        Place places[5]
    ctypedef struct Chunk:
        int64_t ids[64]
        Entry entries[64]
    ctypedef struct TableHeader:
        char magic[8]
        uint32_t version, chunks
        uint64_t seq
    ctypedef struct Table:
        TableHeader header
        Chunk chunks[1]

cdef enum:
    PLACES = 5
    CHUNK_IDS = 64
    TABLE_ROOM = 64 << 20           # of address space: some 440,000 producers a partition
    R_IN_ORDER = -20000


cdef int64_t *table_id(Table *table, int64_t i) noexcept nogil:
    return &table.chunks[i // CHUNK_IDS].ids[i % CHUNK_IDS]


cdef Entry *table_entry(Table *table, int64_t i) noexcept nogil:
    return &table.chunks[i // CHUNK_IDS].entries[i % CHUNK_IDS]


cdef int64_t find_producer(Writer *w, int64_t producer_id) noexcept nogil:
    """The index of its entry, or -1. The last one found is tried first."""
    cdef int64_t i, count = <int64_t>w.table.header.chunks * CHUNK_IDS
    if 0 <= w.table_hint < count and table_id(w.table, w.table_hint)[0] == producer_id + 1:
        return w.table_hint
    for i in range(count):
        if table_id(w.table, i)[0] == producer_id + 1:
            w.table_hint = i
            return i
    return -1


cdef int64_t find_room(Writer *w) noexcept nogil:
    """The index of an entry that is free or long expired, or -1."""
    cdef int64_t i, count = <int64_t>w.table.header.chunks * CHUNK_IDS, now = store_clock_ms(w)
    cdef Entry *entry
    for i in range(count):
        if table_id(w.table, i)[0] == 0:
            return i
    for i in range(count):
        entry = table_entry(w.table, i)
        if entry.first_open_offset < 0 and 0 < w.producer_expiration_ms < now - entry.last_seen_ms:
            return i
    return -1


cdef int32_t last_sequence_of(const unsigned char *batch) noexcept nogil:
    """Sequences wrap from 2^31 - 1 to 0."""
    return <int32_t>((<int64_t>be32(batch + BASE_SEQUENCE_AT) + be32(batch + LAST_DELTA_AT)) & 0x7fffffff)


cdef int64_t check_sequence(Writer *w, const unsigned char *batch) noexcept nogil:
    """R_IN_ORDER, the offset at which this very batch already lies, or why it is refused."""
    cdef int32_t first = <int32_t>be32(batch + BASE_SEQUENCE_AT), last = last_sequence_of(batch)
    cdef int16_t epoch = <int16_t>be16(batch + PRODUCER_EPOCH_AT)
    cdef int64_t i = find_producer(w, <int64_t>be64(batch + PRODUCER_ID_AT))
    cdef uint64_t back
    cdef Entry *entry
    cdef Place *place
    if first < -1:
        return R_OUT_OF_ORDER
    if i < 0:
        return R_IN_ORDER if find_room(w) >= 0 else R_NEEDS_PRODUCERS
    entry = table_entry(w.table, i)
    place = &entry.places[(entry.n - 1) % PLACES]
    if epoch < place.epoch:
        return R_FENCED
    if epoch > place.epoch:                             # an open transaction of the old one is to be ended first
        return R_IN_ORDER if first <= 0 and entry.first_open_offset < 0 else R_OUT_OF_ORDER
    if first < 0 or first == ((<int64_t>place.last_sequence + 1) & 0x7fffffff):
        return R_IN_ORDER
    for back in range(1, min(entry.n, <uint64_t>PLACES) + 1):
        place = &entry.places[(entry.n - back) % PLACES]
        if place.epoch == epoch and place.first_sequence == first and place.last_sequence == last:
            w.duplicate = 1
            return place.base_offset
    return R_OUT_OF_ORDER


cdef int64_t check_marker(Writer *w, const unsigned char *batch, int same_epoch) noexcept nogil:
    """R_IN_ORDER if it is to be written: its producer has nothing of this epoch yet, or nothing at all.

    It ends the transaction of the epoch before, and no older one: that has to get its own marker first. One of the
    `same_epoch` ends what is open of that, and is not written if nothing is.
    """
    cdef int64_t i = find_producer(w, <int64_t>be64(batch + PRODUCER_ID_AT))
    cdef int16_t epoch = <int16_t>be16(batch + PRODUCER_EPOCH_AT), last
    cdef Entry *entry
    if i < 0:
        if same_epoch:
            return R_ENDED
        return R_IN_ORDER if find_room(w) >= 0 else R_NEEDS_PRODUCERS
    entry = table_entry(w.table, i)
    last = entry.places[(entry.n - 1) % PLACES].epoch
    if same_epoch:
        return R_IN_ORDER if epoch == last and entry.first_open_offset >= 0 else R_ENDED
    if epoch <= last:
        return R_ENDED
    return R_IN_ORDER if entry.first_open_offset < 0 or epoch == last + 1 else R_OUT_OF_ORDER


cdef int64_t first_open_of(Writer *w, int64_t producer_id) noexcept nogil:
    """Where the producer's open transaction begins, or -1."""
    cdef int64_t i = find_producer(w, producer_id)
    return table_entry(w.table, i).first_open_offset if i >= 0 else -1


cdef int64_t oldest_open(Writer *w, int64_t but) noexcept nogil:
    """Where the oldest open transaction begins, but for one producer's; -1: there is none."""
    cdef int64_t i, open_at, oldest = -1
    for i in range(<int64_t>w.table.header.chunks * CHUNK_IDS):
        if table_id(w.table, i)[0] and table_id(w.table, i)[0] != but + 1:
            open_at = table_entry(w.table, i).first_open_offset
            if open_at >= 0 and (oldest < 0 or open_at < oldest):
                oldest = open_at
    return oldest


cdef void remember(Writer *w, const unsigned char *batch, int64_t base_offset) noexcept nogil:
    """Note a committed batch. Room was seen before the append."""
    cdef int64_t producer_id = <int64_t>be64(batch + PRODUCER_ID_AT)
    cdef int64_t i = find_producer(w, producer_id)
    cdef bint fresh = i < 0
    cdef int attributes = be16(batch + ATTRIBUTES_AT)
    cdef Entry *entry
    cdef Place *place
    cdef Place *last
    if fresh:
        i = find_room(w)
        if i < 0:
            return
        store_i64(table_id(w.table, i), 0)
        entry = table_entry(w.table, i)
        entry.n, entry.first_open_offset = 0, -1
    entry = table_entry(w.table, i)
    if entry.n and entry.places[(entry.n - 1) % PLACES].base_offset >= base_offset:
        return
    place = &entry.places[entry.n % PLACES]
    klamm_step(STEP_STORE)
    place.base_offset, place.epoch = base_offset, <int16_t>be16(batch + PRODUCER_EPOCH_AT)
    place.first_sequence, place.last_sequence = <int32_t>be32(batch + BASE_SEQUENCE_AT), last_sequence_of(batch)
    if attributes & KLAMM_CONTROL and entry.n:
        last = &entry.places[(entry.n - 1) % PLACES]
        if last.epoch == place.epoch:                   # the sequence goes on; -1 as the first: it repeats no batch
            place.last_sequence = last.last_sequence
    entry.last_seen_ms = store_clock_ms(w)
    if attributes & KLAMM_CONTROL:
        store_i64(&entry.first_open_offset, -1)
    elif attributes & KLAMM_TRANSACTIONAL and entry.first_open_offset < 0:
        store_i64(&entry.first_open_offset, base_offset)
    store64(&entry.n, entry.n + 1)
    if fresh:
        store_i64(table_id(w.table, i), producer_id + 1)
        w.table_hint = i


cdef bint table_is_current(Writer *w) noexcept nogil:
    """Whether the mapped table is the log's. A writer that died in `changed_table` left it one ahead."""
    cdef uint64_t seq = load64(&w.table.header.seq), wanted = load64(&w.slot.producers_seq)
    return seq and (seq == wanted or (seq == wanted + 1 and w.slot.redo_seq))


cdef void changed_table(Writer *w) noexcept nogil:
    """After a change by an append, before redo_seq goes."""
    cdef uint64_t seq = max(w.table.header.seq, w.slot.producers_seq) + 1
    store64(&w.table.header.seq, seq)
    store64(&w.slot.producers_seq, seq)


cdef int redo(Writer *w, Commit *now) noexcept nogil:
    """Make up for a writer that died between its commit and the table. Its batch is the last of the active segment."""
    cdef unsigned char header[HEADER_SIZE]
    if not w.slot.redo_seq:
        return 0
    if w.slot.redo_seq == now.seq:
        if os_pread(w.log_fd, header, HEADER_SIZE, w.slot.redo_position) != HEADER_SIZE:
            return -errno if errno else -EBADMSG
        if find_producer(w, <int64_t>be64(header + PRODUCER_ID_AT)) < 0 and find_room(w) < 0:
            return R_NEEDS_PRODUCERS
        remember(w, header, <int64_t>be64(header))
    changed_table(w)
    store64(&w.slot.redo_seq, 0)
    return 0


cdef bytes table_header(chunks):
    return b"KLAMMPRD" + (1).to_bytes(4, "little") + chunks.to_bytes(4, "little")


cdef int map_table(Writer *w) except -1:
    """Map the table, making it if it is not there; give it another chunk if it is mapped and has no room."""
    cdef Table *table
    path = os.fsdecode(<bytes>w.path) + "producers"
    if w.table != NULL and find_room(w) >= 0:
        return 0
    fd = _os.open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        chunks = (os.fstat(fd).st_size - sizeof(TableHeader)) // sizeof(Chunk)
        if w.table != NULL or chunks < 1:
            chunks = max(chunks, 0)
            if sizeof(TableHeader) + (chunks + 1) * sizeof(Chunk) > TABLE_ROOM:
                raise OSError(EUSERS, "the table of producers is full", path)
            _os.pwrite(fd, bytes(sizeof(Chunk)), sizeof(TableHeader) + chunks * sizeof(Chunk))
            _os.pwrite(fd, table_header(chunks + 1), 0)
            if w.table != NULL:
                known = sizeof(TableHeader) + w.table.header.chunks * sizeof(Chunk)
                end = sizeof(TableHeader) + (chunks + 1) * sizeof(Chunk)
                if os_map_more(w.table, fd, known, end - known) or os_map_more(w.table, fd, 0, sizeof(TableHeader)):
                    raise OSError(errno, os.strerror(errno), path)
        if w.table == NULL:
            table = <Table *>os_map(fd, TABLE_ROOM, 1, 0)
            if table == NULL:
                raise OSError(errno, os.strerror(errno), path)
            room = (TABLE_ROOM - sizeof(TableHeader)) // sizeof(Chunk)
            if memcmp(table.header.magic, b"KLAMMPRD", 8) or not 1 <= table.header.chunks <= min(max(chunks, 1), room):
                os_unmap(table, TABLE_ROOM)
                raise OSError(EBADMSG, "the table of producers is damaged", path)
            w.table = table
    finally:
        os.close(fd)
    return 0


cdef void unmap_table(Writer *w) noexcept:
    if w.table != NULL:
        os_unmap(w.table, TABLE_ROOM)
    w.table = NULL


cdef list list_table(Writer *w):
    cdef int64_t i
    cdef uint64_t back
    cdef Entry *entry
    result = []
    if w.table == NULL:
        return result
    for i in range(<int64_t>w.table.header.chunks * CHUNK_IDS):
        entry = table_entry(w.table, i)
        if table_id(w.table, i)[0] and entry.n:
            places = [entry.places[(entry.n - back) % PLACES] for back in range(min(entry.n, <uint64_t>PLACES), 0, -1)]
            result.append((table_id(w.table, i)[0] - 1, entry.first_open_offset, entry.last_seen_ms,
                           [(p["base_offset"], p["first_sequence"], p["last_sequence"], p["epoch"]) for p in places]))
    return result


cdef fill_table(Writer *w, entries):
    """Make the table anew, in place: other processes may have it mapped."""
    cdef int64_t i = 0
    cdef Entry *entry
    unmap_table(w)
    fd = _os.open_file(os.fsdecode(<bytes>w.path) + "producers", os.O_RDWR | os.O_CREAT)
    try:
        chunks = max((os.fstat(fd).st_size - sizeof(TableHeader)) // sizeof(Chunk), 1)
        chunks = min(chunks, (TABLE_ROOM - sizeof(TableHeader)) // sizeof(Chunk))
        _os.pwrite(fd, bytes(chunks * sizeof(Chunk)), sizeof(TableHeader))
        _os.pwrite(fd, table_header(chunks) + bytes(8), 0)      # seq 0: nobody's, until seal_table
    finally:
        os.close(fd)
    map_table(w)
    for producer_id, first_open_offset, last_seen_ms, places in entries:
        places = places[-PLACES:]
        map_table(w)
        i = find_room(w)
        entry = table_entry(w.table, i)
        entry.n, entry.first_open_offset, entry.last_seen_ms = len(places), first_open_offset, last_seen_ms
        for k, (base_offset, first_sequence, last_sequence, epoch) in enumerate(places):
            entry.places[<int>k].base_offset, entry.places[<int>k].epoch = base_offset, epoch
            entry.places[<int>k].first_sequence, entry.places[<int>k].last_sequence = first_sequence, last_sequence
        store_i64(table_id(w.table, i), producer_id + 1)
