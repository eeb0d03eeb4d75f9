/* The bytes of `heads`: little-endian, mapped shared. The meaning of each field is told in head.py. */
#ifndef KLAMM_SLOT_H
#define KLAMM_SLOT_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "os.h"
#include "owner.h"
#include "crc32c.h"
#include "record.h"

typedef struct {                        /* one cache line; crc is the CRC-32C of the 60 bytes before it */
    int64_t next_offset, active_base, position, stable_offset, max_timestamp, log_start;
    uint64_t seq;
    uint32_t leader_epoch, crc;
} Commit;

typedef struct {
    uint64_t seq, flags;                /* line 0: what readers watch; flags: bits 0-31 flags, 32-63 the slot's generation */
    uint64_t flushed;                   /* flushed_offset, flushing and the flush generation: see FLUSHING */
    uint32_t segments_version, flush_round;
    uint64_t unused1[4];
    uint64_t intent;                    /* line 1: writers only, so that it does not disturb spinning readers */
    int64_t index_base, index_position, index_count;
    int64_t recovery_base, recovery_position;
    uint64_t redo_seq;
    int64_t redo_position;
    Commit ring[8];                     /* lines 2 to 9 */
    int64_t active_since_ms;            /* line 10 */
    int64_t flushed_check;              /* ~flushed_offset: after a boot it is believed only with this */
    uint64_t producers_seq;             /* what the table of producers has in its header */
    int64_t aborted_base, aborted_count;        /* the latest .aborted file: its segment, and its entries */
    char topic_id[16];                  /* whose partition this is */
    uint32_t number, identity_crc;      /* CRC-32C of topic_id and number */
    uint64_t holder;                    /* line 11: the append lock: the process that took it last (see KlammLockNote) */
    uint32_t owner, unused2;            /* and the process that holds it (owner.h) */
    KlammLockNote notes[3];             /* of lock bytes 4n + 1 to 4n + 3 */
    uint64_t reserved[32];
} Slot;

typedef struct {                        /* slot 0 belongs to the store */
    char magic[8];
    uint32_t format, format_crc;        /* CRC-32C of magic, format and features: in one store with the format */
    char boot_id[16];
    uint64_t device, inode;
    uint64_t catalog_version, groups_version;
    KlammBell bell;                     /* line 1 */
    uint64_t unused2[7];
    int64_t anchor_wall_ms, anchor_boot_ms;     /* line 2: the store's clock, by which retention deletes */
    int64_t anchor_check;               /* wall ^ ~boot, so that a damaged clock is not believed */
    int64_t ahead_ms, ahead_check;      /* for tests: so far ahead of the true time; believed if the check is ~ahead */
    int64_t shift_ms, shift_check;      /* how far the wall clock was set since the anchor; believed if the check is ~shift */
    int64_t drift_ms, drift_since_ms;   /* how far it differs from that now, and since when by the boot clock; 0: it does not */
    int64_t retention_checked_ms;       /* when retention was last checked, by the boot clock; 0: not since the boot */
    uint64_t lock_inode, members_inode; /* of the lock files that the processes use */
    uint64_t database_inode;            /* of klamm.db */
    uint64_t changes, changes_check;    /* of klamm.db, which has at least so many; believed if the check is ~changes */
    char store_id[16];
    uint32_t lives, unused3;            /* the latest life number (owner.h) */
    uint64_t unused4[54];
    KlammLockNote notes[4];             /* line 11: of lock bytes 0 to 3 */
    uint64_t features[3];               /* compatible, read-compatible, incompatible (store/features.py) */
    uint64_t reserved[29];
} StoreSlot;

typedef struct {                        /* of an index: which segment it is about (index.py) */
    char magic[8];
    int64_t base, size, last_position;
    uint32_t first, last;               /* CRC-32C of the headers of its first and of its last batch */
    uint64_t unused[2];
    uint32_t version, crc;
} IndexHeader;
typedef struct { int64_t offset, position, max_timestamp; uint32_t unused, crc; } IndexEntry;
typedef struct { int64_t producer_id, first_offset, last_offset; uint32_t unused, crc; } AbortedEntry;

