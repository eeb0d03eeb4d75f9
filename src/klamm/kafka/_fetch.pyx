# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Fetch as clients mostly send it, read and answered without a Python object a field.

Ordinary is a request of versions 4 to 18 without tagged fields that names up to 64 partitions, none of them twice, and
forgets none; a request that begins a session is not. Whatever else arrives is not judged here: `read` returns None, and
the compiled codecs say what is wrong with it, if anything is.

Promises
  FCH1  What `read` returns has the fields that the compiled codec reads.
  FCH2  `encode` gives the bytes of the compiled codec, or None.
  FCH3  Whatever the bytes, nothing beyond their end is looked at.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from klamm.batch.externs cimport (
    klamm_get16,
    klamm_get32,
    klamm_get64,
    klamm_put16,
    klamm_put32,
    klamm_put64,
)

include "_frame.pxi"


cdef enum:
    FETCH_KEY = 1
    MOST = 64                   # partitions of a request
    FIRST_VERSION = 4
    LOG_START_SINCE = 5
    SESSION_SINCE = 7
    EPOCH_SINCE = 9
    REPLICA_SINCE = 11          # the preferred one; and racks
    FLEXIBLE_SINCE = 12         # and the last fetched epoch
    ID_SINCE = 13
    STATE_SINCE = 15            # a replica says in a tagged field that it is one
    LAST_VERSION = 18
    LONGEST_LENGTH = 5          # bytes of a varint
    ROOM = 512


cdef struct Wanted:
    const uint8_t *topic        # its name or id
    Py_ssize_t topic_bytes
    int64_t offset
    int32_t index, max_bytes, leader_epoch, last_epoch


cdef int is_repeated(const Wanted *wanted, int count) noexcept nogil:
    """Return whether the last of them is there before."""
    cdef const Wanted *last = &wanted[count - 1]
    cdef int i
    for i in range(count - 1):
        if wanted[i].index == last.index and wanted[i].topic_bytes == last.topic_bytes:
            if memcmp(wanted[i].topic, last.topic, last.topic_bytes) == 0:
                return 1
    return 0


