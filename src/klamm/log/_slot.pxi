"""Declarations of `slot.h` and of the system, results of an append, and a process's state of a partition."""

cdef extern from "os.h" nogil:
    ctypedef struct pthread_mutex_t "KlammMutex":
        pass
    int pthread_mutex_init "klamm_mutex_init"(pthread_mutex_t *, void *)
    int pthread_mutex_unlock "klamm_mutex_unlock"(pthread_mutex_t *)
    int klamm_mutex_lock(pthread_mutex_t *, int)
    ctypedef struct stat_t "KlammStat":
        uint64_t st_dev, st_ino
        int64_t st_size
    int fstat(int fd, stat_t *out)
    void *os_map(int, size_t, int, int)
    int os_map_more(void *, int, int64_t, int64_t)
    void os_unmap(void *, size_t)
    enum:
        KLAMM_MAPS_GROW, KLAMM_BYTE_LOCKS
    int close(int)
    int snprintf(char *, size_t, const char *, ...)

cdef extern from "slot.h" nogil:
    ctypedef struct KlammBell:
        uint32_t word, mask
    ctypedef struct Commit:
        int64_t next_offset, active_base, position, stable_offset, max_timestamp, log_start
        uint64_t seq
        uint32_t leader_epoch, crc
    ctypedef struct KlammLockNote:
        uint64_t holder
        uint32_t released, waiting
    ctypedef struct KlammLife:
        uint32_t number
        int fd
        uint64_t inode
    enum:
        OWNER_TRY, OWNER_WAIT, OWNER_SLEPT
    uint32_t WAITERS
    int64_t LIFE_AT "LIFE"
    uint32_t klamm_identity()
    void klamm_note_holder(uint64_t *, uint32_t)
    int life_begin(KlammLife *, uint32_t *)
    int life_goes_on(const KlammLife *, uint32_t)
    int owner_take(uint32_t *, const KlammLife *, int)
    void owner_drop(uint32_t *, const KlammLife *)
    int owner_swap(uint32_t *, uint32_t, uint32_t)
    ctypedef struct Slot:
        uint64_t holder
        uint32_t owner
        KlammLockNote notes[3]
        uint64_t seq, flags, flushed, intent, redo_seq
        int64_t index_base, index_position, index_count, recovery_base, recovery_position
        int64_t redo_position, active_since_ms, flushed_check, aborted_base, aborted_count
        uint64_t producers_seq
        char topic_id[16]
        uint32_t number, identity_crc
        uint32_t segments_version, flush_round
        Commit ring[8]
    ctypedef struct StoreSlot:
        char magic[8]
        uint32_t format, format_crc
        uint64_t features[3]
        char boot_id[16]
        uint64_t device, inode, catalog_version, groups_version
        KlammBell bell
        int64_t anchor_wall_ms, anchor_boot_ms, anchor_check, ahead_ms, ahead_check
        int64_t shift_ms, shift_check, drift_ms, drift_since_ms, retention_checked_ms
        uint64_t lock_inode, members_inode, database_inode, changes, changes_check
        char store_id[16]
        uint32_t lives
        KlammLockNote notes[4]
    ctypedef struct IndexHeader:
        char magic[8]
        int64_t base, size, last_position
        uint32_t first, last, version, crc
    ctypedef struct IndexEntry:
        int64_t offset, position, max_timestamp
        uint32_t unused, crc
    ctypedef struct AbortedEntry:
        int64_t producer_id, first_offset, last_offset
        uint32_t unused, crc
    enum:
        RING, SLOT_SIZE, NOTES_AT, STEP_READ, STEP_STORE
    int KLAMM_HEADER, KLAMM_OK, KLAMM_TRANSACTIONAL, KLAMM_CONTROL
    int klamm_check_batches(const unsigned char *, int64_t, int64_t *, int64_t *, int, int64_t)
    int64_t klamm_body_size(int64_t, int64_t, int64_t, int64_t, int64_t)
    int klamm_varint_size(int64_t)
    unsigned char *klamm_put_record(unsigned char *, int64_t, int64_t, int64_t, const unsigned char *, int64_t,
                                    const unsigned char *, int64_t)
    void klamm_finish_header(unsigned char *, size_t, int32_t, int32_t, int64_t, int64_t, uint16_t, int64_t, int16_t, int32_t)
    uint16_t be16 "klamm_get16"(const unsigned char *)
    uint32_t be32 "klamm_get32"(const unsigned char *)
    uint64_t be64 "klamm_get64"(const unsigned char *)
    void put_be32 "klamm_put32"(unsigned char *, uint32_t)
    void put_be64 "klamm_put64"(unsigned char *, uint64_t)
    uint64_t FLUSHING, FLUSH_GENERATION, SLOT_GENERATION
    uint64_t next_slot_generation(uint64_t)
    int64_t FLUSHED_MAX
    int64_t flushed_offset_of(uint64_t)
    uint64_t next_generation(uint64_t)
    int64_t flush_byte_of(int64_t, uint64_t)
    int klamm_exchange(uint64_t *, uint64_t, uint64_t)
    int64_t store_ahead_ms(const StoreSlot *)
    int64_t store_shift_ms(const StoreSlot *)
    uint32_t commit_crc(const Commit *)
    uint32_t klamm_crc32c(uint32_t, const void *, size_t)
    uint32_t slot_identity_crc "identity_crc"(const Slot *)
    uint32_t store_format_crc "format_crc"(const StoreSlot *)
    uint32_t header_crc "entry_crc"(IndexHeader *)
    uint32_t index_crc "entry_crc"(IndexEntry *)
    uint32_t aborted_crc "entry_crc"(AbortedEntry *)
    void load_commit(Commit *, const Commit *)
    void store_commit(Commit *, const Commit *)
    void klamm_share_trap(uint64_t)
    int klamm_step(uint32_t)
    uint64_t load64 "klamm_load"(uint64_t *)
    int64_t load_i64 "klamm_load"(int64_t *)
    uint32_t load32 "klamm_load"(uint32_t *)
    void store64 "klamm_store"(uint64_t *, uint64_t)
    void store_i64 "klamm_store"(int64_t *, int64_t)
    void store32 "klamm_store"(uint32_t *, uint32_t)
    uint64_t fetch_or64 "klamm_fetch_or"(uint64_t *, uint64_t)
    uint64_t fetch_and64 "klamm_fetch_and"(uint64_t *, uint64_t)
    uint32_t fetch_add32 "klamm_fetch_add"(uint32_t *, uint32_t)
    uint64_t fetch_add64 "klamm_fetch_add"(uint64_t *, uint64_t)
    void klamm_fence_acquire()
    void klamm_fence_release()
    void klamm_pause()
    void klamm_ring(KlammBell *, uint32_t)
    uint32_t klamm_listen(KlammBell *, uint32_t)
    int64_t klamm_monotonic_ns()
    int64_t klamm_wall_ms()
    int64_t klamm_boot_ms()
    int64_t klamm_coarse_ns()
    int os_open(const char *, int)
    int os_is_replaced(const char *, int, uint64_t, uint64_t)
    ssize_t os_pread(int, void *, size_t, int64_t)
    ssize_t os_pread_cached(int, void *, size_t, int64_t)
    ssize_t os_pwrite(int, const void *, size_t, int64_t)
    int os_ftruncate(int, int64_t)
    int os_fsync(int)
    int os_fdatasync(int)
    int os_sync_directory(const char *)
    ctypedef struct KlammListing:
        pass
    int os_list(KlammListing *, const char *)
    int os_list_next(KlammListing *, char *, size_t)
    void os_list_end(KlammListing *)
    int os_lock(int, int64_t, int, int)
    int os_takes_blocks_ahead(int)
    int os_allocate(int, int64_t, int64_t)
    void os_futex_wake(uint32_t *, uint32_t)
    void os_futex_wake_one(uint32_t *)
    int os_futex_wait(uint32_t *, uint32_t, uint32_t, int64_t)
    int F_RDLCK, F_WRLCK, F_UNLCK, O_RDWR, O_RDONLY, O_CREAT

