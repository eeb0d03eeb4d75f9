/* Keys and the latest offset of each, in a table of fixed size: what compaction keeps in memory.
 *
 * An entry holds a hash of 128 bits, not the key, and the offset: 24 bytes, however long keys are. Two keys with one hash
 * would be taken for one, and the older's record lost. The hash is SipHash-2-4 with a random key for each pass: no client can
 * choose such keys, and among n of them there is a pair with odds of n² / 2^129 (a billion keys: 1 in 10^21).
 */
#ifndef KLAMM_KEYMAP_H
#define KLAMM_KEYMAP_H

#include <stdint.h>
#include <string.h>
#if defined(_WIN32)
#include <stdlib.h>
#else
#include <sys/mman.h>
#endif

#include "record.h"

#define KLAMM_DELETE_HORIZON 0x40

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "keys are hashed as little-endian words"
#endif

/* ---- SipHash-2-4 with 128 bits ---- */

#define KLAMM_ROTATE(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define KLAMM_SIP_ROUND                                                                                            \
    do {                                                                                                           \
        v0 += v1; v1 = KLAMM_ROTATE(v1, 13); v1 ^= v0; v0 = KLAMM_ROTATE(v0, 32);                                  \
        v2 += v3; v3 = KLAMM_ROTATE(v3, 16); v3 ^= v2;                                                             \
        v0 += v3; v3 = KLAMM_ROTATE(v3, 21); v3 ^= v0;                                                             \
        v2 += v1; v1 = KLAMM_ROTATE(v1, 17); v1 ^= v2; v2 = KLAMM_ROTATE(v2, 32);                                  \
    } while (0)

static inline void klamm_siphash128(const uint64_t seed[2], const uint8_t *p, size_t n, uint64_t out[2]) {
    uint64_t v0 = 0x736f6d6570736575ULL ^ seed[0], v1 = 0x646f72616e646f6dULL ^ seed[1] ^ 0xee;
    uint64_t v2 = 0x6c7967656e657261ULL ^ seed[0], v3 = 0x7465646279746573ULL ^ seed[1];
    uint64_t m, last = (uint64_t)n << 56;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&m, p, 8);
        v3 ^= m; KLAMM_SIP_ROUND; KLAMM_SIP_ROUND; v0 ^= m;
    }
    for (size_t i = 0; i < n; i++) last |= (uint64_t)p[i] << (8 * i);
    v3 ^= last; KLAMM_SIP_ROUND; KLAMM_SIP_ROUND; v0 ^= last;
    v2 ^= 0xee;
    KLAMM_SIP_ROUND; KLAMM_SIP_ROUND; KLAMM_SIP_ROUND; KLAMM_SIP_ROUND;
    out[0] = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    KLAMM_SIP_ROUND; KLAMM_SIP_ROUND; KLAMM_SIP_ROUND; KLAMM_SIP_ROUND;
    out[1] = v0 ^ v1 ^ v2 ^ v3;
}

/* ---- the table: open addressing, at most three quarters full ---- */

typedef struct { uint64_t low, high; int64_t after; } klamm_entry; /* after: offset + 1; 0: free */
typedef struct {
    uint64_t seed[2];
    klamm_entry *entries;
    uint64_t count, used, most;
} klamm_keymap;