cdef class OrdinaryFetch:
    """A request. Its partitions can be asked for as long as its frame stays where it is."""

    cdef readonly int version, isolation_level
    cdef readonly int32_t correlation_id, max_wait_ms, min_bytes, max_bytes, session_id, session_epoch
    cdef int count
    cdef object frame
    cdef Wanted wanted[MOST]

    def __len__(self):
        """Return how many partitions it names, over all topics."""
        return self.count

    cdef int read(self, Cursor *at) noexcept nogil:
        """Return whether it is ordinary."""
        cdef int64_t size, topics
        cdef int siblings, first
        cdef const uint8_t *name
        cdef const uint8_t *p
        cdef Wanted *wanted
        if take_int16(at) != FETCH_KEY:
            return 0
        self.version = take_int16(at)
        if not FIRST_VERSION <= self.version <= LAST_VERSION:
            return 0
        self.correlation_id = take_int32(at)
        if not skip_client_id(at):
            return 0
        at.is_flexible = self.version >= FLEXIBLE_SINCE
        take_no_tags(at)
        if self.version < STATE_SINCE and take_int32(at) >= 0:
            return 0                                    # it says that it is a replica
        self.max_wait_ms, self.min_bytes, self.max_bytes = take_int32(at), take_int32(at), take_int32(at)
        p = take(at, 1)
        if p == NULL:
            return 0
        self.isolation_level = <int8_t> p[0]
        self.session_epoch = -1
        if self.version >= SESSION_SINCE:
            self.session_id, self.session_epoch = take_int32(at), take_int32(at)
        topics = take_length(at, 0)
        if at.p == NULL or self.session_epoch == 0 or not 0 <= topics <= MOST:
            return 0
        while topics > 0:
            topics -= 1
            size = ID_BYTES if self.version >= ID_SINCE else take_length(at, 1)
            name = take(at, size)
            if name == NULL or (self.version < ID_SINCE and not (size <= LONGEST_NAME and is_ascii(name, size))):
                return 0
            first = self.count
            siblings = <int> min(take_length(at, 0), <int64_t> MOST + 1)
            if siblings < 1 or first + siblings > MOST:
                return 0
            while self.count < first + siblings:
                wanted = &self.wanted[self.count]
                self.count += 1
                wanted.topic, wanted.topic_bytes = name, size
                wanted.index = take_int32(at)
                wanted.leader_epoch = take_int32(at) if self.version >= EPOCH_SINCE else -1
                p = take(at, 8)
                wanted.offset = 0 if p == NULL else <int64_t> klamm_get64(p)
                wanted.last_epoch = take_int32(at) if self.version >= FLEXIBLE_SINCE else -1
                if self.version >= LOG_START_SINCE:
                    take(at, 8)                         # the log start offset of a replica
                wanted.max_bytes = take_int32(at)
                take_no_tags(at)
                if at.p == NULL or is_repeated(self.wanted, self.count):
                    return 0
            take_no_tags(at)
        if self.version >= SESSION_SINCE and take_length(at, 0) != 0:       # to forget
            return 0
        if self.version >= REPLICA_SINCE:
            size = take_length(at, 1)
            name = take(at, size)
            if name == NULL or not is_ascii(name, size):
                return 0
        take_no_tags(at)
        return at.p != NULL

    @property
    def names(self):
        """Name its partitions: the same bytes for the same ones in the same order, in versions that name topics
        alike.
        """
        cdef Py_ssize_t size = 0
        cdef int number
        for number in range(self.count):
            size += 8 + self.wanted[number].topic_bytes
        cdef bytes room = PyBytes_FromStringAndSize(NULL, size)
        cdef uint8_t *p = <uint8_t *> PyBytes_AS_STRING(room)
        for number in range(self.count):
            klamm_put32(p, <uint32_t> self.wanted[number].index)
            klamm_put32(p + 4, <uint32_t> self.wanted[number].topic_bytes)
            memcpy(p + 8, self.wanted[number].topic, self.wanted[number].topic_bytes)
            p += 8 + self.wanted[number].topic_bytes
        return room

    def partition(self, int number):
        """Return (topic, index). The topic by name, or by id from version 13 on."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        cdef Wanted *wanted = &self.wanted[number]
        cdef bytes topic = wanted.topic[:wanted.topic_bytes]
        return topic if self.version >= ID_SINCE else topic.decode("ascii"), wanted.index

    def wants(self, int number):
        """Return what it wants of a partition: (offset, max_bytes, leader epoch, last fetched epoch)."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        cdef Wanted *wanted = &self.wanted[number]
        return wanted.offset, wanted.max_bytes, wanted.leader_epoch, wanted.last_epoch


def read(frame):
    """Read a frame without its size: an OrdinaryFetch, or None if it is anything else."""
    cdef OrdinaryFetch request = OrdinaryFetch.__new__(OrdinaryFetch)
    cdef Cursor at
    cdef Py_buffer view
    cdef int is_ordinary
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    request.frame = frame
    at.p = <const uint8_t *> view.buf
    at.end, at.is_flexible = at.p + view.len, 0
    is_ordinary = request.read(&at)
    PyBuffer_Release(&view)     # `frame` itself holds the bytes
    return request if is_ordinary else None


