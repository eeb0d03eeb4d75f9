"""The table of producer ids: the last five batches of each, so that a repeated batch is recognised.

    producers     mapped; it grows at its end, and is never shrunk or renamed
      header      magic, version, capacity (entries that the file has), seq, key of the hash, used entries, buckets,
                  two lists, the undo journal
      entry       producer id, its batches, its links, and the head of one bucket

A link is the number of an entry + 1; 0: none. Entries are used in order, none is ever free again.

**Hash.** Linear hashing: bucket b is the chain that starts in entry b. A new producer beyond the number of buckets
splits one bucket, so there is never more to do than that. The key is random: clients choose producer ids.

**Lists.** A producer is in one of two. `idle`, those without an open transaction, in the order in which they were last
seen: the oldest gives its entry away when it has expired, or when the table cannot grow any more. `open`, those with
one, in the order in which these began: where the oldest begins is where its head says.

**Changes.** The table changes after the commit of the batch: until then `redo_seq` in the slot names that commit, and
the next writer makes up for a dead one. All that one batch changes in here is one change: before a word is stored, the
journal gets its place and what it was; at the end the journal is emptied by one store. A journal that is not empty
belongs to a writer that died: it is undone, backwards, and the batch remembered from the start.

`seq` grows with every change by an append, here and then in the slot (`producers_seq`). If the two differ, the table is
not the one that belongs to the log: the file was removed, or an older one put in its place. It is then made again from
the snapshot and the log, and a process that still maps the old file maps the new one. Every link and number that is
read from the table is checked before it is used; one that cannot be makes `seq` 0, with the same consequence.

`first_open_offset` is where the producer's open transaction begins in this log, -1 if it has none. Each transaction has
an epoch of its own, and its marker bears the next one: so a marker that comes late, or again, finds its epoch taken and
is not written, and a batch that comes late, after the marker, is fenced.

Producers over the wire that do not know this yet have one epoch for all their transactions. Their marker bears that
same epoch, ends what is open of exactly it, and is not written where nothing is; their sequences go on after it, so it
takes the last sequence over into its place. Nothing here tells a late one from one in time: its writer knows
(store/wire_transactions.py). The two kinds are told apart by their epochs alone: one has the epoch of what was last in
the table, the other a newer one.
"""

cdef extern from *:
    """
    typedef struct { int64_t base_offset; int32_t first_sequence, last_sequence; int16_t epoch; int16_t unused[3]; }
    RecentBatch; typedef struct {       /* three cache lines; the first is what a search and a list touch */
        int64_t id;
        uint64_t n;                         /* batches so far: the latest is recent[(n - 1) % 5] */
        int64_t first_open_offset, last_seen_ms;
        uint32_t chain, older, newer;       /* links: the next of the same bucket, the neighbours in its list */
        uint32_t bucket;                    /* not this producer's: where the bucket of this entry's number starts */
        uint64_t unused1[2];
        RecentBatch recent[5];
        uint64_t unused2;
    } Entry;
    typedef struct { uint32_t oldest, newest; } ProducerList;
    typedef struct { uint64_t at, before; } Undo;       /* byte of the table, + 1 if four bytes; what was there */
    typedef struct {
        char magic[8];
        uint32_t version, capacity;
        uint64_t seq, key;
        uint32_t used, buckets;             /* from here to undo_count: what the journal may restore */
        ProducerList idle, open;
        uint32_t undo_count, unused[17];
        Undo undo[120];
    } TableHeader;
    typedef struct { TableHeader header; Entry entries[]; } Table;
    _Static_assert(sizeof(RecentBatch) == 24 && sizeof(Entry) == 192 && sizeof(TableHeader) == 2048, "a file format");
    _Static_assert(offsetof(Entry, recent) == 64 && offsetof(TableHeader, undo) == 128, "a file format");
    enum { UNDO_FIRST = offsetof(TableHeader, used), UNDO_END = offsetof(TableHeader, undo_count) };

    static inline uint32_t producer_hash(uint64_t key, int64_t id) {
        uint64_t x = (uint64_t)id ^ key;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return (uint32_t)(x ^ (x >> 31));
    }
    /* Of so many buckets, at least two: those that are not split yet take what belongs to those not there yet. */
    static inline uint32_t bucket_of(uint32_t hash, uint32_t buckets) {
        uint32_t mask = 0xffffffffu >> __builtin_clz(buckets - 1);
        return (hash & mask) < buckets ? hash & mask : hash & (mask >> 1);
    }
    """
    ctypedef struct RecentBatch:
        int64_t base_offset
        int32_t first_sequence, last_sequence
        int16_t epoch
    ctypedef struct Entry:
        int64_t id
        uint64_t n
        int64_t first_open_offset, last_seen_ms
        uint32_t chain, older, newer, bucket
        RecentBatch recent[5]
    ctypedef struct ProducerList:
        uint32_t oldest, newest
    ctypedef struct Undo:
        uint64_t at, before
    ctypedef struct TableHeader:
        char magic[8]
        uint32_t version, capacity
        uint64_t seq, key
        uint32_t used, buckets
        ProducerList idle, open
        uint32_t undo_count
        Undo undo[120]
    ctypedef struct Table:
        TableHeader header
        Entry entries[1]
    enum: UNDO_FIRST, UNDO_END
    uint32_t producer_hash(uint64_t, int64_t) nogil
    uint32_t bucket_of(uint32_t, uint32_t) nogil