cdef enum:
    FLAG_DELETED = 1
    FLAG_READ_ONLY = 2
    FLAG_SYNC_FAILED = 4
    FLAG_NEEDS_RECOVERY = 8
    FLAG_NEW_HEAD = 16              # laid out for a log that was there before: nothing in it tells of the log
    # Results that are no errno.
    R_DELETED = -10001
    R_READ_ONLY = -10002
    R_SYNC_FAILED = -10003
    R_NEEDS_RECOVERY = -10004
    R_SETTINGS_CHANGED = -10005
    R_DAMAGED_HEAD = -10006         # the commit's CRC is wrong
    R_SHORT_SEGMENT = -10007        # the active segment ends before the commit
    R_ABANDONED = -10008            # used in a forked child, or after close
    R_NEEDS_PRODUCERS = -10009      # the table of producers must be mapped, made again or grown first
    R_FENCED = -10010
    R_OUT_OF_ORDER = -10011
    R_NOT_PLAIN = -10012            # append_one leaves it to the general way
    R_ENDED = -10013                # a marker for a transaction that has one, or that a later one has followed
    R_ELSEWHERE = -10014            # the log goes on at another offset than the one wanted
    R_TOO_FAR_AHEAD = -10015        # a record's timestamp lies too far in the future
    R_OLDER_HEAD = -10016           # the log goes on beyond the commit, and no writer died
    R_NEEDS_FILES = -10017          # a quick append would have to make files
    R_REPLACED = -10018             # another store, or none, is at the path by now
    R_TOO_MANY_PRODUCERS = -10030   # each of those that the table has room for has an open transaction
    # Lock bytes of slot n: 4n + these; the notes of FLUSH and those after it have the same order. APPEND is not a byte,
    # but a word of the slot; processes that wait for it show that as for a byte.
    APPEND = 0
    FLUSH = 1
    POINT = 3
    # Kafka v2 batch header. Base offset and leader epoch lie before the CRC's range: patched without a new checksum.
    LENGTH_AT = 8
    EPOCH_AT = 12
    MAGIC_AT = 16
    ATTRIBUTES_AT = 21
    LAST_DELTA_AT = 23
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    HEADER_SIZE = 61
    MARKER_TYPE_AT = 68             # of a control batch, low byte: 0 abort, 1 commit (see batch/markers.py)
    MARKER_SIZE = 78
    KNOWN_INDEX = 2                 # version of the indexes that are written and read
    PATH_ROOM = 4096
    ONE_ROOM = 4096                 # the largest batch append_one makes
    DRIFT_MS = 60 * 1000            # the wall clock and the store's clock may differ by so much
    FOLLOW_AFTER_MS = 60 * 60 * 1000    # the store's clock follows the wall clock once they have differed for so long
    RECOVERY_INTERVAL = 64 << 20    # bytes between two recovery points
    EVENT_OPENED = 1
    EVENT_ROLLED = 2
    EVENT_RECOVERY_POINT = 4
    EVENT_MISSING_INDEX = 8         # not of an append: a reader met a closed segment without a valid index
    BOOT_CLOCK_NS = 10000000        # so late may the clock be that a roll by age asks
    SLEEP_NS = 20000000             # at most so long a process waits for a lock in one piece
    MOST_HEADERS = 65536            # that a roll reads to find the last batch of the segment
    SHOW_NS = 100000000             # a wait that takes longer is shown to others (see locks.WAITING)
    PATH_CHECK_NS = 100000000       # so late a process may learn that its store is not at its path any more

