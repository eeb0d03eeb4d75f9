"""Append, as head.py describes it: without the GIL, without Python objects, without allocation."""

cdef uint64_t ticks = 0


# ---- reading the head -------------------------------------------------------------------------------------------

cdef int take_snapshot(Slot *slot, Commit *out) noexcept nogil:
    """Copy the latest commit without a lock: 0, or R_DAMAGED_HEAD."""
    cdef uint64_t seq
    while True:
        seq = load64(&slot.seq)
        load_commit(out, &slot.ring[seq % RING])
        klamm_fence_acquire()
        # With `seq` 7 ahead, a writer may already be filling the entry that was copied.
        if load64(&slot.seq) - seq >= RING - 1:
            continue
        if out.seq != seq or out.crc != commit_crc(out):
            return R_DAMAGED_HEAD
        if flushed_offset_of(load64(&slot.flushed)) <= out.next_offset:
            return 0
        klamm_fence_acquire()
        if load64(&slot.seq) == seq:                    # else others have appended and synced meanwhile
            return R_DAMAGED_HEAD                       # an older commit of the ring


# ---- changing it, under the append lock -------------------------------------------------------------------------

cdef void publish(Slot *slot, Commit *next) noexcept nogil:
    """Fill the next entry of the ring, then store `seq`: that one store is the commit."""
    next.seq = slot.seq + 1
    next.crc = commit_crc(next)
    klamm_fence_release()           # the previous `seq` is visible before this entry changes (matters on ARM)
    store_commit(&slot.ring[next.seq % RING], next)
    store64(&slot.seq, next.seq)


cdef int lock_append(Writer *w, int wait) noexcept nogil:
    """Take the mutex, then the owner word (owner.h). Return -EAGAIN, or with `wait` -EINTR: repeat with OWNER_SLEPT."""
    cdef int error = klamm_mutex_lock(&w.append_mutex, wait)
    if error:
        return error
    if w.abandoned:
        error = R_ABANDONED
    elif not w.life.number:
        error = -EBADF                                  # opened for reading only: the word cannot be written
    else:
        error = owner_take(&w.slot.owner, &w.life, wait)
    if error == 0:
        klamm_note_holder(&w.slot.holder, w.identity)
        return keep_unless_reused(w)
    pthread_mutex_unlock(&w.append_mutex)
    return error


cdef void unlock_append(Writer *w) noexcept nogil:
    owner_drop(&w.slot.owner, &w.life)
    pthread_mutex_unlock(&w.append_mutex)


cdef int open_in(Writer *w, int64_t base, const char *suffix, int flags) noexcept nogil:
    cdef char name[PATH_ROOM + 32]
    snprintf(name, sizeof(name), "%s%020lld%s", w.path, <long long>base, suffix)
    return os_open(name, flags)


cdef int open_to_append(Writer *w, int64_t base, const char *suffix, int flags) noexcept nogil:
    """Like `open_in`, but ESTALE if other files were put into the directory: they must not be written by this head."""
    if look_at(w.store_path):
        errno = ESTALE
        return -1
    return open_in(w, base, suffix, flags)


cdef int use_active(Writer *w, Commit *now) noexcept nogil:
    """Open the active segment, unless it is open, with nothing but zeros beyond the commit."""
    cdef stat_t status
    cdef int written
    if w.log_fd < 0 or w.log_base != now.active_base:
        if w.log_fd >= 0:
            close(w.log_fd)
        w.log_base = now.active_base
        w.events |= EVENT_OPENED
        w.log_fd = open_to_append(w, now.active_base, b".log", O_RDWR | (0 if now.position else O_CREAT))
        if w.log_fd < 0:
            return R_SHORT_SEGMENT if errno == ENOENT and now.position else -errno
        if fstat(w.log_fd, &status):
            return -errno
        if status.st_size < now.position:
            close(w.log_fd)
            w.log_fd = -1
            return R_SHORT_SEGMENT
        w.room = status.st_size if os_takes_blocks_ahead(w.log_fd) else INT64_MAX
        if status.st_size > now.position and w.slot.intent == now.seq:
            written = is_written(w, now.position)
            if written:
                close(w.log_fd)
                w.log_fd = -1
                # `heads` was put back, or another program wrote here
                return R_OLDER_HEAD if written > 0 else written   
    if w.slot.intent != now.seq:                        # a writer died
        if w.slot.intent - now.seq + 1 > 2:
            return R_DAMAGED_HEAD                       # not while it appended, or published by hand
        return cut(w, now)
    return 0


