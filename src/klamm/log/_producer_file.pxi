"""The file `producers`: map, unmap, grow, rebuild and list it. Under the append lock, and with the GIL.

A process maps no more than MOST_TABLES tables and MOST_MAPPED bytes of them, however many partitions it appends to: the
one that was not used for longest is unmapped for the next one.
"""

cdef enum:
    MOST_TABLES = 4096              # vm.max_map_count is 65,530
    LEAST_ROOM = 64 << 10

cdef Writer *mapped[MOST_TABLES]    # changed with the GIL only
cdef int mapped_count = 0
cdef size_t mapped_bytes = 0
cdef int most_tables = MOST_TABLES
cdef size_t most_mapped = 1 << 30


def mapped_tables():
    """Return how many tables of producers this process has mapped, and their bytes."""
    return mapped_count, mapped_bytes


def limit_tables(*, int tables=MOST_TABLES, size_t most_bytes=1 << 30, uint32_t producers=MOST_PRODUCERS):
    """Let this process map fewer tables, and make smaller ones. For tests."""
    global most_tables, most_mapped, most_producers
    if not 1 <= tables <= MOST_TABLES or not FIRST_CAPACITY <= producers <= MOST_PRODUCERS:
        raise ValueError("out of range")
    most_tables, most_mapped, most_producers = tables, most_bytes, producers


cdef size_t table_bytes(uint64_t capacity) noexcept:
    return sizeof(TableHeader) + capacity * sizeof(Entry)


cdef uint64_t capacity_of(int64_t size) noexcept:
    """Return how many entries there are in a file of this size."""
    cdef int64_t count = (size - <int64_t>sizeof(TableHeader)) // <int64_t>sizeof(Entry)
    return <uint64_t>min(max(count, 0), <int64_t>MOST_PRODUCERS)


cdef object table_path(Writer *w):
    return os.fsdecode(<bytes>w.path) + "producers"


cdef void unmap_table(Writer *w) noexcept:
    global mapped_count, mapped_bytes
    cdef int i
    if w.table == NULL:
        return
    os_unmap(w.table, w.table_room)
    w.table = NULL
    mapped_bytes -= w.table_room
    for i in range(mapped_count):
        if mapped[i] == w:
            mapped_count -= 1
            mapped[i] = mapped[mapped_count]
            break


cdef void unmap_idle(size_t room) noexcept:
    """Unmap tables until there is space for one more; those in use stay."""
    cdef Writer *victim
    cdef int i
    cdef uint64_t tried = 0
    while mapped_count >= most_tables or (mapped_count and mapped_bytes + room > most_mapped):
        victim = NULL
        for i in range(mapped_count):
            if mapped[i].used >= tried and (victim == NULL or mapped[i].used < victim.used):
                victim = mapped[i]
        if victim == NULL:
            return
        if klamm_mutex_lock(&victim.append_mutex, 0) == 0:
            unmap_table(victim)
            pthread_mutex_unlock(&victim.append_mutex)
        else:
            tried = victim.used + 1


cdef int map_file(Writer *w, int fd, path) except -1:
    """Map the table in an open file. OSError if its header is damaged."""
    global mapped_count, mapped_bytes, ticks
    cdef Table *table
    cdef size_t room = table_bytes(MOST_PRODUCERS)
    cdef int64_t size = os.fstat(fd).st_size
    if KLAMM_MAPS_GROW:
        room = LEAST_ROOM
        while room < <size_t>size and room < table_bytes(MOST_PRODUCERS):
            room *= 2
    unmap_table(w)
    unmap_idle(room)
    if mapped_count == MOST_TABLES:
        raise OSError(ENOMEM, "too many tables of producers in use at once", path)
    table = <Table *>os_map(fd, room, 1, 0)
    if table == NULL:
        raise OSError(errno, os.strerror(errno), path)
    ticks += 1
    w.used = ticks
    w.table, w.table_room, w.table_capacity, w.table_broken = table, room, capacity_of(size), 0
    mapped[mapped_count] = w
    mapped_count += 1
    mapped_bytes += room
    if memcmp(table.header.magic, b"KLAMMPRD", 8) or table.header.version != TABLE_VERSION or not has_sane_header(w):
        unmap_table(w)
        raise OSError(EBADMSG, "the table of producers is damaged", path)
    return 0


