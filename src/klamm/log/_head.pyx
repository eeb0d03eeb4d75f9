# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Appending to a partition: the native half of head.py, which tells the protocol.

`append` and everything it calls runs without the GIL, without Python objects and without allocation. Functions give
a result >= 0, -errno, or one of the codes below; `Log` passes them on, and partition.py turns them into exceptions.
"""

import os
import struct
import time
from collections import namedtuple
from enum import IntEnum
from functools import update_wrapper

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EACCES, EAGAIN, EBADF, EBADMSG, EINTR, ENAMETOOLONG, ENOENT, ENOMEM, EOVERFLOW, ESTALE, errno
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset, strcmp, strlen

from klamm.disk import _os
from klamm.errors import NotAStore, StoreBusy

include "_slot.pxi"
include "_append.pxi"
include "_ahead.pxi"
include "_reuse.pxi"

klamm_share_trap(_os.trap_address())

include "_exports.pxi"


include "_heads.pxi"
include "_life.pxi"
include "_tail.pxi"


cdef class Log:
    """A partition's slot and the files that its appends and syncs use."""
    cdef Writer w
    cdef Heads heads
    cdef bytes path
    cdef readonly int number
    cdef object lock_file
    cdef Life life

    def __cinit__(self, Heads heads not None, int number, directory, lock_file, uint32_t bell_bit, *, Life life=None,
                  identity=None):
        """Open a log, read-only without `life` and `lock_file`: a LockFile, which bounds waits and names holders.

        `identity`: topic id and number of the partition. HeadResult (DELETED) if the slot is another one's by now.
        """
        cdef bytes path = os.fsencode(directory) + b"/"
        if len(path) >= PATH_ROOM:
            raise OSError(ENAMETOOLONG, "the path is too long", directory)
        if not 0 < number < MAX_SLOTS:
            raise ValueError(f"slot {number} is out of range")
        self.heads, self.number, self.lock_file = heads, number, lock_file
        memset(&self.w, 0, sizeof(self.w))
        pthread_mutex_init(&self.w.append_mutex, NULL)
        pthread_mutex_init(&self.w.flush_mutex, NULL)
        self.w.slot = <Slot *>(heads.map + <size_t>number * SLOT_SIZE)
        self.w.store = heads.store()
        self.w.store_path = &heads.store_path
        self.w.bell_bit = bell_bit
        self.w.identity = klamm_identity()
        self.w.lock_fd = -1 if lock_file is None else lock_file.fd
        self.w.life.fd = -1
        self.w.log_fd = self.w.index_fd = self.w.sync_fd = -1
        self.w.first_byte, self.w.flush_byte = 4 * <int64_t>number, 4 * <int64_t>number + 1
        self.w.asked_base = self.w.synced_base = self.w.log_base = self.w.index_base = -1
        self.w.timestamp_after_ms = INT64_MAX
        self.path = path
        self.w.path = path
        self.w.slot_generation = load64(&self.w.slot.flags) & SLOT_GENERATION
        if identity is not None:
            known = heads.identity_of(number)
            if (known is not None and known != identity) or is_reused(&self.w):
                raise result_error(R_DELETED, directory)
        if life is not None:
            life.join(self)

    def __dealloc__(self):
        close_files(&self.w)
        unmap_table(&self.w)

    def configure(self, *, int64_t segment_bytes, int64_t segment_ms, int64_t segment_records,
                  int64_t index_interval, int64_t producer_expiration_ms, int64_t timestamp_after_ms,
                  uint64_t catalog_version):
        """Set the topic's settings, as of a version of the catalog.

        Without the lock: opening a log, for reading, say, must not wait for a stopped writer. An append
        that is on its way may see some of them old and some new.
        """
        self.w.segment_bytes, self.w.segment_ms, self.w.segment_records = segment_bytes, segment_ms, segment_records
        self.w.index_interval, self.w.producer_expiration_ms = index_interval, producer_expiration_ms
        self.w.timestamp_after_ms = timestamp_after_ms
        klamm_fence_release()
        self.w.catalog_version = catalog_version

    def confirm(self, uint64_t catalog_version):
        """Record that the settings are those of this version of the catalog, too."""
        self.w.catalog_version = catalog_version

    def append(self, unsigned char[::1] batch not None, Py_ssize_t size=-1, bint wait=True, bint same_epoch=False,
               int64_t at=-1, bint quick=False):
        """Append the batch in the first `size` bytes, whose base offset and epoch are overwritten.

        Its base offset, or a negative result: -errno, or a Result; then its leader epoch is -1, so a caller that an
        interrupt kept from the result can tell. `same_epoch`: see Partition.append_marker.
        `at`: the offset it has to get; -1: whichever it is. StoreBusy if the lock is not free in time.
        `quick`: return NEEDS_FILES rather than make a file, or open one for the first time.
        """
        cdef int64_t result
        cdef int how = wait
        cdef Wait wait_for = None
        if size < 0:
            size = batch.shape[0]
        if not HEADER_SIZE <= size <= batch.shape[0] or 12 + <Py_ssize_t>be32(&batch[LENGTH_AT]) != size or batch[MAGIC_AT] != 2:
            raise ValueError("not one whole v2 batch")
        if <int32_t>be32(&batch[LAST_DELTA_AT]) < 0:
            raise ValueError("a batch with a negative last offset delta")
        if is_too_far_ahead(&self.w, <int64_t>be64(&batch[MAX_TIMESTAMP_AT])):
            return R_TOO_FAR_AHEAD
        while True:
            with nogil:
                result = append(&self.w, &batch[0], size, how, same_epoch, at, quick)
                if result < 0:
                    put_be32(&batch[EPOCH_AT], 0xffffffffu)
            if result != -EINTR:
                return result
            if wait_for is None:
                wait_for, how = Wait(self, APPEND), OWNER_SLEPT
            wait_for.go_on()

    def append_one(self, key, value, int64_t timestamp=-1):
        """Append a batch of one record: exact bytes or None, no headers, at most ONE_BYTES. The quick way for one.

        Its offset; EVENTFUL - offset if there are events; or a negative result. "not_plain": use `append` instead.
        """
        return self.append_record(key, value, timestamp)

    cdef int64_t append_at_version(self, key, value, uint64_t version) except? -1:
        """Like `append_one`, with the time of now; SETTINGS_CHANGED if the catalog has another version by now."""
        if load64(&self.w.store.catalog_version) != version:
            return R_SETTINGS_CHANGED
        return self.append_record(key, value, -1)

    cdef int64_t append_record(self, key, value, int64_t timestamp) except? -1:
        cdef unsigned char batch[ONE_ROOM]
        cdef const unsigned char *key_data = NULL
        cdef const unsigned char *value_data = NULL
        cdef int64_t key_size = -1, value_size = -1, body, size, result
        cdef int how = OWNER_WAIT
        cdef Wait wait_for = None
        if value is not None:
            if type(value) is not bytes:
                return R_NOT_PLAIN
            value_data, value_size = <const unsigned char *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        if key is not None:
            if type(key) is not bytes:
                return R_NOT_PLAIN
            key_data, key_size = <const unsigned char *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        body = klamm_body_size(0, 0, key_size, value_size, 1)
        size = KLAMM_HEADER + body + klamm_varint_size(body)
        if size > ONE_ROOM or timestamp < -1:
            return R_NOT_PLAIN
        if timestamp < 0:
            timestamp = klamm_wall_ms() + store_ahead_ms(self.w.store)
        elif is_too_far_ahead(&self.w, timestamp):
            return R_NOT_PLAIN
        while True:
            with nogil:
                klamm_put_record(batch + KLAMM_HEADER, body, 0, 0, key_data, key_size, value_data, value_size)[0] = 0
                klamm_finish_header(batch, size, 1, 0, timestamp, timestamp, 0, -1, -1, -1)
                result = append(&self.w, batch, size, how, 0, -1, 0)
            if result != -EINTR:
                return EVENTFUL - result if result >= 0 and self.w.events else result
            if wait_for is None:
                wait_for, how = Wait(self, APPEND), OWNER_SLEPT
            wait_for.go_on()

    @property
    def events(self):
        """What appends did that maintenance has to handle: OPENED, ROLLED, RECOVERY_POINT (64 MiB beyond the last)."""
        return self.w.events

    def take_events(self):
        """Return the events, and forget them."""
        events, self.w.events = self.w.events, 0
        return events

    @property
    def was_duplicate(self):
        """Whether the last append found its batch in the log already."""
        return bool(self.w.duplicate)

    @property
    def used(self):
        return self.w.used

    @property
    def open_files(self):
        return (self.w.log_fd >= 0) + (self.w.index_fd >= 0) + (self.w.sync_fd >= 0)

    # ---- for recovery, cleaning and tests: the append lock, commits made by hand

    def lock(self):
        """Take the append lock, waiting. StoreBusy if it is not free in time."""
        cdef int error, how = OWNER_WAIT
        cdef Wait wait_for = None
        while True:
            with nogil:
                error = lock_append(&self.w, how)
            if error == 0:
                return
            if error != -EINTR:
                raise result_error(error, self.directory)
            if wait_for is None:
                wait_for, how = Wait(self, APPEND), OWNER_SLEPT
            wait_for.go_on()

    def unlock(self):
        with nogil:
            unlock_append(&self.w)

    @property
    def owner(self):
        """The life number of the process that holds the append lock, or held it when it died; 0: it is free."""
        return load32(&self.w.slot.owner) & ~WAITERS

    @property
    def is_locked_elsewhere(self):
        """Whether another process that lives holds the append lock. Not for a log that can only be read."""
        owner = self.owner
        return bool(owner not in (0, self.w.life.number) and life_goes_on(&self.w.life, owner))

    def publish(self, *, next_offset=None, active_base=None, position=None, stable_offset=None, max_timestamp=None,
                log_start=None, leader_epoch=None, bint reset=False):
        """Commit the latest state with these fields changed. Called under the append lock.

        `reset` starts from an empty commit instead, for a head that cannot be believed.
        """
        cdef Commit now = self.w.slot.ring[self.w.slot.seq % RING]
        if reset:
            memset(&now, 0, sizeof(now))
        elif now.seq != self.w.slot.seq or now.crc != commit_crc(&now):
            raise result_error(R_DAMAGED_HEAD, self.directory)
        if next_offset is not None: now.next_offset = next_offset
        if active_base is not None: now.active_base = active_base
        if position is not None: now.position = position
        if stable_offset is not None: now.stable_offset = stable_offset
        if max_timestamp is not None: now.max_timestamp = max_timestamp
        if log_start is not None: now.log_start = log_start
        if leader_epoch is not None: now.leader_epoch = leader_epoch
        publish(self.w.slot, &now)
        store64(&self.w.slot.intent, now.seq)

    def make_up(self):
        """Finish what a dead writer left undone in the table, before a commit that is not an append. Called under the
        append lock.

        The note of it is for the very next commit; and a snapshot of the table would not have it.
        """
        cdef Commit now = self.w.slot.ring[self.w.slot.seq % RING]
        if not self.w.slot.redo_seq:
            return
        cdef int error = use_active(&self.w, &now)
        if not error and map_table(&self.w):    # else the table is made again from the log, which has that batch
            error = redo(&self.w, &now)
            if error == R_NEEDS_PRODUCERS and not self.w.table_broken:
                grow_table(&self.w)
                error = redo(&self.w, &now)
            if self.w.table_broken:
                error = 0
        if error:
            raise result_error(error, self.directory)

    def roll(self):
        """Close the active segment, though it is not full. Called under the append lock."""
        self.make_up()
        cdef Commit now = self.w.slot.ring[self.w.slot.seq % RING]
        cdef int error = use_active(&self.w, &now)
        if not error and now.position:
            error = roll(&self.w, &now)
        if error:
            raise result_error(error, self.directory)

    def forget_files(self):
        """Close what is open, because the files below may have changed. Called under the append lock."""
        close_files(&self.w)
        self.w.last_seq = 0

    def set_index(self, int64_t base, int64_t count, int64_t position):
        """Set where the index of the active segment goes on. Called under the append lock."""
        store_i64(&self.w.slot.index_base, base)
        store_i64(&self.w.slot.index_count, count)
        store_i64(&self.w.slot.index_position, position)

    def set_recovered(self, int64_t flushed_offset, int64_t since_ms):
        """Record that everything below is on disk: the end of recovery. Called under the append and flush locks."""
        store64(&self.w.slot.redo_seq, 0)
        store_i64(&self.w.slot.active_since_ms, since_ms)
        self.set_flushed(flushed_offset, 0)

    def evidence(self):
        """Return what the slot proves of a log that has to be recovered, however old the slot is: an Evidence."""
        return evidence_of(self.w.slot)

    def sync_head(self):
        """Make `heads` durable."""
        self.heads.sync()

    def set_recovery_point(self, int64_t base, int64_t position):
        store_i64(&self.w.slot.recovery_base, base)
        store_i64(&self.w.slot.recovery_position, position)

    @property
    def bookkeeping(self):
        """(seq, intent, index_base, index_count), for those who check them."""
        return load64(&self.w.slot.seq), load64(&self.w.slot.intent), self.w.slot.index_base, self.w.slot.index_count

    @property
    def active_since_ms(self):
        """When the active segment got its first batch, by the store's clock."""
        return load_i64(&self.w.slot.active_since_ms)

    @property
    def recovery_point(self):
        return self.w.slot.recovery_base, self.w.slot.recovery_position

    def close_idle(self):
        """Close the files unless another thread is appending or syncing just now."""
        close_idle_files(&self.w)

    # ---- flags

    @property
    def flags(self):
        return FLAG_DELETED if is_reused(&self.w) else load64(&self.w.slot.flags) & 0xffffffffu

    def set_flags(self, uint64_t flags):
        self.change_flags(flags, 0)

    def clear_flags(self, uint64_t flags):
        self.change_flags(0, flags)

    cdef change_flags(self, uint64_t more, uint64_t less):
        """Change flags in one store. If the slot belongs to another partition by now, change nothing."""
        cdef uint64_t flags
        while not is_reused(&self.w):
            flags = load64(&self.w.slot.flags)
            if (flags ^ self.w.slot_generation) >> 32 == 0 and klamm_exchange(&self.w.slot.flags, flags, (flags | more) & ~less):
                return

    def use_again(self, bytes topic_id not None, uint32_t number):
        """Make the slot another partition's, empty but for DELETED. Called under all four locks of the slot."""
        if len(topic_id) != 16:
            raise ValueError("a topic id has 16 bytes")
        use_again(&self.w, <const char *>topic_id, number)

    # ---- syncing

    def append_lock(self):
        """Return the append lock, for a `with` block."""
        return AppendLock(self)

    def flush_lock(self):
        """Return the flush lock, for a `with` block: waits for the process that syncs just now."""
        return FlushLock(self)

    def point_lock(self):
        """Return the lock of the file `recovery`, for a `with` block. Taken before the append lock."""
        if self.lock_file is None:
            raise result_error(-EBADF, self.directory)
        return self.lock_file.hold(self.w.first_byte + POINT, what=f"{self.directory}: lock of the recovery point")

    def sync(self, int64_t end_offset):
        """Return when everything below `end_offset` is on disk. HeadResult (SYNC_FAILED) or OSError if it is not.

        StoreBusy if another process syncs and does not come to an end.
        """
        cdef int error
        cdef Wait wait_for = None
        while flushed_offset_of(load64(&self.w.slot.flushed)) < end_offset:
            with nogil:
                error = sync_once(&self.w, end_offset, SLEEP_NS)
            if error == -EAGAIN:
                if wait_for is None:
                    wait_for = Wait(self, FLUSH)
                wait_for.go_on()
                if wait_for.is_replaceable():
                    self.replace_syncer(wait_for.word)
            elif error:
                raise result_error(error, self.directory)
            else:
                PyErr_CheckSignals()

    def replace_syncer(self, uint64_t word):
        """Take the flush lock away from the process that syncs, if it is still at `word`.

        Under the append lock, so that neither recovery nor a rewrite, which hold both, is ever replaced.
        """
        with self.append_lock():
            with nogil:
                replace_syncer(&self.w, word)

    @property
    def flush_byte(self):
        """The lock byte that the syncing process holds; another one after each replacement."""
        return flush_byte_of(self.w.flush_byte, load64(&self.w.slot.flushed))

    @property
    def flushing(self):
        """Whether a process is syncing, or was when it died, was replaced, or got an error."""
        return bool(load64(&self.w.slot.flushed) & FLUSHING)

    @flushing.setter
    def flushing(self, bint value):
        self.set_flushed(self.flushed_offset, FLUSHING if value else 0)

    @property
    def flushed_offset(self):
        return flushed_offset_of(load64(&self.w.slot.flushed))

    @flushed_offset.setter
    def flushed_offset(self, int64_t value):
        self.set_flushed(value, load64(&self.w.slot.flushed) & FLUSHING)

    cdef int set_flushed(self, int64_t offset, uint64_t flushing) except -1:
        """Record what is on disk, while no process is syncing. Called under the append and flush locks."""
        if not 0 <= offset <= FLUSHED_MAX:
            raise OverflowError(f"{self.directory}: offset {offset} is out of range")
        store64(&self.w.slot.flushed, load64(&self.w.slot.flushed) & FLUSH_GENERATION | <uint64_t>offset | flushing)
        store_i64(&self.w.slot.flushed_check, ~offset)
        return 0

    # ---- what readers use

    def snapshot(self):
        """Return the latest commit."""
        cdef Commit c
        cdef int error = take_own_snapshot(&self.w, &c)
        if error:
            raise result_error(error, self.directory)
        return as_snapshot(&c)

    @property
    def seq(self):
        return load64(&self.w.slot.seq)

    @property
    def segments_version(self):
        return load32(&self.w.slot.segments_version)

    def bump_segments_version(self):
        fetch_add32(&self.w.slot.segments_version, 1)

    def ring(self):
        """Wake those who wait for this topic."""
        klamm_ring(&self.w.store.bell, self.w.bell_bit)

    @property
    def directory(self):
        return os.fsdecode(self.path).removesuffix("/")

    def read_on(self, int fd, int64_t base, int64_t position, int64_t expected, Py_ssize_t max_bytes, bint contiguous):
        """Return what comes next in the active segment, in one call: (whole verified batches, next offset).

        None: a Reader has to look into it (see _tail.pxi).
        """
        cdef Commit now
        cdef Tail tail
        cdef bytes data
        cdef unsigned char *to
        cdef int64_t done, size, next_offset = 0
        tail.fd, tail.base, tail.position, tail.next_offset, tail.contiguous = fd, base, position, expected, contiguous
        size = size_behind(&self.w, &tail, max_bytes, &now)
        if size == 0:
            return None
        data = PyBytes_FromStringAndSize(NULL, size)
        to = <unsigned char *>PyBytes_AS_STRING(data)
        if size < 32768:                # below that, letting go of the GIL costs more than it gives
            done = read_behind(&tail, to, size, &now, &next_offset)
        else:
            with nogil:
                done = read_behind(&tail, to, size, &now, &next_offset)
        if done == 0:
            return None
        return (memoryview(data) if done == size else memoryview(data)[:done]), next_offset

    # ---- producers

    def map_producers(self):
        """Map the log's table. Return False if there is none: it must be rebuilt. Called under the append lock."""
        return map_table(&self.w)

    def grow_producers(self):
        """Give the mapped table space for one producer more, if it has none. Called under the append lock."""
        grow_table(&self.w)

    def producers(self, *, bint only_open=False):
        """Return [(id, first open offset, last seen, batches)]. Called under the append lock, mapped and made up."""
        if self.w.table == NULL:
            raise result_error(R_NEEDS_PRODUCERS, self.directory)
        return list_table(&self.w, only_open)

    def pack_producers(self):
        """Like `producers`: all of them, as the body of a snapshot."""
        if self.w.table == NULL:
            raise result_error(R_NEEDS_PRODUCERS, self.directory)
        return pack_table(&self.w)

    def restore_producers(self, entries):
        """Rebuild the table from a snapshot. Called under the append lock."""
        fill_table(&self.w, entries)

    def remember_producer(self, const unsigned char[::1] header not None, int64_t base_offset):
        """Change the table as an append of this batch would have, in recovery. Called under the append lock."""
        remember(&self.w, &header[0], base_offset)

    def first_open_of(self, int64_t producer_id):
        """Return where the producer's open transaction begins, or -1. Called under the append lock."""
        return first_open_of(&self.w, producer_id)

    def oldest_open(self):
        """Return where the oldest open transaction begins, or -1. Called under the append lock."""
        return oldest_open(&self.w, -1)

    @property
    def has_producers(self):
        """Whether the table is mapped, and is the log's."""
        return self.w.table != NULL and table_is_current(&self.w)

    @property
    def producers_seq(self):
        """What the table has in its header, if it is the log's."""
        return load64(&self.w.slot.producers_seq)

    @property
    def producers_at_rest(self):
        """What `producers_seq` is, if no append is changing the table just now; else 0."""
        cdef uint64_t seq = load64(&self.w.slot.producers_seq)
        return 0 if load64(&self.w.slot.redo_seq) else seq

    def seal_producers(self):
        """Make the rebuilt table the log's. Called under the append lock."""
        changed_table(&self.w)

    @property
    def aborted_file(self):
        """The latest .aborted file: base offset of its segment (-1: there is none), and number of entries."""
        return load_i64(&self.w.slot.aborted_base), load_i64(&self.w.slot.aborted_count)

    @aborted_file.setter
    def aborted_file(self, known):
        base, count = known
        store_i64(&self.w.slot.aborted_count, count)
        store_i64(&self.w.slot.aborted_base, base)

    # ---- the mutexes, which keep the threads of this process from appending and syncing: for forks

    def acquire(self):
        cdef int error = -EINTR
        while error == -EINTR:
            with nogil:
                error = klamm_mutex_lock(&self.w.append_mutex, 1)
        error = -EINTR
        while error == -EINTR:
            with nogil:
                error = klamm_mutex_lock(&self.w.flush_mutex, 1)

    def release(self):
        pthread_mutex_unlock(&self.w.flush_mutex)
        pthread_mutex_unlock(&self.w.append_mutex)

    def in_child(self):
        let_go(&self.w)
        pthread_mutex_init(&self.w.append_mutex, NULL)
        pthread_mutex_init(&self.w.flush_mutex, NULL)

    def abandon(self):
        """Refuse every append and sync from now on; close files once they are not in use."""
        self.acquire()
        give_back_idle(&self.w)
        let_go(&self.w)
        self.release()


include "_sync.pxi"
include "_shortest.pxi"
include "_index_bytes.pxi"
include "_watch.pxi"
include "_poller.pxi"
include "_bell_thread.pxi"
include "_cut.pxi"
include "_sync_thread.pxi"
include "_peek.pxi"