cdef enum:
    RECENT = 5
    TABLE_VERSION = 2
    FIRST_CAPACITY = 64             # entries of a new table, and its buckets
    LARGEST_GROWTH = 4096           # entries by which a table grows at once: 768 KiB to write
    MOST_PRODUCERS = 1 << 18        # entries of a table: 48 MiB
    LONGEST_CHAIN = 24              # at most two entries a bucket on average: a longer one is damage, or a guessed key
    UNDO_ROOM = 120                 # more than one change takes: three words for each entry of a split bucket, and 30
    R_IN_ORDER = -20000

cdef int64_t R_REPEATED = -(<int64_t>1 << 60)       # R_REPEATED - offset: a batch with the same sequences is there

cdef uint32_t most_producers = MOST_PRODUCERS       # tests make it less


# ---- entries, and changes that can be undone -----------------------------------------------------------------------

cdef Entry *entry_of(Writer *w, uint32_t link) noexcept nogil:
    """Return the entry that a link names; NULL if it names none."""
    return &w.table.entries[link - 1] if 0 < link <= w.table.header.used else NULL


cdef uint64_t *journal(Writer *w, void *at, uint64_t before, uint64_t is_small) noexcept nogil:
    """Record the value of a word in the journal, before it changes. NULL if there is no space: the table is damaged."""
    cdef TableHeader *header = &w.table.header
    cdef uint32_t count = header.undo_count
    if count >= UNDO_ROOM:
        w.table_broken = 1
        return NULL
    header.undo[count].at = <uint64_t>(<unsigned char *>at - <unsigned char *>w.table) + is_small
    header.undo[count].before = before
    store32(&header.undo_count, count + 1)
    return <uint64_t *>at


cdef void put32(Writer *w, uint32_t *at, uint32_t value) noexcept nogil:
    if at[0] != value and journal(w, at, at[0], 1) != NULL:
        store32(at, value)


cdef void put64(Writer *w, uint64_t *at, uint64_t value) noexcept nogil:
    if at[0] != value and journal(w, at, at[0], 0) != NULL:
        store64(at, value)


cdef void undo(Writer *w) noexcept nogil:
    """Undo the change of a dead writer. If this process is killed, the next one starts over, with the same result."""
    cdef TableHeader *header = &w.table.header
    cdef uint32_t i = header.undo_count
    cdef uint64_t at, size
    cdef uint64_t end = sizeof(TableHeader) + <uint64_t>header.capacity * sizeof(Entry)
    while i > 0:
        i -= 1
        at, size = header.undo[i].at & ~<uint64_t>1, 4 if header.undo[i].at & 1 else 8
        if at % size or not (UNDO_FIRST <= at and at + size <= UNDO_END or sizeof(TableHeader) <= at <= end - size):
            w.table_broken = 1
            return
        if size == 4:
            store32(<uint32_t *>(<unsigned char *>w.table + at), <uint32_t>header.undo[i].before)
        else:
            store64(<uint64_t *>(<unsigned char *>w.table + at), header.undo[i].before)
    store32(&header.undo_count, 0)
    if not has_sane_header(w):
        w.table_broken = 1


# ---- hash and lists ------------------------------------------------------------------------------------------------

cdef uint32_t *bucket_for(Writer *w, int64_t producer_id) noexcept nogil:
    cdef TableHeader *header = &w.table.header
    return &w.table.entries[bucket_of(producer_hash(header.key, producer_id), header.buckets)].bucket


cdef uint32_t *link_to(Writer *w, int64_t producer_id) noexcept nogil:
    """Return the link in its bucket that names the producer's entry, or the 0 at the end of it."""
    cdef uint32_t *link = bucket_for(w, producer_id)
    cdef Entry *entry
    cdef int steps
    for steps in range(LONGEST_CHAIN):
        if link[0] == 0:
            return link
        entry = entry_of(w, link[0])
        if entry == NULL:
            break
        if entry.id == producer_id:
            return link
        link = &entry.chain
    w.table_broken = 1
    return NULL