cdef class Output:
    """Bytes that grow, and what is sent between them."""

    cdef uint8_t *data
    cdef Py_ssize_t size, room, sent
    cdef list parts
    cdef int is_flexible

    def __cinit__(self):
        self.parts = []

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef uint8_t *more(self, Py_ssize_t size) except NULL:
        """Make room for so many bytes, which count as written."""
        cdef void *data
        if self.size + size > self.room:
            self.room = max(<Py_ssize_t> ROOM, 2 * (self.size + size))
            data = PyMem_Realloc(self.data, self.room)
            if data == NULL:
                raise MemoryError
            self.data = <uint8_t *> data
        self.size += size
        return self.data + self.size - size

    cdef int put16(self, int value) except -1:
        klamm_put16(self.more(2), <uint16_t> value)
        return 0

    cdef int put32(self, int32_t value) except -1:
        klamm_put32(self.more(4), <uint32_t> value)
        return 0

    cdef int put64(self, int64_t value) except -1:
        klamm_put64(self.more(8), <uint64_t> value)
        return 0

    cdef int put_length(self, int64_t length, int is_short=0) except -1:
        """Write the length of what follows; -1: null."""
        cdef uint8_t *p = self.more(LONGEST_LENGTH)
        self.size -= LONGEST_LENGTH - (put_length(p, length, self.is_flexible, is_short) - p)
        return 0

    cdef int put_bytes(self, bytes data) except -1:
        memcpy(self.more(PyBytes_GET_SIZE(data)), PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return 0

    cdef int put_no_tags(self) except -1:
        if self.is_flexible:
            self.more(1)[0] = 0
        return 0

    cdef int put_apart(self, part) except -1:
        """Add something that is sent from where it lies."""
        self.flush()
        self.parts.append(part)
        self.sent += len(part)
        return 0

    cdef int flush(self) except -1:
        if self.size:
            self.parts.append(PyBytes_FromStringAndSize(<const char *> self.data, self.size))
            self.sent += self.size
            self.size = 0
        return 0

    cdef list end(self):
        """Return all parts, with their size in the first four bytes."""
        self.flush()
        cdef bytes first = self.parts[0]
        klamm_put32(<uint8_t *> PyBytes_AS_STRING(first), <uint32_t> (self.sent - 4))   # no one has seen it yet
        return self.parts


cdef int put_partition(Output out, int version, partition) except -1:
    """Write a partition. Return 1; 0 if a tagged field is set."""
    if partition.diverging_epoch is not None or partition.current_leader is not None:
        return 0
    if partition.snapshot_id is not None:
        return 0
    out.put32(partition.partition_index)
    out.put16(partition.error_code)
    out.put64(partition.high_watermark)
    out.put64(partition.last_stable_offset)
    if version >= LOG_START_SINCE:
        out.put64(partition.log_start_offset)
    aborted, records = partition.aborted_transactions, partition.records
    out.put_length(-1 if aborted is None else len(aborted))
    if aborted is not None:
        for transaction in aborted:
            out.put64(transaction.producer_id)
            out.put64(transaction.first_offset)
            out.put_no_tags()
    if version >= REPLICA_SINCE:
        out.put32(partition.preferred_read_replica)
    out.put_length(-1 if records is None else len(records))
    if type(records) is bytes:
        out.put_bytes(records)
    elif records is not None and len(records):
        out.put_apart(records)
    out.put_no_tags()
    return 1


cdef Output begun(int version, int32_t correlation_id):
    """Return the frame of a response so far: its size, which `end` fills in, and its header."""
    cdef Output out = Output.__new__(Output)
    out.is_flexible = version >= FLEXIBLE_SINCE
    out.put32(0)
    out.put32(correlation_id)
    out.put_no_tags()
    return out


def encode_nothing(int version, int32_t correlation_id, int32_t session_id):
    """Return the whole frame of a response in which nothing is new, as `encode` does."""
    if not SESSION_SINCE <= version <= LAST_VERSION:
        raise ValueError(version)
    cdef Output out = begun(version, correlation_id)
    out.put32(0)                                        # throttle_time_ms
    out.put16(0)
    out.put32(session_id)
    out.put_length(0)
    out.put_no_tags()
    return out.end()


def encode(int version, int32_t correlation_id, response):
    """Return the whole frame of a response in parts, its size included: bytes, and records that are not, each by
    itself. None if it has a field that ordinary ones have not.
    """
    if not FIRST_VERSION <= version <= LAST_VERSION or response.node_endpoints:
        return None
    cdef Output out = begun(version, correlation_id)
    out.put32(response.throttle_time_ms)
    if version >= SESSION_SINCE:
        out.put16(response.error_code)
        out.put32(response.session_id)
    out.put_length(len(response.responses))
    cdef bytes name
    for topic in response.responses:
        if version >= ID_SINCE:
            name = topic.topic_id
            if PyBytes_GET_SIZE(name) != ID_BYTES:
                return None
        else:
            name = topic.topic.encode()
            out.put_length(PyBytes_GET_SIZE(name), 1)
        out.put_bytes(name)
        out.put_length(len(topic.partitions))
        for partition in topic.partitions:
            if not put_partition(out, version, partition):
                return None
        out.put_no_tags()
    out.put_no_tags()
    return out.end()