cdef int cut(Writer *w, Commit *now) noexcept nogil:
    """Remove what lies beyond the commit. If that fails, intent still differs from seq, and the next writer tries."""
    if w.slot.intent == now.seq:
        store64(&w.slot.intent, now.seq + 1)
    if os_ftruncate(w.log_fd, now.position):
        return -errno
    if w.room != INT64_MAX:
        w.room = now.position
    store64(&w.slot.intent, now.seq)
    return 0


cdef int64_t store_clock_at(Writer *w, int64_t boot_ms) noexcept nogil:
    return w.store.anchor_wall_ms + boot_ms - w.store.anchor_boot_ms + store_ahead_ms(w.store)


cdef int64_t store_clock_ms(Writer *w) noexcept nogil:
    return store_clock_at(w, klamm_boot_ms())


cdef int is_old(Writer *w) noexcept nogil:
    """Return whether the active segment is older than segment.ms, by a clock that may be 10 ms late.

    To read the exact one takes five times as long as the coarse one, at each append.
    """
    cdef int64_t coarse
    if w.segment_ms <= 0:
        return 0
    coarse = klamm_coarse_ns()
    if coarse - w.boot_read_ns >= BOOT_CLOCK_NS:
        w.boot_ms, w.boot_read_ns = klamm_boot_ms(), coarse
    return store_clock_at(w, w.boot_ms) - w.slot.active_since_ms > w.segment_ms


cdef int must_roll(Writer *w, Commit *now, const unsigned char *batch, size_t size) noexcept nogil:
    cdef int64_t records = <int32_t>be32(batch + LAST_DELTA_AT) + 1
    if now.position == 0:
        return 0
    if now.position + <int64_t>size > w.segment_bytes:
        return 1
    if w.segment_records > 0 and now.next_offset - now.active_base + records > w.segment_records:
        return 1
    if now.next_offset - now.active_base + records > 0x7fffffff:    # Kafka's tools keep relative offsets in 32 bits
        return 1
    return is_old(w)


cdef int roll(Writer *w, Commit *now) noexcept nogil:
    """Roll the active segment, in a commit of its own: the new one is empty; its first writer creates the file."""
    cdef int error = give_back(w, now)
    if error:
        return error
    close_index(w, now)
    now.active_base = now.next_offset
    now.position = 0
    now.max_timestamp = -1
    publish(w.slot, now)
    store64(&w.slot.intent, now.seq)
    fetch_add32(&w.slot.segments_version, 1)
    w.events |= EVENT_ROLLED
    return use_active(w, now)


# ---- the index ----------------------------------------------------------------------------------------------------

cdef void write_index(Writer *w, Commit *now, int64_t offset, int64_t max_timestamp) noexcept nogil:
    """Add (offset, now.position, max_timestamp) to the active segment's index. Failing leaves an entry out, no more."""
    cdef IndexHeader header
    cdef IndexEntry entry
    cdef stat_t status
    cdef uint32_t first
    cdef int64_t count = w.slot.index_count
    if w.slot.index_base != now.active_base or count < 0:
        count = 0
    if w.index_fd < 0 or w.index_base != now.active_base:
        if w.index_fd >= 0:
            close(w.index_fd)
        w.index_base = now.active_base
        w.index_fd = open_to_append(w, now.active_base, b".index", O_RDWR | O_CREAT)
        if w.index_fd < 0 or fstat(w.index_fd, &status):
            return
        if status.st_size < <int64_t>(sizeof(header) + count * sizeof(entry)):
            count = 0                                   # it was removed or cut: it begins again
    if count == 0:
        if read_header_crc(w, 0, &first):
            return
        fill_index_header(&header, now.active_base, first)
        if os_ftruncate(w.index_fd, 0) or os_pwrite(w.index_fd, &header, sizeof(header), 0) != sizeof(header):
            return
        store_i64(&w.slot.index_count, 0)               # before the base: the count that is there is another index's
        store_i64(&w.slot.index_position, 0)
        store_i64(&w.slot.index_base, now.active_base)
    entry.offset, entry.position, entry.max_timestamp, entry.unused = offset, now.position, max_timestamp, 0
    entry.crc = index_crc(&entry)
    if os_pwrite(w.index_fd, &entry, sizeof(entry), sizeof(header) + count * sizeof(entry)) != sizeof(entry):
        return
    store_i64(&w.slot.index_count, count + 1)
    store_i64(&w.slot.index_position, now.position)