cdef Entry *find_producer(Writer *w, int64_t producer_id) noexcept nogil:
    """Return the producer's entry, or NULL."""
    cdef uint32_t *link = link_to(w, producer_id)
    return entry_of(w, link[0]) if link != NULL else NULL


cdef void split_bucket(Writer *w) noexcept nogil:
    """Add one bucket, and move to it what belongs to it from the bucket that had it so far."""
    cdef TableHeader *header = &w.table.header
    cdef uint32_t count = header.buckets, link
    cdef uint32_t *fresh = &w.table.entries[count].bucket
    cdef uint32_t *at = &w.table.entries[bucket_of(count, count)].bucket
    cdef Entry *entry
    cdef int steps
    put32(w, &header.buckets, count + 1)
    put32(w, fresh, 0)
    for steps in range(LONGEST_CHAIN):
        if at[0] == 0:
            return
        entry = entry_of(w, at[0])
        if entry == NULL:
            break
        if bucket_of(producer_hash(header.key, entry.id), count + 1) == count:
            link = at[0]
            put32(w, at, entry.chain)
            put32(w, &entry.chain, fresh[0])
            put32(w, fresh, link)
        else:
            at = &entry.chain
    w.table_broken = 1


cdef void leave_list(Writer *w, ProducerList *list, uint32_t link) noexcept nogil:
    cdef Entry *entry = entry_of(w, link)
    cdef Entry *older = entry_of(w, entry.older)
    cdef Entry *newer = entry_of(w, entry.newer)
    if (older.newer if older != NULL else list.oldest) != link or (newer.older if newer != NULL else list.newest) != link:
        w.table_broken = 1
        return
    put32(w, &older.newer if older != NULL else &list.oldest, entry.newer)
    put32(w, &newer.older if newer != NULL else &list.newest, entry.older)


cdef void join_list(Writer *w, ProducerList *list, uint32_t link) noexcept nogil:
    """Append an entry to the list, as its newest."""
    cdef Entry *entry = entry_of(w, link)
    cdef Entry *newest = entry_of(w, list.newest)
    if (newest == NULL) != (list.newest == 0) or (newest == NULL) != (list.oldest == 0):
        w.table_broken = 1
        return
    put32(w, &entry.older, list.newest)
    put32(w, &entry.newer, 0)
    put32(w, &newest.newer if newest != NULL else &list.oldest, link)
    put32(w, &list.newest, link)


cdef uint32_t find_room(Writer *w) noexcept nogil:
    """Return the link of the entry that a new producer gets: a free one, or the oldest idle one's. 0: the table has to
    grow first.
    """
    cdef TableHeader *header = &w.table.header
    cdef Entry *oldest
    if header.used < header.capacity:
        return header.used + 1
    oldest = entry_of(w, header.idle.oldest)
    if oldest == NULL:
        return 0
    if header.capacity >= most_producers or 0 < w.producer_expiration_ms < store_clock_ms(w) - oldest.last_seen_ms:
        return header.idle.oldest
    return 0


cdef int no_room(Writer *w) noexcept nogil:
    return R_NEEDS_PRODUCERS if w.table.header.capacity < most_producers else R_TOO_MANY_PRODUCERS


cdef uint32_t add_producer(Writer *w, int64_t producer_id) noexcept nogil:
    """Return the link of its new entry, which is in no list yet; 0 if there is no space: the caller has made some."""
    cdef TableHeader *header = &w.table.header
    cdef uint32_t link = find_room(w)
    cdef uint32_t *at
    cdef Entry *entry
    if link == 0:
        w.table_broken = 1
        return 0
    if link > header.used:
        put32(w, &header.used, link)
        entry = &w.table.entries[link - 1]
    else:
        entry = entry_of(w, link)
        at = link_to(w, entry.id)
        if at == NULL or at[0] != link:
            w.table_broken = 1
            return 0
        leave_list(w, &header.idle, link)
        put32(w, at, entry.chain)
    put64(w, <uint64_t *>&entry.id, <uint64_t>producer_id)
    put64(w, &entry.n, 0)
    put64(w, <uint64_t *>&entry.first_open_offset, <uint64_t>-1)
    if header.used > header.buckets:
        split_bucket(w)
    at = bucket_for(w, producer_id)
    put32(w, &entry.chain, at[0])
    put32(w, at, link)
    return link


# ---- what an append asks -------------------------------------------------------------------------------------------

