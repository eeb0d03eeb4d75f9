# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Produce as clients mostly send it, read, checked and answered without a Python object a field.

Ordinary is a request of versions 3 to 13 without a transaction and without tagged fields, for 1 to 64 partitions, none
of them twice, each with one batch of magic 2 of up to 64 KiB that `check` of apis/produce.py would take as it is: not
compressed, with the right CRC, readable records and their true max_timestamp. Whatever else arrives is not judged here:
`read` returns None, and the compiled codecs and `check` say what is wrong with it, if anything is.

Promises
  PRD1  What `read` returns has the fields that the compiled codec reads, and batches that `check` returns unchanged.
  PRD2  `response` gives the bytes of the compiled codec.
  PRD3  Whatever the bytes, nothing beyond their end is looked at.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from klamm.batch.externs cimport (
    KLAMM_CRC_START,
    KLAMM_HEADER,
    KLAMM_MAPPED,
    KLAMM_OK,
    klamm_batch,
    klamm_crc32c,
    klamm_get16,
    klamm_get32,
    klamm_get64,
    klamm_put16,
    klamm_put32,
    klamm_put64,
    klamm_read_batch,
    klamm_scan,
    klamm_scan_records,
)

include "_frame.pxi"


cdef enum:
    MOST = 64                   # partitions of a request
    LARGEST = 65536             # bytes of a batch: a thread checks what is larger
    FIRST_VERSION = 3
    LOG_START_SINCE = 5
    ERRORS_SINCE = 8
    FLEXIBLE_SINCE = 9
    ID_SINCE = 13
    LAST_VERSION = 13
    PARTITION_BYTES = 38        # of a response, at most
    CLIENT_ID_AT = 10           # in a request
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    SEQUENCE_AT = 53


cdef struct Part:
    const uint8_t *topic        # its name or id
    const uint8_t *records
    Py_ssize_t topic_bytes, size
    int32_t index, record_count
    int32_t siblings            # partitions of its topic; 0: it is not the first of them