cdef bint map_table(Writer *w) except -1:
    """Map the log's table. Return False if there is none, or none that is whole and the log's."""
    if w.table != NULL and table_is_current(w):
        return True
    path = table_path(w)
    unmap_table(w)
    try:
        fd = _os.open_file(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        if capacity_of(os.fstat(fd).st_size) < FIRST_CAPACITY:
            return False
        map_file(w, fd, path)
    except OSError as error:
        if error.errno == EBADMSG:
            return False
        raise
    finally:
        os.close(fd)
    if table_is_current(w):
        return True
    unmap_table(w)
    return False


cdef int grow_table(Writer *w) except -1:
    """Give the mapped table room for a producer more, if it has none and may grow."""
    cdef uint64_t before = w.table.header.capacity, after
    after = min(before + min(before, <uint64_t>LARGEST_GROWTH), <uint64_t>most_producers)
    if find_room(w) or after <= before:
        return 0
    path = table_path(w)
    fd = _os.open_file(path, os.O_RDWR)
    try:
        _os.pwrite(fd, bytes(<Py_ssize_t>((after - before) * sizeof(Entry))), table_bytes(before))
        if table_bytes(after) > w.table_room:
            map_file(w, fd, path)
        elif os_map_more(w.table, fd, table_bytes(before), (after - before) * sizeof(Entry)):
            raise OSError(errno, os.strerror(errno), path)
    finally:
        os.close(fd)
    w.table_capacity = after
    store32(&w.table.header.capacity, <uint32_t>after)
    return 0


cdef fill_table(Writer *w, states):
    """Make the table again, in place: other processes may have it mapped. It is invalid until `changed_table`."""
    cdef uint64_t capacity, most
    cdef uint32_t link
    cdef int64_t size
    cdef Entry *entry
    cdef RecentBatch item
    known = [state for state in states if state[3]]
    most = most_producers
    opened = sorted((state for state in known if state[1] >= 0), key=lambda state: state[1])[:most]
    idle = sorted((state for state in known if state[1] < 0), key=lambda state: state[3][len(state[3]) - 1][0])
    idle = idle[max(len(idle) + len(opened) - <int64_t>most, 0):]
    unmap_table(w)
    path = table_path(w)
    fd = _os.open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        size = os.fstat(fd).st_size
        wanted = -(-(len(idle) + len(opened)) // FIRST_CAPACITY) * FIRST_CAPACITY
        capacity = max(capacity_of(size), <uint64_t>max(wanted, FIRST_CAPACITY))
        header = struct.pack("<8sIIQ8sII", b"KLAMMPRD", TABLE_VERSION, capacity, 0, os.urandom(8), 0, FIRST_CAPACITY)
        _os.pwrite(fd, header + bytes(<Py_ssize_t>sizeof(TableHeader) - len(header)), 0)    # seq 0, before all else
        _os.pwrite(fd, bytes(<Py_ssize_t>(FIRST_CAPACITY * sizeof(Entry))), sizeof(TableHeader))
        size = max(size, <int64_t>table_bytes(FIRST_CAPACITY))
        while size < <int64_t>table_bytes(capacity):                    # written in full: a full disk is noticed here
            step = min(<int64_t>table_bytes(capacity) - size, 1 << 20)
            _os.pwrite(fd, bytes(step), size)
            size += step
        map_file(w, fd, path)
    finally:
        os.close(fd)
    for producer_id, first_open_offset, last_seen_ms, batches in idle + opened:
        if find_producer(w, producer_id) != NULL:
            continue
        link = add_producer(w, producer_id)
        if w.table_broken:
            raise OSError(EBADMSG, "the table of producers is damaged", path)
        entry = entry_of(w, link)
        entry.first_open_offset, entry.last_seen_ms = first_open_offset, last_seen_ms
        join_list(w, &w.table.header.open if entry.first_open_offset >= 0 else &w.table.header.idle, link)
        for base_offset, first_sequence, last_sequence, epoch in batches[-RECENT:]:
            memset(&item, 0, sizeof(item))
            item.base_offset, item.epoch = base_offset, epoch
            item.first_sequence, item.last_sequence = first_sequence, last_sequence
            put_batch(w, entry, &item)
        w.table.header.undo_count = 0


cdef list batches_of(Entry *entry):
    cdef uint64_t back
    recent = [entry.recent[(entry.n - back) % RECENT] for back in range(min(entry.n, <uint64_t>RECENT), 0, -1)]
    return [(p["base_offset"], p["first_sequence"], p["last_sequence"], p["epoch"]) for p in recent]


cdef list list_table(Writer *w, bint only_open):
    """Return [(id, first open offset, last seen, batches)]."""
    cdef uint32_t link = w.table.header.open.oldest if only_open else 1
    cdef Entry *entry = entry_of(w, link)
    result = []
    while entry != NULL and len(result) < <Py_ssize_t>w.table.header.used:
        if entry.n and entry.id >= 0:
            result.append((entry.id, entry.first_open_offset, entry.last_seen_ms, batches_of(entry)))
        link = entry.newer if only_open else link + 1
        entry = entry_of(w, link)
    return result


cdef bytes pack_table(Writer *w):
    """Return the body of a snapshot (producers.py), made in one go: appends wait only for this copy."""
    cdef uint32_t i, count = 0
    cdef size_t room = 4
    cdef Entry *entry
    cdef bytes body
    for i in range(w.table.header.used):
        entry = &w.table.entries[i]
        if entry.n and entry.id >= 0:
            count += 1
            room += 32 + 24 * min(entry.n, <uint64_t>RECENT)
    body = PyBytes_FromStringAndSize(NULL, room)
    memcpy(PyBytes_AS_STRING(body), &count, 4)
    room = 4
    for i in range(w.table.header.used):
        entry = &w.table.entries[i]
        if entry.n and entry.id >= 0:
            room += pack_producer(<unsigned char *>PyBytes_AS_STRING(body) + room, entry)
    return body


cdef size_t pack_producer(unsigned char *to, Entry *entry) noexcept nogil:
    """Write id, first open offset, last seen, number of batches; then each batch. How many bytes."""
    cdef uint64_t back, count = min(entry.n, <uint64_t>RECENT)
    cdef int64_t words[4]
    cdef RecentBatch *item
    words[0], words[1], words[2], words[3] = entry.id, entry.first_open_offset, entry.last_seen_ms, <int64_t>count
    memcpy(to, words, 32)
    for back in range(count):
        item = &entry.recent[(entry.n - count + back) % RECENT]
        words[0], words[2] = item.base_offset, item.epoch
        memcpy(&words[1], &item.first_sequence, 8)
        memcpy(to + 32 + 24 * back, words, 24)
    return 32 + 24 * count
