/* Bytes of a record batch: big-endian numbers, zigzag varints, records. header.py says how they lie.
 *
 * Reading trusts nothing: every step is checked against the end of its buffer, and each read function gives NULL when
 * the bytes do not follow the format. Writing trusts its caller to have made room for what klamm_body_size() says.
 */
#ifndef KLAMM_RECORD_H
#define KLAMM_RECORD_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <sys/mman.h>
#include <time.h>
#endif

#include "crc32c.h"

#define KLAMM_HEADER 61
#define KLAMM_LENGTH_END 12
#define KLAMM_CRC_START 21 /* the CRC covers everything from here */

#define KLAMM_SMALLEST_RECORD 7 /* size, attributes, two deltas, key, value, header count: a byte each */

#define KLAMM_CODEC_MASK 0x07
#define KLAMM_LOG_APPEND_TIME 0x08
#define KLAMM_TRANSACTIONAL 0x10
#define KLAMM_CONTROL 0x20

#define KLAMM_LIKELY(x) __builtin_expect(!!(x), 1)
#define KLAMM_UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline void klamm_put16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void klamm_put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void klamm_put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
static inline uint16_t klamm_get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t klamm_get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t klamm_get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }

/* ---- the batch header ---- */

typedef struct {
    int64_t base_offset, next_offset, base_timestamp, max_timestamp;
    int64_t size;  /* of the whole batch */
    int32_t leader_epoch, record_count, last_offset_delta;
    uint32_t crc;
    uint16_t attributes;
} klamm_batch;

enum {
    KLAMM_OK, KLAMM_SHORT, /* SHORT: not a whole batch; all below are damage */
    KLAMM_BAD_MAGIC, KLAMM_BAD_LENGTH, KLAMM_BAD_OFFSET, KLAMM_BAD_COUNT, KLAMM_BAD_CRC, KLAMM_BAD_ORDER,
    KLAMM_BAD_EPOCH
};

/* Reads the header of the batch at p, where n bytes are left. */
static inline int klamm_read_batch(const uint8_t *p, size_t n, klamm_batch *out) {
    if (n < KLAMM_LENGTH_END) return KLAMM_SHORT;
    int32_t length = (int32_t)klamm_get32(p + 8);
    if (n > 16 && p[16] != 2) return KLAMM_BAD_MAGIC;
    if (length < KLAMM_HEADER - KLAMM_LENGTH_END) return KLAMM_BAD_LENGTH;
    out->size = (int64_t)length + KLAMM_LENGTH_END;
    if ((uint64_t)out->size > n) return KLAMM_SHORT;
    out->base_offset = (int64_t)klamm_get64(p);
    out->leader_epoch = (int32_t)klamm_get32(p + 12);
    out->crc = klamm_get32(p + 17);
    out->attributes = klamm_get16(p + 21);
    out->last_offset_delta = (int32_t)klamm_get32(p + 23);
    out->base_timestamp = (int64_t)klamm_get64(p + 27);
    out->max_timestamp = (int64_t)klamm_get64(p + 35);
    out->record_count = (int32_t)klamm_get32(p + 57);
    if (out->base_offset < 0 || out->base_offset > INT64_MAX - 1 - (int64_t)INT32_MAX) return KLAMM_BAD_OFFSET;
    if (out->record_count < 0 || out->last_offset_delta < 0 || out->last_offset_delta < out->record_count - 1)
        return KLAMM_BAD_COUNT;
    out->next_offset = out->base_offset + out->last_offset_delta + 1;
    return KLAMM_OK;
}

/* Walks whole batches from *position on, which moves along with *offset, the next one expected; contiguous: nothing may be
 * left out. Leader epochs, which no CRC covers, must not fall, nor rise above highest_epoch; negative: they are not
 * looked at. An incomplete batch at the end is not counted. KLAMM_OK, or what is wrong with the batch at *position. */
static inline int klamm_check_batches(const uint8_t *start, int64_t size, int64_t *position, int64_t *offset, int contiguous,
                                      int64_t highest_epoch) {
    klamm_batch batch;
    int64_t epoch = 0;
    while (*position < size) {
        int code = klamm_read_batch(start + *position, (size_t)(size - *position), &batch);
        if (code == KLAMM_SHORT) return KLAMM_OK;
        if (code != KLAMM_OK) return code;
        if (batch.crc != klamm_crc32c(0, start + *position + KLAMM_CRC_START, (size_t)(batch.size - KLAMM_CRC_START)))
            return KLAMM_BAD_CRC;
        if (batch.base_offset < *offset || (contiguous && batch.base_offset != *offset)) return KLAMM_BAD_ORDER;
        if (highest_epoch >= 0 && (batch.leader_epoch < epoch || batch.leader_epoch > highest_epoch)) return KLAMM_BAD_EPOCH;
        epoch = batch.leader_epoch;
        *position += batch.size;
        *offset = batch.next_offset;
    }
    return KLAMM_OK;
}