cdef int32_t count_plain(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """Return the number of records of one whole batch that can be appended as it is; else 0."""
    cdef klamm_batch batch
    cdef klamm_scan scan
    if size < KLAMM_HEADER or size > LARGEST or klamm_read_batch(p, size, &batch) != KLAMM_OK:
        return 0
    if batch.size != size or batch.base_offset or batch.attributes:
        return 0
    if batch.record_count < 1 or batch.record_count - 1 != batch.last_offset_delta:
        return 0
    if <int64_t> klamm_get64(p + PRODUCER_ID_AT) >= 0:
        if <int16_t> klamm_get16(p + PRODUCER_EPOCH_AT) < 0 or <int32_t> klamm_get32(p + SEQUENCE_AT) < 0:
            return 0
    if batch.crc != klamm_crc32c(0, p + KLAMM_CRC_START, size - KLAMM_CRC_START):
        return 0
    if klamm_scan_records(&batch, p + KLAMM_HEADER, p + size, &scan) != KLAMM_MAPPED:
        return 0
    return batch.record_count if scan.max_timestamp == batch.max_timestamp else 0


cdef int is_repeated(const Part *parts, int count) noexcept nogil:
    """Return whether the last of them was there before."""
    cdef const Part *last = &parts[count - 1]
    cdef int i
    for i in range(count - 1):
        if parts[i].index == last.index and parts[i].topic_bytes == last.topic_bytes:
            if memcmp(parts[i].topic, last.topic, last.topic_bytes) == 0:
                return 1
    return 0


cdef class OrdinaryProduce:
    """A request, for as long as its frame stays where it is, and the offsets that its batches got."""

    cdef readonly int version, acks
    cdef readonly int32_t correlation_id
    cdef int count, topics
    cdef object frame
    cdef const uint8_t *start
    cdef Part parts[MOST]
    cdef int64_t base_offsets[MOST]
    cdef int64_t log_starts[MOST]

    def __len__(self):
        """Return how many partitions it has, over all topics."""
        return self.count

    cdef int read(self, Cursor *at) noexcept nogil:
        """Read the request and return whether it is ordinary."""
        cdef int topic, siblings, first
        cdef int64_t size
        cdef Part *part
        cdef const uint8_t *name
        if take_int16(at) != 0 or at.p == NULL:         # the key of Produce
            return 0
        self.version = take_int16(at)
        if not FIRST_VERSION <= self.version <= LAST_VERSION:
            return 0
        self.correlation_id = take_int32(at)
        if not skip_client_id(at):
            return 0
        at.is_flexible = self.version >= FLEXIBLE_SINCE
        take_no_tags(at)
        if take_length(at, 1) != -1:                    # transactional id
            return 0
        self.acks = take_int16(at)
        take_int32(at)                                  # timeout
        size = take_length(at, 0)
        if at.p == NULL or not -1 <= self.acks <= 1 or not 1 <= size <= MOST:
            return 0
        self.topics = <int> size
        for topic in range(self.topics):
            size = ID_BYTES if self.version >= ID_SINCE else take_length(at, 1)
            name = take(at, size)
            if name == NULL or (self.version < ID_SINCE and not (size <= LONGEST_NAME and is_ascii(name, size))):
                return 0
            first = self.count
            siblings = <int> min(take_length(at, 0), <int64_t> MOST + 1)
            if siblings < 1 or first + siblings > MOST:
                return 0
            while self.count < first + siblings:
                part = &self.parts[self.count]
                self.count += 1
                part.siblings = siblings if self.count == first + 1 else 0
                part.topic, part.topic_bytes = name, size
                part.index = take_int32(at)
                part.size = take_length(at, 0)
                part.records = take(at, part.size)
                take_no_tags(at)
                if at.p == NULL or is_repeated(self.parts, self.count):
                    return 0
                part.record_count = count_plain(part.records, part.size)
                if part.record_count == 0:
                    return 0
            take_no_tags(at)
        take_no_tags(at)
        return at.p != NULL

    @property
    def client_id(self):
        """As the header has it; empty if there is none."""
        size = int.from_bytes(self.frame[CLIENT_ID_AT - 2:CLIENT_ID_AT], "big", signed=True)
        return bytes(self.frame[CLIENT_ID_AT:CLIENT_ID_AT + max(size, 0)]).decode("ascii")

    def partition(self, int number):
        """Return (topic, index, records, number of records). The topic by name, or by id from version 13 on."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        cdef Part *part = &self.parts[number]
        cdef Py_ssize_t at = part.records - self.start
        cdef bytes topic = part.topic[:part.topic_bytes]
        return (
            topic if self.version >= ID_SINCE else topic.decode("ascii"),
            part.index,
            self.frame[at:at + part.size],
            part.record_count,
        )

    def appended(self, int number, int64_t base_offset, int64_t log_start):
        """Record the response for a partition."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        self.base_offsets[number], self.log_starts[number] = base_offset, log_start

    def response(self, int32_t throttle_ms=0):
        """Return the whole frame of the response, its size included, when all partitions are appended to."""
        cdef int is_flexible = self.version >= FLEXIBLE_SINCE, number
        cdef Py_ssize_t size = 32
        cdef Part *part
        cdef uint8_t *p
        for number in range(self.count):
            size += PARTITION_BYTES + (self.parts[number].topic_bytes + 8 if self.parts[number].siblings else 0)
        cdef bytes room = PyBytes_FromStringAndSize(NULL, size)
        cdef uint8_t *start = <uint8_t *> PyBytes_AS_STRING(room)
        p = start + 4
        klamm_put32(p, <uint32_t> self.correlation_id)
        p += 4
        if is_flexible:
            p[0] = 0
            p += 1
        p = put_length(p, self.topics, is_flexible, 0)
        for number in range(self.count):
            part = &self.parts[number]
            if part.siblings:
                if self.version < ID_SINCE:
                    p = put_length(p, part.topic_bytes, is_flexible, 1)
                memcpy(p, part.topic, part.topic_bytes)
                p = put_length(p + part.topic_bytes, part.siblings, is_flexible, 0)
            klamm_put32(p, <uint32_t> part.index)
            klamm_put16(p + 4, 0)                       # no error
            klamm_put64(p + 6, <uint64_t> self.base_offsets[number])
            klamm_put64(p + 14, <uint64_t> -1)          # log append time
            p += 22
            if self.version >= LOG_START_SINCE:
                klamm_put64(p, <uint64_t> self.log_starts[number])
                p += 8
            if self.version >= ERRORS_SINCE:
                p = put_length(p, 0, is_flexible, 0)    # of records
                p = put_length(p, -1, is_flexible, 1)   # no message
            if is_flexible:
                p[0] = 0
                p += 1
                if number + 1 == self.count or self.parts[number + 1].siblings:
                    p[0] = 0
                    p += 1
        klamm_put32(p, <uint32_t> throttle_ms)
        p += 4
        if is_flexible:
            p[0] = 0
            p += 1
        klamm_put32(start, <uint32_t> (p - start - 4))
        return room[:p - start]


def read(frame):
    """Read a frame without its size: an OrdinaryProduce, or None if it is anything else."""
    cdef OrdinaryProduce request = OrdinaryProduce.__new__(OrdinaryProduce)
    cdef Cursor at
    cdef Py_buffer view
    cdef int is_ordinary
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    request.frame, request.start = frame, <const uint8_t *> view.buf
    at.p, at.end, at.is_flexible = request.start, request.start + view.len, 0
    is_ordinary = request.read(&at)
    PyBuffer_Release(&view)     # `frame` itself holds the bytes
    return request if is_ordinary else None