/* Memory of zeros that is only there once it is touched, in huge pages where the system has them. */
#if defined(_WIN32)
static inline klamm_entry *klamm_new_entries(uint64_t count) { return (klamm_entry *)calloc(count, sizeof(klamm_entry)); }
static inline void klamm_free_entries(klamm_entry *entries, uint64_t count) { (void)count, free(entries); }
#else
static inline klamm_entry *klamm_new_entries(uint64_t count) {
    void *memory = mmap(NULL, count * sizeof(klamm_entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
#if defined(__linux__)
    madvise(memory, count * sizeof(klamm_entry), MADV_HUGEPAGE);
#endif
    return (klamm_entry *)memory;
}

static inline void klamm_free_entries(klamm_entry *entries, uint64_t count) {
    if (entries) munmap(entries, count * sizeof(klamm_entry));
}
#endif

/* The entry of a key, or the free one where it would go. There always is a free one. */
static inline uint64_t klamm_first_entry(const klamm_keymap *map, uint64_t low) {
    return (uint64_t)(((unsigned __int128)low * map->count) >> 64);
}

static inline klamm_entry *klamm_entry_of(const klamm_keymap *map, const uint64_t hash[2]) {
    uint64_t i = klamm_first_entry(map, hash[0]);
    while (map->entries[i].after && (map->entries[i].low != hash[0] || map->entries[i].high != hash[1]))
        if (++i == map->count) i = 0;
    return &map->entries[i];
}

/* Places are anywhere in memory: they are asked for some records before they are looked at. */
enum { KLAMM_AHEAD = 32 };
typedef struct { uint64_t hash[2]; int64_t offset, timestamp; int32_t index; int tombstone; } klamm_pending;

static inline void klamm_ask_for(const klamm_keymap *map, const klamm_record *r, klamm_pending *out) {
    klamm_siphash128(map->seed, r->key, (size_t)r->key_size, out->hash);
    __builtin_prefetch(&map->entries[klamm_first_entry(map, out->hash[0])], 1);
}

/* ---- one batch, whose uncompressed records lie in [p, end) ---- */

enum { KLAMM_MAPPED, KLAMM_MAP_FULL, KLAMM_BAD_RECORDS };

/* Reads the next record and checks that its offset grows: the position after it, or NULL. */
static inline const uint8_t *klamm_next_record(
    const klamm_batch *batch, const uint8_t *p, const uint8_t *end, int64_t *last, klamm_record *r) {
    if (!(p = klamm_read_record(p, end, r)) || r->offset_delta <= *last || r->offset_delta > batch->last_offset_delta)
        return NULL;
    *last = r->offset_delta;
    return p;
}

static inline int klamm_map_pending(klamm_keymap *map, const klamm_pending *pending, int count, int64_t *offset) {
    for (int i = 0; i < count; i++) {
        klamm_entry *entry = klamm_entry_of(map, pending[i].hash);
        *offset = pending[i].offset;
        if (!entry->after) {
            if (map->used >= map->most) return KLAMM_MAP_FULL;
            map->used++;
            entry->low = pending[i].hash[0];
            entry->high = pending[i].hash[1];
        }
        if (entry->after <= *offset) entry->after = *offset + 1;
    }
    return KLAMM_MAPPED;
}

/* Notes the records with start <= offset < end_offset. When it is full, *offset is the first record that had no entry. */
static inline int klamm_map_records(
    klamm_keymap *map, const klamm_batch *batch, const uint8_t *p, const uint8_t *end, int64_t start, int64_t end_offset,
    int64_t *offset) {
    klamm_record r;
    klamm_pending pending[KLAMM_AHEAD];
    int64_t last = -1;
    int waiting = 0;
    if (batch->record_count > (end - p) / KLAMM_SMALLEST_RECORD) return KLAMM_BAD_RECORDS;
    for (int32_t i = 0; i < batch->record_count; i++) {
        if (!(p = klamm_next_record(batch, p, end, &last, &r))) return KLAMM_BAD_RECORDS;
        int64_t at = batch->base_offset + r.offset_delta;
        if (at < start || at >= end_offset || r.key_size < 0) continue;
        pending[waiting].offset = at;
        klamm_ask_for(map, &r, &pending[waiting++]);
        if (waiting == KLAMM_AHEAD) {
            if (klamm_map_pending(map, pending, waiting, offset)) return KLAMM_MAP_FULL;
            waiting = 0;
        }
    }
    if (p != end) return KLAMM_BAD_RECORDS;
    return klamm_map_pending(map, pending, waiting, offset);
}

/* The same for a column of keys, each from bounds[i] to bounds[i + 1] in `data`, and offsets that are known. When it is
 * full, *offset is that of the first key that had no entry. */
static inline int klamm_map_column(
    klamm_keymap *map, const int32_t *bounds, const uint8_t *data, int64_t size, const int64_t *offsets, int64_t count,
    int64_t *offset) {
    klamm_record r;
    klamm_pending pending[KLAMM_AHEAD];
    int waiting = 0;
    for (int64_t i = 0; i < count; i++)
        if (bounds[i] < 0 || bounds[i] > bounds[i + 1] || bounds[i + 1] > size || offsets[i] < 0)
            return KLAMM_BAD_RECORDS;
    for (int64_t i = 0; i < count; i++) {
        r.key = data + bounds[i];
        r.key_size = bounds[i + 1] - bounds[i];
        pending[waiting].offset = offsets[i];
        klamm_ask_for(map, &r, &pending[waiting++]);
        if (waiting == KLAMM_AHEAD) {
            if (klamm_map_pending(map, pending, waiting, offset)) return KLAMM_MAP_FULL;
            waiting = 0;
        }
    }
    return klamm_map_pending(map, pending, waiting, offset);
}

typedef struct {
    int64_t kept, tombstones; /* tombstones: among those kept */
    int64_t max_timestamp;    /* of those kept */
} klamm_judgement;

static inline void klamm_keep(klamm_judgement *out, int64_t timestamp, int tombstone) {
    if (!out->kept || timestamp > out->max_timestamp) out->max_timestamp = timestamp;
    out->kept++;
    out->tombstones += tombstone;
}

static inline void klamm_judge_pending(
    const klamm_keymap *map, const klamm_pending *pending, int count, uint8_t *keep, klamm_judgement *out) {
    for (int i = 0; i < count; i++) {
        int stays = klamm_entry_of(map, pending[i].hash)->after <= pending[i].offset + 1;
        keep[pending[i].index] = (uint8_t)stays;
        if (stays) klamm_keep(out, pending[i].timestamp, pending[i].tombstone);
    }
}

/* Which records stay: keep[i] for each. A record goes when its key has a later one, or when it is a tombstone whose time
 * has come (`expired`); records without a key, and those from `end_offset` on, stay. */
static inline int klamm_judge_records(
    const klamm_keymap *map, const klamm_batch *batch, const uint8_t *p, const uint8_t *end, int64_t end_offset, int expired,
    uint8_t *keep, klamm_judgement *out) {
    klamm_record r;
    klamm_pending pending[KLAMM_AHEAD];
    int64_t last = -1;
    int waiting = 0;
    out->kept = out->tombstones = 0;
    out->max_timestamp = -1;
    for (int32_t i = 0; i < batch->record_count; i++) {
        if (!(p = klamm_next_record(batch, p, end, &last, &r))) return KLAMM_BAD_RECORDS;
        int64_t offset = batch->base_offset + r.offset_delta;
        int tombstone = r.value_size < 0 && r.key_size >= 0;
        if (offset >= end_offset || r.key_size < 0) {
            keep[i] = 1;
            klamm_keep(out, klamm_timestamp(batch, &r), tombstone);
        } else if (tombstone && expired) {
            keep[i] = 0;
        } else {
            klamm_pending *mine = &pending[waiting++];
            mine->offset = offset;
            mine->timestamp = klamm_timestamp(batch, &r);
            mine->index = i;
            mine->tombstone = tombstone;
            klamm_ask_for(map, &r, mine);
            if (waiting == KLAMM_AHEAD) {
                klamm_judge_pending(map, pending, waiting, keep, out);
                waiting = 0;
            }
        }
    }
    klamm_judge_pending(map, pending, waiting, keep, out);
    return p == end ? KLAMM_MAPPED : KLAMM_BAD_RECORDS;
}

/* Copies the records that stay; with other timestamp deltas if the base is now `base_timestamp`. Takes at most
 * end - p + 15 bytes for each record kept. They were judged before, so they can be read. */
static inline uint8_t *klamm_copy_records(
    const klamm_batch *batch, const uint8_t *p, const uint8_t *end, const uint8_t *keep, int64_t base_timestamp,
    uint8_t *to) {
    uint64_t shift = (uint64_t)batch->base_timestamp - (uint64_t)base_timestamp;
    for (int32_t i = 0; i < batch->record_count; i++) {
        int64_t size, delta;
        const uint8_t *start = p, *body = klamm_get_varint(p, end, 5, &size);
        if (!body || size < 1 || size > end - body) return to;
        p = body + size;
        if (!keep[i]) continue;
        if (!shift) {
            klamm_copy(to, start, (size_t)(p - start));
            to += p - start;
            continue;
        }
        const uint8_t *rest = klamm_get_varint(body + 1, p, 10, &delta);
        if (!rest) return to;
        delta = (int64_t)((uint64_t)delta + shift);
        to = klamm_put_varint(to, 1 + klamm_varint_size(delta) + (p - rest));
        *to++ = *body;
        to = klamm_put_varint(to, delta);
        memcpy(to, rest, (size_t)(p - rest));
        to += p - rest;
    }
    return to;
}

typedef struct {
    int64_t min_timestamp, max_timestamp; /* INT64_MAX and -1 if no record has one (-1 means none, as in Kafka) */
    int is_keyed;                         /* every record has a key */
} klamm_scan;

/* Reads every record of a batch. KLAMM_MAPPED, or KLAMM_BAD_RECORDS: one of them cannot be read. */
static inline int klamm_scan_records(const klamm_batch *batch, const uint8_t *p, const uint8_t *end, klamm_scan *out) {
    klamm_record r;
    int64_t last = -1;
    out->min_timestamp = INT64_MAX;
    out->max_timestamp = -1;
    out->is_keyed = 1;
    if (batch->record_count > (end - p) / KLAMM_SMALLEST_RECORD) return KLAMM_BAD_RECORDS;
    for (int32_t i = 0; i < batch->record_count; i++) {
        if (!(p = klamm_next_record(batch, p, end, &last, &r))) return KLAMM_BAD_RECORDS;
        int64_t timestamp = klamm_timestamp(batch, &r);
        if (timestamp > out->max_timestamp) out->max_timestamp = timestamp;
        if (timestamp != -1 && timestamp < out->min_timestamp) out->min_timestamp = timestamp;
        if (r.key_size < 0) out->is_keyed = 0;
    }
    return p == end ? KLAMM_MAPPED : KLAMM_BAD_RECORDS;
}

#endif