cdef int read_header_crc(Writer *w, int64_t position, uint32_t *crc) noexcept nogil:
    """Read the CRC-32C of the header of the batch at a byte of the active segment."""
    cdef unsigned char header[HEADER_SIZE]
    if os_pread(w.log_fd, header, HEADER_SIZE, position) != HEADER_SIZE:
        return -1
    crc[0] = klamm_crc32c(0, header, HEADER_SIZE)
    return 0


cdef void fill_index_header(IndexHeader *header, int64_t base, uint32_t first) noexcept nogil:
    """Fill in the header of an index whose segment is open."""
    memset(header, 0, sizeof(header[0]))
    memcpy(header.magic, <const char *>b"KLAMMIDX", 8)
    header.base, header.first, header.version = base, first, KNOWN_INDEX
    header.crc = header_crc(header)


cdef void close_index(Writer *w, Commit *now) noexcept nogil:
    """Write a last entry, which has the segment's max timestamp, and a header that describes the closed segment. Called
    before a roll.

    Killed after this and before the commit, the segment goes on with such a header, and gets another at the next try.
    Failing leaves an index that is not valid for a closed segment: it is made again in the background.
    """
    cdef IndexHeader header
    cdef uint32_t first
    cdef unsigned char start[12]
    cdef int64_t position = 0, following = 0
    cdef int steps
    if w.slot.index_base == now.active_base and 0 <= w.slot.index_position < now.position:
        following = w.slot.index_position
    write_index(w, now, now.next_offset, now.max_timestamp)
    if w.index_fd < 0 or w.slot.index_base != now.active_base or w.slot.index_position != now.position:
        return
    for steps in range(MOST_HEADERS):                   # the last batch lies about index.interval.bytes before the end
        position = following
        if os_pread(w.log_fd, start, sizeof(start), position) != sizeof(start):
            return
        following = position + 12 + <int64_t>be32(start + LENGTH_AT)
        if following >= now.position:
            break
    if following != now.position or read_header_crc(w, 0, &first):
        return
    fill_index_header(&header, now.active_base, first)
    header.size, header.last_position = now.position, position
    if read_header_crc(w, position, &header.last):
        return
    header.crc = header_crc(&header)
    os_pwrite(w.index_fd, &header, sizeof(header), 0)


cdef int must_index(Writer *w, Commit *now) noexcept nogil:
    """Return whether the batch at now.position gets an entry: one every `index_interval` bytes does."""
    cdef int64_t last = w.slot.index_position if w.slot.index_base == now.active_base else 0
    return now.position - last >= w.index_interval


cdef void maybe_index(Writer *w, Commit *before, int64_t offset) noexcept nogil:
    """Add an index entry if one is due. Called after the commit of a batch at before.position."""
    if must_index(w, before):
        write_index(w, before, offset, before.max_timestamp)


# ---- transactions -------------------------------------------------------------------------------------------------