cdef int32_t last_sequence_of(const unsigned char *batch) noexcept nogil:
    """Return the last sequence of a batch; sequences wrap from 2^31 - 1 to 0."""
    return <int32_t>((<int64_t>be32(batch + BASE_SEQUENCE_AT) + be32(batch + LAST_DELTA_AT)) & 0x7fffffff)


cdef int64_t check_sequence(Writer *w, const unsigned char *batch) noexcept nogil:
    """Return R_IN_ORDER; R_REPEATED - offset if a batch of these sequences is at that offset; or why the batch is
    rejected.

    Whether it is the same batch is for repeated.py to say: it reads the log. What a transaction wrote that has ended is
    never the same as what the next one of the same epoch writes, whatever is in it.
    """
    cdef int32_t first = <int32_t>be32(batch + BASE_SEQUENCE_AT), last = last_sequence_of(batch)
    cdef int16_t epoch = <int16_t>be16(batch + PRODUCER_EPOCH_AT)
    cdef Entry *entry = find_producer(w, <int64_t>be64(batch + PRODUCER_ID_AT))
    cdef uint64_t back
    cdef RecentBatch *item
    if first < -1:
        return R_OUT_OF_ORDER
    if entry == NULL:
        return R_IN_ORDER if find_room(w) else no_room(w)
    item = &entry.recent[(entry.n - 1) % RECENT]
    if epoch < item.epoch:
        return R_FENCED
    if epoch > item.epoch:                             # an open transaction of the old one is to be ended first
        return R_IN_ORDER if first <= 0 and entry.first_open_offset < 0 else R_OUT_OF_ORDER
    if first < 0 or first == ((<int64_t>item.last_sequence + 1) & 0x7fffffff):
        return R_IN_ORDER
    for back in range(1, min(entry.n, <uint64_t>RECENT) + 1):
        item = &entry.recent[(entry.n - back) % RECENT]
        if item.epoch == epoch and item.first_sequence == first and item.last_sequence == last:
            if be16(batch + ATTRIBUTES_AT) & KLAMM_TRANSACTIONAL and not 0 <= entry.first_open_offset <= item.base_offset:
                return R_OUT_OF_ORDER
            w.duplicate = 1
            return R_REPEATED - item.base_offset
    return R_OUT_OF_ORDER


cdef int64_t check_marker(Writer *w, const unsigned char *batch, int same_epoch) noexcept nogil:
    """Return R_IN_ORDER if the marker must be written: its producer has nothing of this epoch yet, or nothing at all.

    It ends the transaction of the epoch before, and no older one: that has to get its own marker first. One of the
    `same_epoch` ends what is open of that, and is not written if nothing is.
    """
    cdef Entry *entry = find_producer(w, <int64_t>be64(batch + PRODUCER_ID_AT))
    cdef int16_t epoch = <int16_t>be16(batch + PRODUCER_EPOCH_AT), last
    if entry == NULL:
        if same_epoch:
            return R_ENDED
        return R_IN_ORDER if find_room(w) else no_room(w)
    last = entry.recent[(entry.n - 1) % RECENT].epoch
    if same_epoch:
        return R_IN_ORDER if epoch == last and entry.first_open_offset >= 0 else R_ENDED
    if epoch <= last:
        return R_ENDED
    return R_IN_ORDER if entry.first_open_offset < 0 or epoch == last + 1 else R_OUT_OF_ORDER


cdef int64_t first_open_of(Writer *w, int64_t producer_id) noexcept nogil:
    """Return where the producer's open transaction begins, or -1."""
    cdef Entry *entry = find_producer(w, producer_id)
    return entry.first_open_offset if entry != NULL else -1


cdef int64_t oldest_open(Writer *w, int64_t but) noexcept nogil:
    """Return where the oldest open transaction of all producers but one begins, or -1."""
    cdef Entry *entry = entry_of(w, w.table.header.open.oldest)
    if entry != NULL and entry.id == but:
        entry = entry_of(w, entry.newer)
    return entry.first_open_offset if entry != NULL else -1


# ---- after the commit ----------------------------------------------------------------------------------------------

