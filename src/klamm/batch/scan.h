/* Reading the records of a batch in pieces, wherever they are cut: only varints that are cut are held. Finds what
 * klamm_scan_records finds, and refuses what it refuses. */
#ifndef KLAMM_SCAN_H
#define KLAMM_SCAN_H

#include "keymap.h"

enum { KLAMM_AT_SIZE, KLAMM_AT_ATTRIBUTES, KLAMM_AT_TIME, KLAMM_AT_OFFSET, KLAMM_AT_KEY, KLAMM_AT_VALUE, KLAMM_AT_COUNT,
       KLAMM_AT_NAME, KLAMM_AT_HEADER };

#define KLAMM_MAX_LISTED 100

typedef struct {
    klamm_scan found;
    int64_t earliest, latest;                   /* timestamps outside of these are listed */
    int32_t outside[KLAMM_MAX_LISTED];         /* the first records with such a timestamp */
    int32_t unkeyed[KLAMM_MAX_LISTED];          /* the first records without a key */
    int outside_count, unkeyed_count;
    int64_t first_outside;                      /* the timestamp of the first */
    int32_t done;                               /* records that were read */
    int at, digits;                             /* the field that comes next, and bytes of its varint that were read */
    uint64_t varint;
    int64_t last_delta, timestamp_delta, headers;
    int64_t left, skip;                         /* bytes of the record, and of a key, value or name, that are to come */
} klamm_pieces;

static inline void klamm_begin_pieces(klamm_pieces *s, int64_t earliest, int64_t latest) {
    memset(s, 0, sizeof *s);
    s->found.min_timestamp = INT64_MAX;
    s->found.max_timestamp = -1;
    s->found.is_keyed = 1;
    s->earliest = earliest;
    s->latest = latest;
    s->last_delta = -1;
}

static inline void klamm_end_record(klamm_pieces *s, const klamm_batch *batch) {
    klamm_record r;
    r.timestamp_delta = s->timestamp_delta;
    int64_t timestamp = klamm_timestamp(batch, &r);
    if (timestamp > s->found.max_timestamp) s->found.max_timestamp = timestamp;
    if (timestamp != -1) {
        if (timestamp < s->found.min_timestamp) s->found.min_timestamp = timestamp;
        if ((timestamp < s->earliest || timestamp > s->latest) && s->outside_count < KLAMM_MAX_LISTED) {
            if (!s->outside_count) s->first_outside = timestamp;
            s->outside[s->outside_count++] = s->done;
        }
    }
    s->done++;
    s->at = KLAMM_AT_SIZE;
}

/* One varint was read. 0: it cannot be. */
static inline int klamm_take_field(klamm_pieces *s, const klamm_batch *batch, int64_t v) {
    switch (s->at) {
    case KLAMM_AT_SIZE:
        if (v < 1) return 0;
        s->left = v;
        break;
    case KLAMM_AT_TIME:
        s->timestamp_delta = v;
        break;
    case KLAMM_AT_OFFSET:
        if (v <= s->last_delta || v > batch->last_offset_delta) return 0;
        s->last_delta = v;
        break;
    case KLAMM_AT_COUNT:
        if (v < 0 || v > s->left / 2) return 0;
        s->headers = v;
        if (!v) {
            if (s->left) return 0;
            klamm_end_record(s, batch);
            return 1;
        }
        break;
    default: /* the size of a key, a value, a header's name or value */
        if (v < (s->at == KLAMM_AT_NAME ? 0 : -1) || v > s->left) return 0;
        if (s->at == KLAMM_AT_KEY && v < 0) {
            s->found.is_keyed = 0;
            if (s->unkeyed_count < KLAMM_MAX_LISTED) s->unkeyed[s->unkeyed_count++] = s->done;
        }
        s->skip = v > 0 ? v : 0;
        if (s->at == KLAMM_AT_HEADER) {
            if (--s->headers) {
                s->at = KLAMM_AT_NAME;
            } else {
                if (s->left != s->skip) return 0;
                klamm_end_record(s, batch);
            }
            return 1;
        }
    }
    s->at++;
    return 1;
}

/* KLAMM_MAPPED: go on; KLAMM_BAD_RECORDS: a record cannot be read, or there are more than the batch says. */
static inline int klamm_take_piece(klamm_pieces *s, const klamm_batch *batch, const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        if (s->skip) {
            int64_t n = s->skip < end - p ? s->skip : end - p;
            p += n;
            s->skip -= n;
            s->left -= n;
            continue;
        }
        if (s->at == KLAMM_AT_SIZE) {
            if (s->done == batch->record_count) return KLAMM_BAD_RECORDS;
        } else if (s->left-- <= 0) {
            return KLAMM_BAD_RECORDS;
        }
        uint8_t byte = *p++;
        if (s->at == KLAMM_AT_ATTRIBUTES) {
            s->at++;
            continue;
        }
        if (s->digits == 9 && byte > 1) return KLAMM_BAD_RECORDS;
        s->varint |= (uint64_t)(byte & 0x7f) << (7 * s->digits++);
        int most = s->at == KLAMM_AT_TIME ? 10 : 5;
        if (byte >= 0x80) {
            if (s->digits == most) return KLAMM_BAD_RECORDS;
            continue;
        }
        if (most == 5 && s->varint > UINT32_MAX) return KLAMM_BAD_RECORDS;
        int64_t v = (int64_t)(s->varint >> 1) ^ -(int64_t)(s->varint & 1);
        s->varint = 0;
        s->digits = 0;
        if (!klamm_take_field(s, batch, v)) return KLAMM_BAD_RECORDS;
    }
    return KLAMM_MAPPED;
}

/* Whether the records ended where the pieces did. */
static inline int klamm_is_whole(const klamm_pieces *s, const klamm_batch *batch) {
    return s->at == KLAMM_AT_SIZE && !s->digits && !s->skip && s->done == batch->record_count;
}

#endif