cdef int note_aborted(Writer *w, Commit *now, const unsigned char *marker) noexcept nogil:
    """Write the entry of an aborted transaction, before its abort is committed: then readers can look it up. One too
    many does no harm: see aborted.py.
    """
    cdef AbortedEntry entry
    cdef stat_t status
    cdef int fd, error = 0
    entry.producer_id, entry.last_offset, entry.unused = <int64_t>be64(marker + PRODUCER_ID_AT), now.next_offset, 0
    entry.first_offset = first_open_of(w, entry.producer_id)
    if entry.first_offset < 0:
        return 0
    entry.crc = aborted_crc(&entry)
    fd = open_to_append(w, now.active_base, b".aborted", O_RDWR | O_CREAT)
    if fd < 0:
        return -errno
    if fstat(fd, &status) or os_pwrite(fd, &entry, sizeof(entry), status.st_size // sizeof(entry) * sizeof(entry)) != sizeof(entry):
        error = -errno if errno else -EBADMSG
    else:
        store_i64(&w.slot.aborted_count, status.st_size // sizeof(entry) + 1)
        store_i64(&w.slot.aborted_base, now.active_base)
    close(fd)
    fetch_add32(&w.slot.segments_version, 1)            # readers keep what they know until this changes
    return error


# ---- append -------------------------------------------------------------------------------------------------------

cdef int is_replaced(StorePath *store_path) noexcept nogil:
    """Return whether the store's path names another file, or none. Checked now and then: it takes a microsecond."""
    cdef int64_t now = klamm_coarse_ns()
    if now - store_path.seen_ns >= PATH_CHECK_NS:
        store_path.seen_ns = now
        look_at(store_path)
    return store_path.replaced


cdef int look_at(StorePath *store_path) noexcept nogil:
    store_path.replaced = os_is_replaced(store_path.path, store_path.root, store_path.device, store_path.inode)
    return store_path.replaced


cdef int refused(Writer *w) noexcept nogil:
    cdef uint64_t flags = load64(&w.slot.flags) ^ w.slot_generation
    if not flags:
        return 0
    if flags & FLAG_DELETED:
        return R_DELETED
    if flags & FLAG_READ_ONLY:
        return R_READ_ONLY
    if flags & FLAG_NEEDS_RECOVERY:
        return R_NEEDS_RECOVERY
    return R_SYNC_FAILED if flags & FLAG_SYNC_FAILED else 0


cdef int needs_files(Writer *w, Commit *now, const unsigned char *batch, size_t size) noexcept nogil:
    """Return whether an append makes a segment or its index, or opens one for the first time: that may take as long as
    a disk does. To reopen what was closed because it was idle takes a few microseconds.
    """
    if w.log_base != now.active_base or (w.log_fd < 0 and now.position == 0) or must_roll(w, now, batch, size):
        return 1
    return must_index(w, now) and w.index_base != now.active_base


cdef int64_t append_locked(Writer *w, unsigned char *batch, size_t size, int same_epoch, int64_t at,
                           int quick) noexcept nogil:
    cdef Commit now = w.slot.ring[w.slot.seq % RING]    # the holder of the append lock needs no snapshot
    cdef Commit before
    cdef int64_t base_offset, end, oldest = -1, producer_id = <int64_t>be64(batch + PRODUCER_ID_AT)
    cdef int attributes = be16(batch + ATTRIBUTES_AT)
    cdef size_t done = 0
    cdef ssize_t written
    cdef int error = refused(w)
    if error:
        return error
    if is_replaced(w.store_path):
        return R_REPLACED
    if load64(&w.store.catalog_version) != w.catalog_version:
        return R_SETTINGS_CHANGED
    if now.seq != w.slot.seq or now.crc != commit_crc(&now) or now.next_offset < flushed_offset_of(load64(&w.slot.flushed)):
        return R_DAMAGED_HEAD                           # the last: an older commit would cut off what was synced
    if now.seq < w.last_seq:
        return R_OLDER_HEAD
    w.last_seq = now.seq
    if at >= 0 and at != now.next_offset:
        return R_ELSEWHERE
    if quick and needs_files(w, &now, batch, size):
        return R_NEEDS_FILES
    error = use_active(w, &now)
    if error:
        return error
    if producer_id >= 0 or w.slot.redo_seq:
        if w.table == NULL or not table_is_current(w):
            return R_NEEDS_PRODUCERS
        error = redo(w, &now)
        if error:
            return error
        if producer_id >= 0:
            if attributes & KLAMM_CONTROL:
                base_offset = check_marker(w, batch, same_epoch)
                oldest = oldest_open(w, producer_id)
                if oldest > now.next_offset:
                    w.table_broken = 1
            else:
                base_offset = check_sequence(w, batch)
            if w.table_broken:
                return drop_table(w)
            if base_offset != R_IN_ORDER:
                return base_offset                      # an error, or where a batch of the same sequences is
    if must_roll(w, &now, batch, size):
        error = roll(w, &now)
        if error:
            return error
    if now.position == 0:
        store_i64(&w.slot.active_since_ms, store_clock_ms(w))
    if attributes & KLAMM_CONTROL and size >= MARKER_SIZE and batch[MARKER_TYPE_AT + 1] == 0:
        error = note_aborted(w, &now, batch)
        if error:
            return error
    if now.position + <int64_t>size > w.room and w.synced_base == now.active_base:
        allocate_ahead(w, &now, size)
    base_offset = now.next_offset
    put_be64(batch, base_offset)
    put_be32(batch + EPOCH_AT, now.leader_epoch)
    store64(&w.slot.intent, now.seq + 1)
    while done < size:
        written = os_pwrite(w.log_fd, batch + done, size - done, now.position + done)
        if written >= 0:
            done += written
        elif errno != EINTR:
            error = -errno
            cut(w, &now)
            return error
    before = now
    end = base_offset + <int32_t>be32(batch + LAST_DELTA_AT) + 1
    if attributes & KLAMM_CONTROL and producer_id >= 0:
        now.stable_offset = oldest if oldest >= 0 else end
    elif now.stable_offset == now.next_offset and not attributes & KLAMM_TRANSACTIONAL:     # and none is open
        now.stable_offset = end
    now.next_offset = end
    now.position += size
    now.max_timestamp = max(now.max_timestamp, <int64_t>be64(batch + MAX_TIMESTAMP_AT))
    if producer_id >= 0:
        store_i64(&w.slot.redo_position, before.position)
        store64(&w.slot.redo_seq, before.seq + 1)       # until the table knows it, too
    publish(w.slot, &now)
    if producer_id >= 0:
        remember(w, batch, base_offset)
        changed_table(w)
        store64(&w.slot.redo_seq, 0)
    maybe_index(w, &before, base_offset)
    if now.active_base != w.slot.recovery_base or now.position - w.slot.recovery_position >= RECOVERY_INTERVAL:
        if now.active_base != w.asked_base or now.position - w.asked_position >= RECOVERY_INTERVAL:
            w.asked_base, w.asked_position = now.active_base, now.position
            if before.next_offset > 0:
                w.events |= EVENT_RECOVERY_POINT
    return base_offset


cdef int is_too_far_ahead(Writer *w, int64_t timestamp) noexcept nogil:
    """Return whether the topic rejects a record with this timestamp (message.timestamp.after.max.ms).

    By both clocks: if one of them is behind, the other may still be right. When the settings have changed, 0: then the
    append itself returns R_SETTINGS_CHANGED, and the next try asks again.
    """
    cdef int64_t now = klamm_wall_ms() + store_ahead_ms(w.store)
    if timestamp <= now or <uint64_t>timestamp - <uint64_t>now <= <uint64_t>w.timestamp_after_ms:
        return 0
    now = store_clock_ms(w)
    if timestamp <= now or <uint64_t>timestamp - <uint64_t>now <= <uint64_t>w.timestamp_after_ms:
        return 0
    return load64(&w.store.catalog_version) == w.catalog_version


cdef int64_t append(Writer *w, unsigned char *batch, size_t size, int wait, int same_epoch, int64_t at,
                    int quick) noexcept nogil:
    """Append one encoded batch: its base offset, or why not. `same_epoch`: what kind of marker it is. `at`: where alone
    it may go.

    `quick`: not if files have to be made for it.
    """
    global ticks
    cdef int64_t result = lock_append(w, wait)
    if result < 0:
        return result
    ticks += 1
    w.used = ticks
    w.duplicate = 0
    result = append_locked(w, batch, size, same_epoch, at, quick)
    unlock_append(w)
    if result >= 0:
        klamm_ring(&w.store.bell, w.bell_bit)
    return result


cdef void close_append_files(Writer *w) noexcept nogil:
    if w.log_fd >= 0:
        close(w.log_fd)
    if w.index_fd >= 0:
        close(w.index_fd)
    w.log_fd = w.index_fd = -1


cdef void close_sync_file(Writer *w) noexcept nogil:
    if w.sync_fd >= 0:
        close(w.sync_fd)
    w.sync_fd = -1


cdef void close_files(Writer *w) noexcept nogil:
    close_append_files(w)
    close_sync_file(w)


cdef void let_go(Writer *w) noexcept:
    w.abandoned = 1
    w.lock_fd = w.life.fd = -1
    w.life.number = 0
    close_files(w)
    unmap_table(w)