/* ---- varints ---- */

static inline int klamm_varint_size(int64_t v) {
    uint64_t z = ((uint64_t)v << 1) ^ (uint64_t)(v >> 63);
    return (70 - __builtin_clzll(z | 1)) / 7;
}

static inline uint8_t *klamm_put_varint(uint8_t *p, int64_t v) {
    uint64_t z = ((uint64_t)v << 1) ^ (uint64_t)(v >> 63);
    while (KLAMM_UNLIKELY(z >= 0x80)) { *p++ = (uint8_t)(z | 0x80); z >>= 7; }
    *p++ = (uint8_t)z;
    return p;
}

/* Longer than `most` bytes, or with bits beyond 64, is an error. */
static const uint8_t *klamm_get_varint_slow(const uint8_t *p, const uint8_t *end, int most, int64_t *out) {
    uint64_t z = 0;
    for (int i = 0; i < most && p < end; i++) {
        uint8_t byte = *p++;
        if (i == 9 && byte > 1) return NULL;
        z |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            if (most == 5 && z > UINT32_MAX) return NULL;
            *out = (int64_t)(z >> 1) ^ -(int64_t)(z & 1);
            return p;
        }
    }
    return NULL;
}

/* A 32-bit varint (sizes, counts, offset deltas) or, with most = 10, a 64-bit one (timestamp deltas). */
static inline const uint8_t *klamm_get_varint(const uint8_t *p, const uint8_t *end, int most, int64_t *out) {
    if (KLAMM_LIKELY(end - p >= 2)) {
        uint64_t z = p[0];
        if (z < 0x80) {
            *out = (int64_t)(z >> 1) ^ -(int64_t)(z & 1);
            return p + 1;
        }
        if (p[1] < 0x80) {
            z = (z & 0x7f) | (uint64_t)p[1] << 7;
            *out = (int64_t)(z >> 1) ^ -(int64_t)(z & 1);
            return p + 2;
        }
    }
    return klamm_get_varint_slow(p, end, most, out);
}

/* ---- records ---- */

typedef struct {
    int64_t timestamp_delta, offset_delta;
    int64_t key_size, value_size; /* -1: null */
    const uint8_t *key, *value;
    const uint8_t *headers, *end; /* where the first header starts; the end of the record */
    int64_t header_count;
} klamm_record;

typedef struct {
    const uint8_t *name, *value;
    int64_t name_size, value_size; /* value: -1: null */
} klamm_record_header;

static inline const uint8_t *klamm_read_header(const uint8_t *p, const uint8_t *end, klamm_record_header *h) {
    if (!(p = klamm_get_varint(p, end, 5, &h->name_size))) return NULL;
    if (h->name_size < 0 || h->name_size > end - p) return NULL;
    h->name = p;
    p += h->name_size;
    if (!(p = klamm_get_varint(p, end, 5, &h->value_size))) return NULL;
    if (h->value_size < -1 || h->value_size > end - p) return NULL;
    h->value = p;
    return h->value_size > 0 ? p + h->value_size : p;
}

/* Reads one record: the position after it, or NULL. Headers are checked, too. */
static inline const uint8_t *klamm_read_record(const uint8_t *p, const uint8_t *end, klamm_record *r) {
    int64_t size;
    if (!(p = klamm_get_varint(p, end, 5, &size)) || size < 1 || size > end - p) return NULL;
    end = p + size;
    p++; /* attributes: unused */
    if (!(p = klamm_get_varint(p, end, 10, &r->timestamp_delta))) return NULL;
    if (!(p = klamm_get_varint(p, end, 5, &r->offset_delta)) || r->offset_delta < 0) return NULL;
    if (!(p = klamm_get_varint(p, end, 5, &r->key_size))) return NULL;
    if (r->key_size < -1 || r->key_size > end - p) return NULL;
    r->key = p;
    if (r->key_size > 0) p += r->key_size;
    if (!(p = klamm_get_varint(p, end, 5, &r->value_size))) return NULL;
    if (r->value_size < -1 || r->value_size > end - p) return NULL;
    r->value = p;
    if (r->value_size > 0) p += r->value_size;
    if (KLAMM_LIKELY(end - p == 1 && *p == 0)) {
        r->header_count = 0;
        r->headers = r->end = end;
        return end;
    }
    if (!(p = klamm_get_varint(p, end, 5, &r->header_count))) return NULL;
    if (r->header_count < 0 || r->header_count > (end - p) / 2) return NULL;
    r->headers = p;
    klamm_record_header h;
    for (int64_t i = 0; i < r->header_count; i++)
        if (!(p = klamm_read_header(p, end, &h))) return NULL;
    r->end = end;
    return p == end ? end : NULL;
}