enum { RING = 8, SLOT_SIZE = 1024, NOTES_AT = 704 };
_Static_assert(sizeof(Commit) == 64 && sizeof(Slot) == SLOT_SIZE && sizeof(StoreSlot) == SLOT_SIZE, "a file format");
_Static_assert(offsetof(Slot, intent) == 64 && offsetof(Slot, ring) == 128, "cache lines");
_Static_assert(offsetof(StoreSlot, bell) == 64 && offsetof(StoreSlot, anchor_wall_ms) == 128, "cache lines");
_Static_assert(offsetof(Slot, holder) == NOTES_AT && offsetof(StoreSlot, notes) == NOTES_AT, "cache lines");
_Static_assert(offsetof(Slot, notes) == NOTES_AT + sizeof(KlammLockNote), "a note for each lock byte");
_Static_assert(sizeof(IndexHeader) == 64 && sizeof(IndexEntry) == 32 && sizeof(AbortedEntry) == 32, "a file format");
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "mapped files are little-endian"
#endif

static inline int64_t store_ahead_ms(const StoreSlot *store) {
    int64_t ahead = klamm_load(&store->ahead_ms);
    return klamm_load(&store->ahead_check) == ~ahead ? ahead : 0;
}
static inline int64_t store_shift_ms(const StoreSlot *store) {
    int64_t shift = klamm_load(&store->shift_ms);
    return klamm_load(&store->shift_check) == ~shift ? shift : 0;
}
static inline uint32_t commit_crc(const Commit *c) { return klamm_crc32c(0, c, offsetof(Commit, crc)); }
static inline void load_commit(Commit *to, const Commit *from) {
    for (int i = 0; i < 8; i++)
        ((uint64_t *)to)[i] = (klamm_step(STEP_READ), __atomic_load_n((const uint64_t *)from + i, __ATOMIC_RELAXED));
}
static inline void store_commit(Commit *to, const Commit *from) {
    for (int i = 0; i < 8; i++) klamm_step(STEP_STORE), __atomic_store_n((uint64_t *)to + i, ((const uint64_t *)from)[i], __ATOMIC_RELAXED);
}
static inline uint32_t format_crc(const StoreSlot *s) {
    return klamm_crc32c(klamm_crc32c(0, s->magic, 12), s->features, sizeof(s->features));
}
static inline uint32_t identity_crc(const Slot *s) { return klamm_crc32c(0, s->topic_id, 20); }
_Static_assert(offsetof(Slot, number) == offsetof(Slot, topic_id) + 16, "a file format");

/* Syncing is one word, so that a process that was replaced as syncer (head.py) changes nothing: each of its changes is a
 * compare-and-swap, and another generation makes that fail.   bits 0-54 flushed_offset · 55-62 generation · 63 flushing */
#define FLUSHING ((uint64_t)1 << 63)
#define FLUSHED_MAX (((int64_t)1 << 55) - 1)
#define FLUSH_GENERATION ((uint64_t)255 << 55)
static inline int64_t flushed_offset_of(uint64_t word) { return (int64_t)(word & (uint64_t)FLUSHED_MAX); }
static inline uint64_t next_generation(uint64_t word) {
    return (word & ~FLUSH_GENERATION) | ((word + ((uint64_t)1 << 55)) & FLUSH_GENERATION);
}
/* The lock byte of a generation: 4n + 1 of the first one. */
static inline int64_t flush_byte_of(int64_t first, uint64_t word) {
    return first + (int64_t)((word & FLUSH_GENERATION) >> 55 << 40);
}
/* A slot is used again after its partition was deleted. Its generation, in `flags`, then moves on, before anything else. */
#define SLOT_GENERATION ((uint64_t)0xffffffff << 32)
static inline uint64_t next_slot_generation(uint64_t flags) { return (flags & SLOT_GENERATION) + ((uint64_t)1 << 32); }
#define entry_crc(e) klamm_crc32c(0, e, sizeof(*(e)) - sizeof(uint32_t))
#endif
