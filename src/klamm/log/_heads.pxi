# The mapped file `heads`, the clocks of the store, and its bell.

cdef int64_t MAPPED = (<int64_t>1 << 40) + 1        # a byte beyond the end of `heads`: shared by each mapping of it
cdef int64_t MAPPED_WAIT_NS = 10000000000


cdef class Heads:
    """The mapped file `heads`: slot 0 is the store's, slot n is a partition's."""
    cdef unsigned char *map
    cdef size_t length
    cdef int64_t reach                  # how much of the file the mapping shows
    cdef int fd
    cdef readonly str path
    cdef readonly bint private, writable
    cdef StorePath store_path
    cdef bytes path_bytes

    def __cinit__(self, path, *, bint writable=True, bint private=False, root=None):
        """Map the file. `private`: changes stay in this process (recovery of a read-only store happens in memory).

        `root`: the directory that `path` leads through (disk/roots.py); it is open until close_descriptor is called.
        """
        self.map, self.fd, self.path, self.private, self.writable = NULL, -1, os.fspath(path), private, writable
        self.length = <size_t>MAX_SLOTS * SLOT_SIZE
        self.fd = _os.open_file(path, os.O_RDWR if writable else os.O_RDONLY)
        status = os.fstat(self.fd)
        self.path_bytes = os.fsencode(os.path.dirname(path) if root is None else root.path)
        self.store_path.path, self.store_path.root = self.path_bytes, -1 if root is None else root.fd
        self.store_path.device, self.store_path.inode = status.st_dev, status.st_ino
        self.store_path.seen_ns, self.store_path.replaced = -PATH_CHECK_NS, 0
        self.hold_size()
        self.reach = self.length if KLAMM_MAPS_GROW else os.fstat(self.fd).st_size
        self.map = <unsigned char *>os_map(self.fd, self.length, writable, private)
        if self.map == NULL:
            raise OSError(errno, os.strerror(errno), path)

    def __dealloc__(self):
        if self.map != NULL:
            os_unmap(self.map, self.length)
        if self.fd >= 0:
            close(self.fd)

    cdef int hold_size(self) except -1:
        """Share the byte that a process must hold alone to make the file smaller: access to a slot that was cut off
        raises SIGBUS.

        The mapping keeps the open file, and so the lock, until the last process that has it is gone: forked children
        that have closed every descriptor, too. A file system without locks has none for `SoleMapping`, either.
        """
        cdef int64_t until = klamm_monotonic_ns() + MAPPED_WAIT_NS
        while os_lock(self.fd, MAPPED, F_RDLCK, 0) and errno in (EAGAIN, EACCES):
            if klamm_monotonic_ns() > until:
                raise StoreBusy(f"{self.path}: another process makes the file smaller",
                                hint="try again; if that process is stopped, continue it or end it")
            time.sleep(0.001)
        return 0

    def cut(self, int64_t end):
        """Let the file end with slot `end` - 1. As the sole mapping: no process has a slot behind it."""
        _os.truncate(self.fd, end * SLOT_SIZE)
        _os.fsync(self.fd)

    cdef StoreSlot *store(self):
        return <StoreSlot *>self.map

    def is_in_place(self):
        """Return whether the store at the path is still this one: no copy was put there, and it was not moved away."""
        return not look_at(&self.store_path)

    def check_place(self, *, bint now=False):
        """Raise NotAStore if another store, or none, is at the path: looked at `now`, or a tenth of a second ago."""
        if look_at(&self.store_path) if now else is_replaced(&self.store_path):
            raise NotAStore(
                f"{os.fsdecode(self.path_bytes)}: the store was removed or replaced while it is open: heads is gone, or another file",
                hint="close it, and open the one that is there; if its directory was moved, what was just appended is there",
            )

    def close_descriptor(self):
        """Close the descriptor; the mapping stays until it is not in use."""
        if self.fd >= 0:
            close(self.fd)
        self.fd = self.store_path.root = -1

    def size(self):
        """Return how many slots the file holds, slot 0 included."""
        return min(os.fstat(self.fd).st_size, self.reach) // SLOT_SIZE

    def lay_out(self, int64_t first, int64_t end, uint64_t flags=0, *, bytes topic_id=b"", int64_t number=0):
        """Write empty slots [first, end) in full and sync them: a sparse page on a full disk would be a SIGBUS.

        With `topic_id`, they are that topic's partitions from `number` on.
        """
        if end > MAX_SLOTS:
            raise OverflowError(f"{self.path}: a store holds at most {MAX_SLOTS - 1} partitions")
        cdef Slot slot
        memset(&slot, 0, sizeof(slot))
        slot.ring[0].max_timestamp = -1
        slot.ring[0].crc = commit_crc(&slot.ring[0])
        slot.recovery_base = -1
        slot.aborted_base = -1
        slot.flushed_check = ~<int64_t>0
        slot.index_base = -1
        slot.flags = flags
        slots = bytearray()
        for number in range(number, number + end - first):
            if topic_id:
                memcpy(slot.topic_id, <char *>topic_id, 16)
                slot.number = number
                slot.identity_crc = slot_identity_crc(&slot)
            slots += (<char *>&slot)[:sizeof(slot)]
        self.write(bytes(slots), first * SLOT_SIZE)

    def initialise(self):
        """Write slot 0 of a new file."""
        cdef StoreSlot store
        memset(&store, 0, sizeof(store))
        memcpy(store.magic, HEADS_MAGIC, 8)
        store.format = FORMAT
        store.format_crc = store_format_crc(&store)
        self.write(bytes((<char *>&store)[:sizeof(store)]), 0)

    cdef write(self, bytes slots, int64_t position):
        _os.pwrite(self.fd, slots, position)
        _os.fsync(self.fd)
        if os_map_more(self.map, self.fd, position, len(slots)):
            raise OSError(errno, os.strerror(errno), self.path)
        self.reach = max(self.reach, position + len(slots))

    def sync(self):
        """Make the file durable, with what was stored through the mapping."""
        _os.fsync(self.fd)

    def is_sane(self):
        """Return whether slot 0 is valid: of this format, a newer one, or format 1, which had no checksum."""
        cdef StoreSlot *store = self.store()
        if self.size() < 1 or memcmp(store.magic, HEADS_MAGIC, 8) != 0:
            return False
        return store.format_crc == store_format_crc(store) or (store.format == 1 and store.format_crc == 0)

    @property
    def format(self):
        return self.store().format

    @property
    def features(self):
        """The three words of features."""
        return tuple(self.store().features)

    def set_format(self, uint32_t number, features):
        """Write format and features, durably. The format is the last store: before it, the file is of the old one."""
        cdef StoreSlot next
        memcpy(&next, self.store(), sizeof(next))
        next.format = number
        next.features[0], next.features[1], next.features[2] = features
        self.store().features = next.features
        self.sync()
        store64(<uint64_t *>&self.store().format, <uint64_t>store_format_crc(&next) << 32 | number)
        self.sync()

    def is_trusted(self, bytes boot_id not None):
        """Return whether this file was last written under this boot, and is not a copy."""
        status = os.fstat(self.fd)
        cdef StoreSlot *store = self.store()
        if store.anchor_check != store.anchor_wall_ms ^ ~store.anchor_boot_ms:
            return False
        return (bytes(store.boot_id[:16]) == boot_id and store.device == status.st_dev and store.inode == status.st_ino)

    def trust(self, bytes boot_id not None):
        """Mark the file as trusted: the last step of an opener's recovery. No process holds an append lock then."""
        status = os.fstat(self.fd)
        cdef StoreSlot *store = self.store()
        self.free_locks()
        store_i64(&store.anchor_wall_ms, klamm_wall_ms())
        store_i64(&store.anchor_boot_ms, klamm_boot_ms())
        store_i64(&store.anchor_check, store.anchor_wall_ms ^ ~store.anchor_boot_ms)
        store_i64(&store.ahead_ms, 0)
        store_i64(&store.ahead_check, ~<int64_t>0)
        store_i64(&store.shift_ms, 0)
        store_i64(&store.shift_check, ~<int64_t>0)
        store_i64(&store.drift_since_ms, 0)
        store_i64(&store.retention_checked_ms, 0)
        store.bell.mask = 0
        store.device, store.inode = status.st_dev, status.st_ino
        klamm_step(STEP_STORE)
        memcpy(store.boot_id, <char *>boot_id, 16)

    cdef int free_locks(self) except -1:
        """Clear owner words of another boot, another store, or of no life. Called while this process is alone."""
        cdef int64_t number
        cdef Slot *slot
        for number in range(1, self.size()):
            slot = <Slot *>(self.map + number * SLOT_SIZE)
            if load32(&slot.owner):
                store32(&slot.owner, 0)
        return 0

    def forget_lives(self):
        """Clear the owner words of format 1, which had other things there. Called while this process is alone."""
        self.free_locks()
        store32(&self.store().lives, 0)

    def mark_all(self, uint64_t flag):
        """Set a flag in every partition's slot."""
        cdef int64_t number
        for number in range(1, self.size()):
            fetch_or64(&(<Slot *>(self.map + number * SLOT_SIZE)).flags, flag)

    def mark(self, int64_t number, uint64_t flag):
        """Set a flag in one partition's slot."""
        if not 0 < number < self.size():
            raise IndexError(f"{self.path}: has no slot {number}")
        fetch_or64(&(<Slot *>(self.map + number * SLOT_SIZE)).flags, flag)

    def identity_of(self, int64_t number):
        """Return (topic id, partition number) of a slot; None if it has none."""
        cdef Slot *slot = <Slot *>(self.map + number * SLOT_SIZE)
        if not 0 < number < self.size() or slot.identity_crc != slot_identity_crc(slot):
            return None
        identity = bytes(slot.topic_id[:16])
        return (identity.hex(), slot.number) if any(identity) else None

    @property
    def lock_files(self):
        """Inodes of `lock` and `members`, as the processes that have the store open know them."""
        return self.store().lock_inode, self.store().members_inode

    @lock_files.setter
    def lock_files(self, inodes):
        self.store().lock_inode, self.store().members_inode = inodes

    @property
    def database_inode(self):
        """The inode of klamm.db; 0 if it is not known, or this file is a copy."""
        status = os.fstat(self.fd)
        cdef StoreSlot *store = self.store()
        return store.database_inode if store.device == status.st_dev and store.inode == status.st_ino else 0

    @database_inode.setter
    def database_inode(self, uint64_t inode):
        self.store().database_inode = inode

    @property
    def changes(self):
        """How many changes klamm.db has at least."""
        cdef StoreSlot *store = self.store()
        return store.changes if store.changes_check == ~store.changes else 0

    @changes.setter
    def changes(self, uint64_t value):
        store64(&self.store().changes, value)
        store64(&self.store().changes_check, ~value)

    @property
    def store_id(self):
        """The id of the store, in hexadecimal; None if it is not known."""
        identity = bytes(self.store().store_id[:16])
        return identity.hex() if any(identity) else None

    @store_id.setter
    def store_id(self, text):
        identity = bytes.fromhex(text)
        if len(identity) == 16:
            memcpy(self.store().store_id, <char *>identity, 16)

    def flags_of(self, int64_t number):
        """Return the flags of one partition's slot."""
        if not 0 < number < self.size():
            raise IndexError(f"{self.path}: has no slot {number}")
        return load64(&(<Slot *>(self.map + number * SLOT_SIZE)).flags) & 0xffffffffu

    @property
    def catalog_version(self):
        return load64(&self.store().catalog_version)

    def bump_catalog_version(self):
        """Tell every process that topics or settings changed."""
        fetch_add64(&self.store().catalog_version, 1)

    @property
    def groups_version(self):
        return load64(&self.store().groups_version)

    def bump_groups_version(self):
        """Tell every process that members of a group came, went or gave partitions back."""
        fetch_add64(&self.store().groups_version, 1)

    @property
    def retention_checked_ms(self):
        """When retention was last checked, by the boot clock; 0: not since the boot."""
        return load_i64(&self.store().retention_checked_ms)

    @retention_checked_ms.setter
    def retention_checked_ms(self, int64_t boot_ms):
        self.store().retention_checked_ms = boot_ms     # not a step: nothing depends on it but when the next check is

    def clock_ms(self):
        """Return the store's clock: wall time at the first open since boot, plus time passed. It does not jump."""
        cdef StoreSlot *store = self.store()
        return store.anchor_wall_ms + klamm_boot_ms() - store.anchor_boot_ms + store_ahead_ms(store)

    def followed_ms(self):
        """Return the store's clock, set by `follow_wall`: it may jump, after the wall clock was off for an hour."""
        return self.clock_ms() + store_shift_ms(self.store())

    def expiry_ms(self):
        """Return the time by which records expire: a record stays unless it is too old by both clocks."""
        return min(self.followed_ms(), self.wall_ms())

    def latest_ms(self):
        """Return the later of both clocks, for deadlines that must not come too early."""
        return max(self.followed_ms(), self.wall_ms())

    def follow_wall(self):
        """Set the followed clock to the wall clock, if the two have differed by the same amount for an hour.

        Called before records are expired; nothing else needs it. Not for a read-only mapping.
        """
        cdef StoreSlot *store = self.store()
        cdef int64_t drift = self.wall_ms() - self.followed_ms()
        cdef int64_t now = self.boot_ms()
        cdef int64_t since = load_i64(&store.drift_since_ms)
        if -DRIFT_MS <= drift <= DRIFT_MS:
            if since:
                store_i64(&store.drift_since_ms, 0)
        elif not 0 < since <= now or not -DRIFT_MS <= drift - load_i64(&store.drift_ms) <= DRIFT_MS:
            store_i64(&store.drift_ms, drift)
            store_i64(&store.drift_since_ms, max(now, 1))
        elif now - since >= FOLLOW_AFTER_MS:
            drift += store_shift_ms(store)
            store_i64(&store.shift_ms, drift)
            store_i64(&store.shift_check, ~drift)
            store_i64(&store.drift_since_ms, 0)

    def wall_ms(self):
        """Return the wall time, for records stamped at their append."""
        return klamm_wall_ms() + store_ahead_ms(self.store())

    def boot_ms(self):
        """Return the time since the machine was started, for what times out."""
        return klamm_boot_ms() + store_ahead_ms(self.store())

    def advance(self, int64_t ms):
        """Advance all three clocks, for every process that has the store open, until the next boot. For tests."""
        cdef StoreSlot *store = self.store()
        cdef int64_t ahead = store_ahead_ms(store) + ms
        store_i64(&store.ahead_ms, ahead)
        store_i64(&store.ahead_check, ~ahead)

    def note_address(self, int64_t byte):
        """Return the address of the note beside a lock byte (os.h), for disk/_hold.pxi; 0 if there is none."""
        cdef int64_t slot = byte // 4
        if self.private or self.fd < 0 or not 0 <= slot < self.size() or (slot > 0 and byte % 4 == APPEND):
            return 0
        return <uint64_t><size_t>self.note_of(byte)

    cdef KlammLockNote *note_of(self, int64_t byte) noexcept:
        """Return the note of a lock byte. An append lock has none, but its `holder` is where a note's would be."""
        return <KlammLockNote *>(self.map + byte // 4 * SLOT_SIZE + NOTES_AT) + byte % 4

    def holder_of(self, int64_t byte):
        """Return the word that says which process took a lock last (os.h); 0 if no process did. 4n: the append lock."""
        if self.fd < 0 or not 0 <= byte // 4 < self.size():
            return 0
        return load64(&self.note_of(byte).holder)

    def owner_of(self, int64_t number):
        """Return the life number of the process that holds an append lock, or held it when it died; 0: it is free."""
        if self.fd < 0 or not 0 < number < self.size():
            return 0
        return load32(&(<Slot *>(self.map + number * SLOT_SIZE)).owner) & ~WAITERS

    def owners(self):
        """Return (slot, life number) of each append lock that is not free."""
        return [(number, owner) for number in range(1, self.size()) if (owner := self.owner_of(number))]

    def flush_generation_of(self, int64_t number):
        """Return how often a syncing process was replaced there, modulo 256."""
        if self.fd < 0 or not 0 < number < self.size():
            return 0
        return (load64(&(<Slot *>(self.map + number * SLOT_SIZE)).flushed) & FLUSH_GENERATION) >> 55

    def __getbuffer__(self, Py_buffer *view, int flags):
        """Expose how far the clocks are ahead, as two words, to native code that stamps records."""
        PyBuffer_FillInfo(view, self, &self.store().ahead_ms, 16, 1, flags)

    def ring_all(self):
        """Wake every waiter; of a mapping that can only be read, none: its own waiters look by themselves."""
        cdef StoreSlot *store = self.store()
        if self.writable:
            klamm_ring(&store.bell, 0xffffffffu)


cdef class SoleMapping:
    """`heads` with no other mapping of the file, for the length of a `with` block, which is told whether it is so."""
    cdef Heads heads

    def __cinit__(self, Heads heads not None):
        self.heads = heads

    def __enter__(self):
        return bool(KLAMM_BYTE_LOCKS) and os_lock(self.heads.fd, MAPPED, F_WRLCK, 0) == 0

    def __exit__(self, *_):
        os_lock(self.heads.fd, MAPPED, F_RDLCK, 0)