/* Sums wrap around as in Java: a hostile delta makes a strange timestamp, nothing worse. */
static inline int64_t klamm_timestamp(const klamm_batch *b, const klamm_record *r) {
    if (b->attributes & KLAMM_LOG_APPEND_TIME) return b->max_timestamp;
    return (int64_t)((uint64_t)b->base_timestamp + (uint64_t)r->timestamp_delta);
}

/* Short copies inline; keys are mostly 8 to 16 bytes. Never touches a byte outside of the n. */
static inline void klamm_copy(uint8_t *to, const uint8_t *from, size_t n) {
    if (n > 32) {
        memcpy(to, from, n);
    } else if (n >= 16) {
        uint64_t a, b, c, d;
        memcpy(&a, from, 8); memcpy(&b, from + 8, 8); memcpy(&c, from + n - 16, 8); memcpy(&d, from + n - 8, 8);
        memcpy(to, &a, 8); memcpy(to + 8, &b, 8); memcpy(to + n - 16, &c, 8); memcpy(to + n - 8, &d, 8);
    } else if (n >= 8) {
        uint64_t a, b;
        memcpy(&a, from, 8); memcpy(&b, from + n - 8, 8);
        memcpy(to, &a, 8); memcpy(to + n - 8, &b, 8);
    } else if (n >= 4) {
        uint32_t a, b;
        memcpy(&a, from, 4); memcpy(&b, from + n - 4, 4);
        memcpy(to, &a, 4); memcpy(to + n - 4, &b, 4);
    } else if (n) {
        to[0] = from[0]; to[n / 2] = from[n / 2]; to[n - 1] = from[n - 1];
    }
}

/* The same in steps of 32 bytes, where 64 bytes behind the target are free; `end` is the end of what may be read. */
static inline void klamm_copy_loose(uint8_t *to, const uint8_t *from, int64_t n, const uint8_t *end) {
    if (KLAMM_LIKELY(n <= 256 && end - from >= n + 32)) {
        do {
            uint64_t a[4];
            memcpy(a, from, 32);
            memcpy(to, a, 32);
            from += 32; to += 32; n -= 32;
        } while (n > 0);
    } else {
        memcpy(to, from, (size_t)n);
    }
}

/* Copies a name and puts U+FFFD where it is not UTF-8, as Java and Python's "replace" do: one for each longest start of
 * a character that does not go on rightly. Takes up to 3 n bytes; gives the number written. */
static inline int64_t klamm_put_utf8(uint8_t *to, const uint8_t *from, int64_t n) {
    const uint8_t *end = from + n;
    uint8_t *start = to;
    while (from < end) {
        uint8_t c = *from;
        if (KLAMM_LIKELY(c < 0x80)) { *to++ = c; from++; continue; }
        int size = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2, good = c >= 0xc2 && c <= 0xf4;
        while (good && good < size && from + good < end) {
            uint8_t low = 0x80, high = 0xbf, d = from[good];
            if (good == 1) { /* no overlong forms, no surrogates, nothing beyond U+10FFFF */
                if (c == 0xe0) low = 0xa0;
                if (c == 0xed) high = 0x9f;
                if (c == 0xf0) low = 0x90;
                if (c == 0xf4) high = 0x8f;
            }
            if (d < low || d > high) break;
            good++;
        }
        if (good == size) {
            memcpy(to, from, (size_t)size);
            to += size;
        } else {
            *to++ = 0xef; *to++ = 0xbf; *to++ = 0xbd;
        }
        from += good ? good : 1;
    }
    return to - start;
}

