/* The append lock of a partition: a word of its slot, and a lock byte for each process that may own it.
 *
 *   owner      0: free; else the life number of the process that holds the lock, | WAITERS if another one may sleep
 *   lives      in slot 0: the latest life number that was given out
 *   LIFE + x   a byte of `heads`, held by the process whose life number is x for as long as it has the store open
 *
 * To take a lock that is free, and to drop it while no other waits, is one compare-and-swap each: no system call. Whether
 * an owner lives is never asked of a pid: its byte is free or not, and the kernel frees it when the process has ended.
 *
 *   take     owner: 0 -> number. Taken: look again some 200 times; set WAITERS; sleep on the word, 2 ms at most
 *   theft    the word has not changed for 2 ms, and the owner's byte is free: owner: that very word -> number | WAITERS
 *   drop     owner: number -> 0; with WAITERS: wake one
 *
 * Promises
 *   LCK1  Only the process whose number is in `owner` writes a segment, the intent or a commit.
 *   LCK2  A number is stored into `owner` only by the process that holds its byte, and is given out once by one `heads`.
 *   LCK3  A byte is free only when every thread of its process has left user mode for good: the kernel drops it with the
 *         last reference to the open file. So nothing is taken from a process that is stopped, frozen or traced.
 *   LCK4  A lock is taken from another process only by one compare-and-swap from exactly the word of the dead.
 *   LCK5  A process sleeps only on a word with WAITERS. The one that drops such a word wakes one; a process that got the
 *         word by sleeping, or by theft, leaves WAITERS set. A sleep ends after 2 ms: if the process that was woken is
 *         killed, the others are late by that and no more.
 *   LCK6  The process that makes `heads` trusted again (after a boot, of a copy) is alone, and stores 0 into every owner
 *         before the first lock: numbers of another boot mean nothing.
 *   LCK7  Where the mapping cannot be written, the word is not touched.
 *   LCK8  In a forked child the life is over: it closes the descriptor, and opens the store with a new number.
 *   LCK9  The descriptor of the bytes is an open file of its own that is never mapped: a mapping keeps the open file, and
 *         so the byte, in a forked child that has closed every descriptor.
 *
 * Where a store has one process at a time (no byte locks: macOS, Windows), the word is a lock between threads: no other process
 * else can have died, and each open clears it (LCK6). */
#ifndef KLAMM_OWNER_H
#define KLAMM_OWNER_H
#include "os.h"

#define WAITERS ((uint32_t)1 << 31)
#define LIFE ((int64_t)1 << 41)
enum { OWNER_TRY, OWNER_WAIT, OWNER_SLEPT };   /* SLEPT: a wait that goes on */
enum { OWNER_SPINS = 200, OWNER_SLEEP_NS = 2000000, OWNER_WAIT_NS = 20000000, LIFE_TRIES = 1000 };

typedef struct {
    uint32_t number;                    /* 0: none, so it may not take a lock */
    int fd;
    uint64_t inode;
} KlammLife;

/* Take the next number, and its byte before anybody can see the number. 0 or -errno. */
static int life_begin(KlammLife *life, uint32_t *lives) {
    for (int tries = 0; tries < LIFE_TRIES; tries++) {
        uint32_t number = (klamm_fetch_add(lives, 1) + 1) & ~WAITERS;
        if (number == 0) continue;
        if (os_lock(life->fd, LIFE + number, F_WRLCK, 0) == 0) { life->number = number; return 0; }
        if (errno != EAGAIN && errno != EACCES) return -errno;
    }                                   /* a number that is in use: `lives` was damaged */
    return -EAGAIN;
}
/* Whether the process with that number lives, or may: an error, or another file behind the descriptor, proves nothing. */
static int life_goes_on(const KlammLife *own, uint32_t number) {
    int64_t start = LIFE + number, length = 1;
    KlammStat status;
    if (!KLAMM_BYTE_LOCKS || number == own->number) return 1;
    if (fstat(own->fd, &status) || (uint64_t)status.st_ino != own->inode) return 1;
    return os_find_lock(own->fd, &start, &length) != 0;
}
static inline int owner_swap(uint32_t *owner, uint32_t from, uint32_t to) {
    klamm_step(STEP_LOCK);
    return __atomic_compare_exchange_n(owner, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}
/* 0; OWNER_TRY: -EAGAIN. Else -EINTR after a moment, or when a signal came: look after it, and go on with OWNER_SLEPT. */
static __attribute__((noinline)) int owner_take_slowly(uint32_t *owner, const KlammLife *life, int wait) {
    for (int i = 0; i < OWNER_SPINS && wait != OWNER_SLEPT; i++) {
        klamm_pause();
        if (klamm_load(owner) == 0 && owner_swap(owner, 0, life->number)) return 0;
    }
    for (int64_t end = klamm_monotonic_ns() + OWNER_WAIT_NS;;) {
        uint32_t seen = klamm_load(owner);
        if (seen == 0) {
            if (owner_swap(owner, 0, life->number | WAITERS)) return 0;     /* others may wait as well */
            continue;
        }
        if (wait == OWNER_TRY) {
            if (life_goes_on(life, seen & ~WAITERS)) return -EAGAIN;
            if (owner_swap(owner, seen, life->number | WAITERS)) return 0;
            continue;
        }
        if (!(seen & WAITERS)) {
            if (!owner_swap(owner, seen, seen | WAITERS)) continue;
            seen |= WAITERS;
        }
        int64_t now = klamm_monotonic_ns(), until = now + OWNER_SLEEP_NS;
        if (now >= end || os_futex_wait(owner, seen, 0xffffffffu, until) == -EINTR) return -EINTR;
        if (klamm_load(owner) == seen && klamm_monotonic_ns() >= until && !life_goes_on(life, seen & ~WAITERS))
            if (owner_swap(owner, seen, life->number | WAITERS)) return 0;  /* the owner died: `intent` tells what it left */
    }
}
static inline int owner_take(uint32_t *owner, const KlammLife *life, int wait) {
    if (__builtin_expect(wait != OWNER_SLEPT && owner_swap(owner, 0, life->number), 1)) return 0;
    return owner_take_slowly(owner, life, wait);
}
static inline void owner_drop(uint32_t *owner, const KlammLife *life) {
    uint32_t seen = life->number;
    klamm_step(STEP_LOCK);
    if (__builtin_expect(__atomic_compare_exchange_n(owner, &seen, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED), 1)) return;
    if (seen == (life->number | WAITERS) && owner_swap(owner, seen, 0)) os_futex_wake_one(owner);
}
#endif
