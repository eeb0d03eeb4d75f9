# What native modules use of the C headers of batch/. Declared here, once.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "crc32c.h" nogil:
    uint32_t klamm_crc32c(uint32_t crc, const void *data, size_t size)
    uint32_t klamm_crc32c_software(uint32_t crc, const void *data, size_t size)


cdef extern from "record.h" nogil:
    size_t KLAMM_HUGE_PAGE
    void *klamm_malloc(size_t size)
    enum:
        KLAMM_HEADER
        KLAMM_LENGTH_END
        KLAMM_CRC_START
        KLAMM_CODEC_MASK
        KLAMM_LOG_APPEND_TIME
        KLAMM_CONTROL
        KLAMM_OK
        KLAMM_SHORT
        KLAMM_BAD_MAGIC
        KLAMM_BAD_LENGTH
        KLAMM_BAD_OFFSET
        KLAMM_BAD_COUNT
        KLAMM_BAD_CRC
        KLAMM_BAD_ORDER
        KLAMM_BAD_EPOCH
        KLAMM_SMALLEST_RECORD

    ctypedef struct klamm_batch:
        int64_t base_offset
        int64_t next_offset
        int64_t base_timestamp
        int64_t max_timestamp
        int64_t size
        int32_t leader_epoch
        int32_t record_count
        int32_t last_offset_delta
        uint32_t crc
        uint16_t attributes

    ctypedef struct klamm_record:
        int64_t timestamp_delta
        int64_t offset_delta
        int64_t key_size
        int64_t value_size
        const uint8_t *key
        const uint8_t *value
        const uint8_t *headers
        const uint8_t *end
        int64_t header_count

    ctypedef struct klamm_record_header:
        const uint8_t *name
        const uint8_t *value
        int64_t name_size
        int64_t value_size

    void klamm_put16(uint8_t *p, uint16_t v)
    void klamm_put32(uint8_t *p, uint32_t v)
    void klamm_put64(uint8_t *p, uint64_t v)
    uint16_t klamm_get16(const uint8_t *p)
    uint32_t klamm_get32(const uint8_t *p)
    uint64_t klamm_get64(const uint8_t *p)
    int klamm_read_batch(const uint8_t *p, size_t n, klamm_batch *out)
    const uint8_t *klamm_read_record(const uint8_t *p, const uint8_t *end, klamm_record *r)
    const uint8_t *klamm_read_header(const uint8_t *p, const uint8_t *end, klamm_record_header *h)
    int64_t klamm_timestamp(const klamm_batch *b, const klamm_record *r)
    int klamm_varint_size(int64_t v)
    uint8_t *klamm_put_varint(uint8_t *p, int64_t v)
    int64_t klamm_body_size(int64_t timestamp_delta, int64_t offset_delta, int64_t key_size, int64_t value_size,
                            int64_t headers_size)
    uint8_t *klamm_put_record(uint8_t *p, int64_t body, int64_t timestamp_delta, int64_t offset_delta,
                              const uint8_t *key, int64_t key_size, const uint8_t *value, int64_t value_size)
    void klamm_copy(uint8_t *to, const uint8_t *start, size_t n)
    void klamm_copy_loose(uint8_t *to, const uint8_t *start, int64_t n, const uint8_t *end)
    int64_t klamm_put_utf8(uint8_t *to, const uint8_t *start, int64_t n)
    uint32_t klamm_murmur2(const uint8_t *p, size_t n)
    int64_t klamm_now_ms()
    double klamm_monotonic()


cdef extern from "keymap.h" nogil:
    enum:
        KLAMM_MAPPED

    ctypedef struct klamm_scan:
        int64_t min_timestamp, max_timestamp
        int is_keyed

    int klamm_scan_records(const klamm_batch *batch, const uint8_t *p, const uint8_t *end, klamm_scan *out)