/* Size of a record after its own size field. `headers_size` counts the header count too: at least 1. */
static inline int64_t klamm_body_size(
    int64_t timestamp_delta, int64_t offset_delta, int64_t key_size, int64_t value_size, int64_t headers_size) {
    return 1 + klamm_varint_size(timestamp_delta) + klamm_varint_size(offset_delta) +
           klamm_varint_size(key_size) + (key_size > 0 ? key_size : 0) +
           klamm_varint_size(value_size) + (value_size > 0 ? value_size : 0) + headers_size;
}

/* Everything of a record but its headers: the caller goes on with the header count. */
static inline uint8_t *klamm_put_record(
    uint8_t *p, int64_t body, int64_t timestamp_delta, int64_t offset_delta,
    const uint8_t *key, int64_t key_size, const uint8_t *value, int64_t value_size) {
    p = klamm_put_varint(p, body);
    *p++ = 0;
    p = klamm_put_varint(p, timestamp_delta);
    p = klamm_put_varint(p, offset_delta);
    p = klamm_put_varint(p, key_size);
    if (key_size > 0) { klamm_copy(p, key, (size_t)key_size); p += key_size; }
    p = klamm_put_varint(p, value_size);
    if (value_size > 0) { klamm_copy(p, value, (size_t)value_size); p += value_size; }
    return p;
}

/* The header of a batch whose records are in place, checksum last. Base offset and leader epoch are for the log. */
static inline void klamm_finish_header(
    uint8_t *data, size_t size, int32_t count, int32_t last_offset_delta, int64_t first_timestamp, int64_t max_timestamp,
    uint16_t attributes, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence) {
    klamm_put64(data, 0);
    klamm_put32(data + 8, (uint32_t)(size - KLAMM_LENGTH_END));
    klamm_put32(data + 12, 0);
    data[16] = 2;
    klamm_put16(data + 21, attributes);
    klamm_put32(data + 23, (uint32_t)last_offset_delta);
    klamm_put64(data + 27, (uint64_t)first_timestamp);
    klamm_put64(data + 35, (uint64_t)max_timestamp);
    klamm_put64(data + 43, (uint64_t)producer_id);
    klamm_put16(data + 51, (uint16_t)producer_epoch);
    klamm_put32(data + 53, (uint32_t)base_sequence);
    klamm_put32(data + 57, (uint32_t)count);
    klamm_put32(data + 17, klamm_crc32c(0, data + KLAMM_CRC_START, size - KLAMM_CRC_START));
}

/* ---- Kafka's murmur2 (Java client, seed 0x9747b28c) ---- */

static inline uint32_t klamm_murmur2(const uint8_t *p, size_t n) {
    const uint32_t m = 0x5bd1e995;
    uint32_t h = 0x9747b28cu ^ (uint32_t)n;
    for (; n >= 4; n -= 4, p += 4) {
        uint32_t k = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        k *= m;
        k ^= k >> 24;
        h = (h * m) ^ (k * m);
    }
    if (n == 3) h ^= (uint32_t)p[2] << 16;
    if (n >= 2) h ^= (uint32_t)p[1] << 8;
    if (n >= 1) h = (h ^ p[0]) * m;
    h = (h ^ (h >> 13)) * m;
    return h ^ (h >> 15);
}

/* ---- memory ---- */

/* Large buffers are written once from end to end: in pages of 4 KiB, the page faults would take longer than the writing. */
#define KLAMM_HUGE_PAGE ((size_t)2 << 20)
static inline void *klamm_malloc(size_t size) {
#if defined(__linux__)
    void *memory = NULL;
    if (size >= KLAMM_HUGE_PAGE) {
        if (posix_memalign(&memory, KLAMM_HUGE_PAGE, size)) return NULL;
        madvise(memory, size, MADV_HUGEPAGE); /* a wish: without it the memory is as good, only slower */
        return memory;
    }
#endif
    return malloc(size ? size : 1);
}

/* ---- clocks ---- */

#if defined(_WIN32)
static inline int64_t klamm_now_ms(void) {
    FILETIME t; /* in 100 ns since 1601 */
    GetSystemTimePreciseAsFileTime(&t);
    return (int64_t)((uint64_t)t.dwHighDateTime << 32 | t.dwLowDateTime) / 10000 - 11644473600000;
}

static inline double klamm_monotonic(void) {
    LARGE_INTEGER now, second;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&second);
    return (double)now.QuadPart / (double)second.QuadPart;
}
#else
static inline int64_t klamm_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static inline double klamm_monotonic(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
#endif

#endif