cdef const char *HEADS_MAGIC = b"KLAMMHDS"      # of slot 0

cdef struct StorePath:              # where a store was opened, and its file `heads`
    const char *path
    int root                        # a descriptor of the directory, or -1
    uint64_t device, inode
    int64_t seen_ns                 # when it was last looked at, by a coarse clock
    int replaced

cdef struct Writer

include "_producers.pxi"

cdef struct Writer:
    Slot *slot
    StoreSlot *store
    StorePath *store_path
    uint32_t bell_bit, identity
    KlammLife life                  # without a number: no append
    int lock_fd, log_fd, index_fd, sync_fd, abandoned
    int64_t first_byte, flush_byte, held_byte, log_base, index_base, sync_base
    int64_t segment_bytes, segment_ms, segment_records, index_interval, producer_expiration_ms
    int64_t timestamp_after_ms
    uint64_t catalog_version
    uint64_t generation             # of the flush byte that this process holds: bits of Slot.flushed
    uint64_t slot_generation        # of the slot, when this log was opened: bits of Slot.flags
    uint64_t used                   # a tick of the last append, for closing idle files
    uint64_t last_seq               # of the latest commit that this process saw when it appended
    int64_t room                    # the active segment has blocks up to there; INT64_MAX: none are allocated ahead
    int64_t synced_base             # of the active segment that this process has synced; -1: none
    int64_t asked_base, asked_position      # where maintenance was last asked for
    int64_t boot_ms, boot_read_ns   # what the boot clock said, and when it was read, by a coarse clock
    int events, duplicate
    Table *table
    size_t table_room               # bytes of the mapping
    uint64_t table_capacity         # entries that the file surely has
    int table_broken                # something in the table cannot be: it is to be made again
    pthread_mutex_t append_mutex, flush_mutex
    const char *path                # the partition's directory, with a slash


cdef object as_snapshot(const Commit *c):
    return Snapshot(c.next_offset, c.active_base, c.position, c.stable_offset, c.max_timestamp, c.log_start, c.seq, c.leader_epoch)


class Result(IntEnum):
    """Results that native calls return instead of an offset, besides -errno."""
    DELETED = R_DELETED
    READ_ONLY = R_READ_ONLY
    SYNC_FAILED = R_SYNC_FAILED
    NEEDS_RECOVERY = R_NEEDS_RECOVERY
    SETTINGS_CHANGED = R_SETTINGS_CHANGED
    DAMAGED_HEAD = R_DAMAGED_HEAD
    SHORT_SEGMENT = R_SHORT_SEGMENT
    ABANDONED = R_ABANDONED
    NEEDS_PRODUCERS = R_NEEDS_PRODUCERS
    FENCED = R_FENCED
    OUT_OF_ORDER = R_OUT_OF_ORDER
    NOT_PLAIN = R_NOT_PLAIN
    ENDED = R_ENDED
    ELSEWHERE = R_ELSEWHERE
    TOO_FAR_AHEAD = R_TOO_FAR_AHEAD
    OLDER_HEAD = R_OLDER_HEAD
    NEEDS_FILES = R_NEEDS_FILES
    REPLACED = R_REPLACED
    TOO_MANY_PRODUCERS = R_TOO_MANY_PRODUCERS


class HeadResult(Exception):
    """A native call that returns no number has a Result. Partition raises one of our errors in its place."""

    def __init__(self, result, directory):
        super().__init__(f"{directory}: {result.name}")
        self.result = result


cdef object result_error(int64_t result, directory):
    if result <= R_DELETED:
        return HeadResult(Result(result), directory)
    return OSError(-result, os.strerror(-result), directory)