cdef void remember(Writer *w, const unsigned char *batch, int64_t base_offset) noexcept nogil:
    """Record a committed batch. The append has checked that there is space."""
    cdef TableHeader *header = &w.table.header
    cdef int64_t producer_id = <int64_t>be64(batch + PRODUCER_ID_AT), open_at
    cdef int attributes = be16(batch + ATTRIBUTES_AT)
    cdef uint32_t *found = link_to(w, producer_id)
    cdef uint32_t link = found[0] if found != NULL else 0
    cdef ProducerList *before = NULL
    cdef ProducerList *after
    cdef Entry *entry
    cdef RecentBatch *last = NULL
    cdef RecentBatch item
    if w.table_broken:
        drop_table(w)
        return
    if link:
        entry = entry_of(w, link)
        last = &entry.recent[(entry.n - 1) % RECENT]
        if entry.n and last.base_offset >= base_offset:
            return
        before = &header.open if entry.first_open_offset >= 0 else &header.idle
    else:
        link = add_producer(w, producer_id)
        if w.table_broken:
            drop_table(w)
            return
        entry = entry_of(w, link)
    memset(&item, 0, sizeof(item))
    item.base_offset, item.epoch = base_offset, <int16_t>be16(batch + PRODUCER_EPOCH_AT)
    item.first_sequence, item.last_sequence = <int32_t>be32(batch + BASE_SEQUENCE_AT), last_sequence_of(batch)
    open_at = entry.first_open_offset
    if attributes & KLAMM_CONTROL:
        if last != NULL and last.epoch == item.epoch:  # the sequence goes on; -1 as the first: it repeats no batch
            item.last_sequence = last.last_sequence
        open_at = -1
    elif attributes & KLAMM_TRANSACTIONAL and open_at < 0:
        open_at = base_offset
    after = &header.open if open_at >= 0 else &header.idle
    if before != after or (after == &header.idle and after.newest != link):
        if before != NULL:
            leave_list(w, before, link)
        join_list(w, after, link)
    put_batch(w, entry, &item)
    put64(w, <uint64_t *>&entry.last_seen_ms, <uint64_t>store_clock_ms(w))
    put64(w, <uint64_t *>&entry.first_open_offset, <uint64_t>open_at)
    if w.table_broken:
        drop_table(w)
    else:
        store32(&header.undo_count, 0)


cdef void put_batch(Writer *w, Entry *entry, RecentBatch *item) noexcept nogil:
    cdef int i
    for i in range(3):
        put64(w, <uint64_t *>&entry.recent[entry.n % RECENT] + i, (<uint64_t *>item)[i])
    put64(w, &entry.n, entry.n + 1)


cdef int64_t drop_table(Writer *w) noexcept nogil:
    """Invalidate the damaged table: it is rebuilt from the log before the next batch of a producer."""
    store64(&w.table.header.seq, 0)
    return R_NEEDS_PRODUCERS


cdef bint has_sane_header(Writer *w) noexcept nogil:
    """Return whether every number in the header can be used."""
    cdef TableHeader *header = &w.table.header
    return (header.used <= header.capacity <= w.table_capacity and header.undo_count <= UNDO_ROOM
            and FIRST_CAPACITY <= header.buckets <= header.capacity)


cdef bint table_is_current(Writer *w) noexcept nogil:
    """Return whether the mapped table is the log's. A writer that died in `changed_table` left it one ahead."""
    cdef uint64_t seq = load64(&w.table.header.seq), wanted = load64(&w.slot.producers_seq)
    if not seq or not (seq == wanted or (seq == wanted + 1 and w.slot.redo_seq)):
        return 0
    return has_sane_header(w) and (w.table.header.undo_count == 0 or w.slot.redo_seq) and not w.table_broken


cdef void changed_table(Writer *w) noexcept nogil:
    """Count a change of the table by an append, before redo_seq is cleared."""
    cdef uint64_t seq = max(w.table.header.seq, w.slot.producers_seq) + 1
    if not w.table_broken:
        store64(&w.table.header.seq, seq)
        store64(&w.slot.producers_seq, seq)


cdef int redo(Writer *w, Commit *now) noexcept nogil:
    """Redo the change of a writer that died between its commit and the table. Its batch is the last of the active
    segment.
    """
    cdef unsigned char header[HEADER_SIZE]
    if not w.slot.redo_seq:
        return 0
    undo(w)
    if w.slot.redo_seq == now.seq and not w.table_broken:
        if os_pread(w.log_fd, header, HEADER_SIZE, w.slot.redo_position) != HEADER_SIZE:
            return -errno if errno else -EBADMSG
        if find_producer(w, <int64_t>be64(header + PRODUCER_ID_AT)) == NULL and not find_room(w):
            if no_room(w) == R_NEEDS_PRODUCERS:
                return R_NEEDS_PRODUCERS
            w.table_broken = 1                          # there was room before the commit
        else:
            remember(w, header, <int64_t>be64(header))
    if w.table_broken:
        return <int>drop_table(w)
    changed_table(w)
    store64(&w.slot.redo_seq, 0)
    return 0


include "_producer_file.pxi"
