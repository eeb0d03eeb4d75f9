/* The system calls Klamm makes, each of them a *step*.
 *
 * A step is anything another process, or the machine after a power cut, can observe: a system call, or a store into a
 * mapped file. Tests arm a trap; the n-th step of the chosen kinds then kills the process or fails with an errno.
 * One trap serves every native module: `_os` owns it, the others get its address (see klamm_share_trap).
 */
#ifndef KLAMM_OS_H
#define KLAMM_OS_H

#ifdef Py_GIL_DISABLED
#error "Klamm does not support free-threaded builds of CPython: its native modules rely on the GIL. Use a build with it."
#endif

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#if defined(_WIN32)
#include "win32.h"
#else
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#endif

enum {
    STEP_LOCK = 1,
    STEP_OPEN = 2,
    STEP_WRITE = 4,
    STEP_TRUNCATE = 8,
    STEP_SYNC = 16,
    STEP_RENAME = 32,
    STEP_UNLINK = 64,
    STEP_MKDIR = 128,
    STEP_STORE = 256,
    STEP_WAKE = 512,
    STEP_READ = 1024,
    STEP_ALL = 2047,
};

typedef struct {
    int64_t countdown;  /* steps of `kinds` until the trap springs; 0: not armed */
    int64_t taken;      /* steps of `kinds` since it was armed */
    uint32_t kinds;
    int signal, error, repeat;
} KlammTrap;

static KlammTrap klamm_own_trap;
static KlammTrap *klamm_trap = &klamm_own_trap;

static inline void klamm_share_trap(uint64_t address) { klamm_trap = (KlammTrap *)(uintptr_t)address; }

static __attribute__((noinline)) int klamm_trip(uint32_t kind) {
    if (!(kind & klamm_trap->kinds)) return 0;
    klamm_trap->taken++;
    if (klamm_trap->countdown > 1) { klamm_trap->countdown--; return 0; }
    if (!klamm_trap->repeat) klamm_trap->countdown = 0;
    if (klamm_trap->signal) { kill(getpid(), klamm_trap->signal); return 0; }
    errno = klamm_trap->error;
    return klamm_trap->error ? -1 : 0;
}
static inline int klamm_step(uint32_t kind) {
    return __builtin_expect(klamm_trap->countdown != 0, 0) ? klamm_trip(kind) : 0;
}

/* Stores into mapped files. */
#define klamm_load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define klamm_store(p, v) (klamm_step(STEP_STORE), __atomic_store_n(p, v, __ATOMIC_RELEASE))
#define klamm_fetch_or(p, v) (klamm_step(STEP_STORE), __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST))
#define klamm_fetch_and(p, v) (klamm_step(STEP_STORE), __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST))
#define klamm_fetch_add(p, v) (klamm_step(STEP_STORE), __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST))
static inline int klamm_exchange(uint64_t *p, uint64_t old, uint64_t new) {  /* whether it was `old`, and is `new` now */
    klamm_step(STEP_STORE);
    return __atomic_compare_exchange_n(p, &old, new, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
#define klamm_fence_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define klamm_fence_release() __atomic_thread_fence(__ATOMIC_RELEASE)
#define klamm_fence_full() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#if defined(__x86_64__) || defined(__i386__)
#define klamm_pause() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define klamm_pause() __asm__ volatile("yield")
#else
#define klamm_pause() ((void)0)
#endif

/* A path may begin with a directory that is held open, as the kernel spells it: /proc/self/fd/7/rest (roots.py). Return
 * the descriptor and leave the rest, for the calls that end in "at": the kernel takes twice as long to follow the name. */
#if !defined(_WIN32)
static int os_base(const char **path) {
    static const char prefix[] = "/proc/self/fd/";
    const char *rest = *path + sizeof(prefix) - 1;
    int fd = 0;
    if (strncmp(*path, prefix, sizeof(prefix) - 1)) return AT_FDCWD;
    for (; *rest >= '0' && *rest <= '9' && fd < 100000000; rest++) fd = 10 * fd + (*rest - '0');
    if (rest[-1] == '/' || rest[0] != '/' || !rest[1]) return AT_FDCWD;     /* not a number, or the directory itself */
    *path = rest + 1;
    return fd;
}
static int os_stat(const char *path, struct stat *status) {
    int base = os_base(&path);
    return fstatat(base, path, status, 0);
}
#endif

/* Files. What is made is as open to others as the directory it is made in, whatever the umask allows or forbids: a store
 * is a directory of mode 0700 unless its owner says otherwise, and one of mode 2770 is shared by a group. */
#if !defined(_WIN32)
static mode_t os_shared_bits(const char *path) {
    char parent[4096];
    const char *slash = strrchr(path, '/');
    size_t size = slash ? (size_t)(slash - path) : 0;
    struct stat status;
    if (size >= sizeof(parent)) return 0;
    memcpy(parent, path, size);
    parent[size] = 0;
    return os_stat(size ? parent : slash ? "/" : ".", &status) ? 0 : status.st_mode & 0077;
}
static int os_create(const char *path, int flags) {
    mode_t mode = 0600 | (os_shared_bits(path) & 0066);
    struct stat status;
    int base = os_base(&path);
    for (int tries = 0; ; tries++) {
        int fd = flags & O_EXCL ? -1 : openat(base, path, (flags & ~O_CREAT) | O_CLOEXEC);
        if (fd >= 0 || (!(flags & O_EXCL) && errno != ENOENT)) return fd;
        fd = openat(base, path, flags | O_EXCL | O_CLOEXEC, mode);
        if (fd < 0 && errno == EEXIST && !(flags & O_EXCL) && tries < 100) continue;    /* another process was faster */
        if (fd >= 0 && !fstat(fd, &status) && (status.st_mode & 0777) != mode) fchmod(fd, mode);
        return fd;
    }
}
static int os_open(const char *path, int flags) {
    if (klamm_step(STEP_OPEN)) return -1;
    if (flags & O_CREAT) return os_create(path, flags);
    int base = os_base(&path);
    return openat(base, path, flags | O_CLOEXEC);
}
#else
static int os_open(const char *path, int flags) {
    return klamm_step(STEP_OPEN) ? -1 : open(path, flags | O_CLOEXEC, 0644);
}
#endif
static ssize_t os_pread(int fd, void *data, size_t size, int64_t position) {
    return klamm_step(STEP_READ) ? -1 : pread(fd, data, size, position);
}
/* Like os_pread, but fail with EAGAIN rather than wait for a disk. Where the file system does not know: read. */
static ssize_t os_pread_cached(int fd, void *data, size_t size, int64_t position) {
#if defined(__linux__) && defined(SYS_preadv2)
    struct iovec to = {data, size};
    ssize_t got = syscall(SYS_preadv2, fd, &to, 1, (unsigned long)position, (unsigned long)((uint64_t)position >> 32),
                          8 /* RWF_NOWAIT */);
    return got >= 0 || errno == EAGAIN ? got : os_pread(fd, data, size, position);
#else
    (void)fd, (void)data, (void)size, (void)position;
    errno = EAGAIN;
    return -1;
#endif
}
static ssize_t os_pwrite(int fd, const void *data, size_t size, int64_t position) {
    /* Two steps: trapped at the second, half of the bytes have been written; an error then hits the other half. */
    if (klamm_step(STEP_WRITE)) return -1;
    if (__builtin_expect(klamm_trap->countdown == 1 && (klamm_trap->kinds & STEP_WRITE) && size > 1, 0)) size /= 2;
    ssize_t written = pwrite(fd, data, size, position);
    if (klamm_step(STEP_WRITE)) klamm_trap->countdown = 1;
    return written;
}
static int os_ftruncate(int fd, int64_t size) { return klamm_step(STEP_TRUNCATE) ? -1 : ftruncate(fd, size); }
/* Blocks ahead of what is written, which read as zeros: where the file system keeps them apart from data (log/_ahead.pxi). */
#if defined(__linux__)
static int os_takes_blocks_ahead(int fd) {
    struct statfs status;
    if (fstatfs(fd, &status)) return 0;
    return status.f_type == 0xEF53 || status.f_type == 0x58465342 || status.f_type == 0x01021994;   /* ext4, xfs, tmpfs */
}
static int os_allocate(int fd, int64_t position, int64_t size) {
    return klamm_step(STEP_TRUNCATE) ? -1 : fallocate(fd, 0, position, size);
}
#else
static int os_takes_blocks_ahead(int fd) { return 0; }
static int os_allocate(int fd, int64_t position, int64_t size) { return -1; }
#endif
static int os_fsync(int fd) { return klamm_step(STEP_SYNC) ? -1 : fsync(fd); }
static int os_fdatasync(int fd) {
#if defined(__APPLE__)
    return klamm_step(STEP_SYNC) ? -1 : fcntl(fd, F_FULLFSYNC);
#else
    return klamm_step(STEP_SYNC) ? -1 : fdatasync(fd);
#endif
}
#if !defined(_WIN32)
static int os_rename(const char *from, const char *to) {
    int from_base = os_base(&from), to_base = os_base(&to);
    return klamm_step(STEP_RENAME) ? -1 : renameat(from_base, from, to_base, to);
}
static int os_unlink(const char *path) {
    int base = os_base(&path);
    return klamm_step(STEP_UNLINK) ? -1 : unlinkat(base, path, 0);
}
static int os_mkdir(const char *path) {
    struct stat status;
    mode_t mode = 0700 | os_shared_bits(path);
    int base = os_base(&path);
    if (klamm_step(STEP_MKDIR) || mkdirat(base, path, mode)) return -1;
    if (!fstatat(base, path, &status, 0) && (status.st_mode & 0777) != mode)
        fchmodat(base, path, mode | (status.st_mode & S_ISGID), 0);
    return 0;
}
#else
static int os_rename(const char *from, const char *to) { return klamm_step(STEP_RENAME) ? -1 : rename(from, to); }
static int os_unlink(const char *path) { return klamm_step(STEP_UNLINK) ? -1 : unlink(path); }
static int os_mkdir(const char *path) { return klamm_step(STEP_MKDIR) ? -1 : mkdir(path, 0755); }
#endif

/* Directories: the names in one, and making them durable. 0 or -errno. On Windows see win32.h. */
#if !defined(_WIN32)
typedef struct { DIR *directory; } KlammListing;
static int os_list(KlammListing *listing, const char *path) {
    return (listing->directory = opendir(path)) ? 0 : -errno;
}
static int os_list_next(KlammListing *listing, char *name, size_t room) { /* 1, or 0 at the end; longer names are skipped */
    for (struct dirent *entry; (entry = readdir(listing->directory));) {
        size_t size = strlen(entry->d_name);
        if (size < room) { memcpy(name, entry->d_name, size + 1); return 1; }
    }
    return 0;
}
static void os_list_end(KlammListing *listing) { closedir(listing->directory); }
static int os_sync_directory(const char *path) {
    int fd = os_open(path, O_RDONLY | O_DIRECTORY), error = 0;
    if (fd < 0) return -errno;
    while (os_fsync(fd) && (error = -errno) == -EINTR) error = 0;
    close(fd);
    return error;
}
#endif

/* Byte-range locks: open-file-description locks, which a stray close does not drop. Where there are none (not Linux),
 * one process at a time holds the whole store (locks.py), and bytes need no locking. */
#if defined(__linux__) && defined(F_OFD_SETLK)
enum { KLAMM_BYTE_LOCKS = 1 };
static int os_lock(int fd, int64_t byte, int type, int wait) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return klamm_step(STEP_LOCK) ? -1 : fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
}
/* Some lock of another descriptor in the range, which then becomes its; 0 if there is none, 1 if there is, -1: errno. */
static int os_find_lock(int fd, int64_t *start, int64_t *length) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = *start, .l_len = *length};
    if (fcntl(fd, F_OFD_GETLK, &lock)) return -1;
    *start = lock.l_start;
    *length = lock.l_len;
    return lock.l_type != F_UNLCK;
}
#else
enum { KLAMM_BYTE_LOCKS = 0 };
static int os_lock(int fd, int64_t byte, int type, int wait) { return klamm_step(STEP_LOCK) ? -1 : 0; }
static int os_find_lock(int fd, int64_t *start, int64_t *length) { return 0; }
#endif
static int os_lock_whole(int fd) { return klamm_step(STEP_LOCK) ? -1 : flock(fd, LOCK_EX | LOCK_NB); }

/* What is not the same on Windows: see win32.h. */
#if !defined(_WIN32)
typedef struct stat KlammStat;
static uint64_t os_inode_of(const char *path) {     /* 0: there is no such file */
    KlammStat found;
    return os_stat(path, &found) ? 0 : (uint64_t)found.st_ino;
}
/* Whether another store than the one whose `heads` is that file is at the path, or none; if it cannot be looked at: 0.
 * Where only the file is missing it is the same store: its directory (`root`, a descriptor or -1) has the rest. */
static int os_is_replaced(const char *directory, int root, uint64_t device, uint64_t inode) {
    char path[4096];
    KlammStat found, held;
    if (snprintf(path, sizeof(path), "%s/heads", directory) >= (int)sizeof(path)) return 0;
    if (!stat(path, &found)) return (uint64_t)found.st_dev != device || (uint64_t)found.st_ino != inode;
    if (errno != ENOENT && errno != ENOTDIR) return 0;
    if (stat(directory, &found) || (root >= 0 && fstat(root, &held))) return 1;
    if (root >= 0 && (found.st_dev != held.st_dev || found.st_ino != held.st_ino)) return 1;
    snprintf(path, sizeof(path), "%s/topics", directory);
    return stat(path, &found) != 0;
}

/* A mapped file: NULL, or `room` bytes of address space. What the file gets later is there, too; where a mapping ends
 * with its file, os_map_more is told. */
enum { KLAMM_MAPS_GROW = 1 };
static void *os_map(int fd, size_t room, int writable, int private) {
    int protection = writable || private ? PROT_READ | PROT_WRITE : PROT_READ;
    void *map = mmap(NULL, room, protection, private ? MAP_PRIVATE : MAP_SHARED, fd, 0);
    return map == MAP_FAILED ? NULL : map;
}
static inline int os_map_more(void *map, int fd, int64_t from, int64_t size) { return 0; }
static void os_unmap(void *map, size_t room) { munmap(map, room); }

/* Threads of one process: an in-process mutex, taken before the byte. -EINTR now and then, so that Ctrl-C works. */
typedef pthread_mutex_t KlammMutex;
#define klamm_mutex_init pthread_mutex_init
#define klamm_mutex_unlock pthread_mutex_unlock
static int klamm_mutex_lock(KlammMutex *mutex, int wait) {
    if (pthread_mutex_trylock(mutex) == 0) return 0;
    if (!wait) return -EAGAIN;
#if defined(__APPLE__)
    struct timespec interval = {0, 1000000};
    nanosleep(&interval, NULL);
    return pthread_mutex_trylock(mutex) == 0 ? 0 : -EINTR;
#else
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50000000;
    if (until.tv_nsec >= 1000000000) { until.tv_nsec -= 1000000000; until.tv_sec++; }
    return pthread_mutex_timedlock(mutex, &until) == 0 ? 0 : -EINTR;
#endif
}

/* Clocks. */
static inline int64_t klamm_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}
static inline int64_t klamm_monotonic_ns(void) { return klamm_clock_ns(CLOCK_MONOTONIC); }
#if defined(CLOCK_MONOTONIC_COARSE)
static inline int64_t klamm_coarse_ns(void) { return klamm_clock_ns(CLOCK_MONOTONIC_COARSE); }
#else
static inline int64_t klamm_coarse_ns(void) { return klamm_monotonic_ns(); }
#endif
/* The lower half of a holder's word (see KlammLockNote): this process. 0 where there is no pid to tell. */
static uint32_t klamm_identity(void) {
    static uint64_t known;      /* the pid above the identity: it is asked for once a process, and again after a fork */
    uint64_t pid = (uint64_t)getpid(), found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (found >> 32 != pid) {
        struct stat namespace;
        uint32_t hash = stat("/proc/self/ns/pid", &namespace) ? 0 : (uint32_t)namespace.st_ino & 1023;
        found = pid << 32 | hash << 22 | (pid & 0x3fffff);
        __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    }
    return (uint32_t)found;
}
static inline int64_t klamm_wall_ms(void) { return klamm_clock_ns(CLOCK_REALTIME) / 1000000; }
static inline int64_t klamm_boot_ms(void) {
#if defined(CLOCK_BOOTTIME)
    return klamm_clock_ns(CLOCK_BOOTTIME) / 1000000;
#else
    return klamm_clock_ns(CLOCK_MONOTONIC) / 1000000;
#endif
}
#endif

#if defined(__linux__)
#include <sys/prctl.h>
static void os_name_thread(const char *name) { prctl(PR_SET_NAME, name, 0, 0, 0); }
#else
static void os_name_thread(const char *name) { (void)name; }
#endif

/* Sleeping on a word of a mapped file. */
#if defined(__linux__)
static void os_futex_wake(uint32_t *word, uint32_t bits) {
    klamm_step(STEP_WAKE);
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET, INT32_MAX, NULL, NULL, bits);
}
static void os_futex_wake_one(uint32_t *word) {
    klamm_step(STEP_WAKE);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}
static int os_futex_wait(uint32_t *word, uint32_t value, uint32_t bits, int64_t until_ns) {    /* 0, or why it ended: -errno */
    struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
    return syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, &until, NULL, bits) ? -errno : 0;
}
#elif defined(_WIN32)
static void os_futex_wake(uint32_t *word, uint32_t bits) { klamm_step(STEP_WAKE), win_wake(); }
static void os_futex_wake_one(uint32_t *word) { klamm_step(STEP_WAKE), win_wake(); }
static int os_futex_wait(uint32_t *word, uint32_t value, uint32_t bits, int64_t until_ns) {
    win_wait(word, value, until_ns);
    return 0;
}
#else
static void os_futex_wake(uint32_t *word, uint32_t bits) { klamm_step(STEP_WAKE); }
static void os_futex_wake_one(uint32_t *word) { klamm_step(STEP_WAKE); }
static int os_futex_wait(uint32_t *word, uint32_t value, uint32_t bits, int64_t until_ns) {
    struct timespec interval = {0, 1000000};
    while (klamm_load(word) == value && klamm_monotonic_ns() < until_ns)
        if (nanosleep(&interval, NULL)) return -errno;
    return 0;
}
#endif

/* Beside each lock byte of the file `lock`, in `heads`: which process took the byte last, and a word that processes
 * sleep on which wait for it. Neither decides anything: the kernel's lock does. (An append lock has a holder, too, but
 * is not a byte: log/owner.h.)
 *
 *   holder     bits 0-21 pid, 22-31 a hash of its pid namespace, 32-63 when: monotonic time in tenths of a second
 *   waiting    some process may sleep on `released`
 *
 * A process that slept and has the byte now leaves `waiting` set, because others may sleep as well; its own unlock then
 * wakes the next. A killed holder wakes no waiter, so each sleeps for a moment at a time. */
typedef struct { uint64_t holder; uint32_t released, waiting; } KlammLockNote;
enum { KLAMM_PID_BITS = 22, KLAMM_NAMESPACE_BITS = 10 };

static inline void klamm_note_holder(uint64_t *holder, uint32_t identity) {
    klamm_step(STEP_STORE);
    __atomic_store_n(holder, (uint64_t)(uint32_t)(klamm_coarse_ns() / 100000000) << 32 | identity, __ATOMIC_RELAXED);
}
/* Try a byte that was taken a moment ago; sleep once if it still is. 0, -EAGAIN: look again, or another -errno. */
static int os_lock_or_sleep(int fd, int64_t byte, KlammLockNote *note, int64_t interval_ns) {
    for (int slept = 0;; slept = 1) {
        uint32_t released = klamm_load(&note->released);
        klamm_step(STEP_STORE), __atomic_store_n(&note->waiting, 1, __ATOMIC_SEQ_CST);
        if (os_lock(fd, byte, F_WRLCK, 0) == 0) return 0;
        if (errno != EAGAIN && errno != EACCES) return -errno;
        if (slept) return -EAGAIN;
        os_futex_wait(&note->released, released, 0xffffffffu, klamm_monotonic_ns() + interval_ns);
    }
}
/* No fence before `waiting` is read: a waiter stores it before it tries the byte, and the kernel's lock on the file's
 * list of locks puts that try either before our unlock, and so before this load, or behind it, and then it succeeds. */
static inline int os_unlock(int fd, int64_t byte, KlammLockNote *note) {
    int result = os_lock(fd, byte, F_UNLCK, 0);
    if (__builtin_expect(klamm_load(&note->waiting), 0)) {
        klamm_store(&note->waiting, 0);
        klamm_fetch_add(&note->released, 1);
        os_futex_wake_one(&note->released);
    }
    return result;
}

/* A process that takes a byte many times in a row lets others know of each release, and wakes one at the end of its row.
 *
 * `os_unlock_in_row` is such a release. The first of those that wait calls `os_lock_after_row`: it sleeps until the row is
 * over. As long as releases are counted it goes on sleeping, until `end_ns` at most; if there was none for `interval_ns`, the
 * holder may not come again, or may be dead, and the byte is tried. 0, -EAGAIN: look again, or another -errno. */
static inline int os_unlock_in_row(int fd, int64_t byte, KlammLockNote *note) {
    int result = os_lock(fd, byte, F_UNLCK, 0);
    if (__builtin_expect(klamm_load(&note->waiting), 0)) klamm_fetch_add(&note->released, 1);
    return result;
}
static int os_lock_after_row(int fd, int64_t byte, KlammLockNote *note, int64_t interval_ns, int64_t end_ns) {
    for (int error = -EAGAIN; error == -EAGAIN || error == -ETIMEDOUT;) {
        uint32_t released = klamm_load(&note->released);
        klamm_step(STEP_STORE), __atomic_store_n(&note->waiting, 1, __ATOMIC_SEQ_CST);
        error = os_futex_wait(&note->released, released, 0xffffffffu, klamm_monotonic_ns() + interval_ns);
        if (klamm_load(&note->released) == released || klamm_monotonic_ns() >= end_ns) break;
    }
    if (os_lock(fd, byte, F_WRLCK, 0) == 0) return 0;
    return errno == EACCES ? -EAGAIN : -errno;
}

/* The bell: who waits for a topic sets the topic's bit in `mask` and sleeps on `word`; who appends looks at the mask.
 *
 *   waiter    w = word; mask |= bit; look at the log again; sleep while word == w
 *   writer    commit; full fence; mask & bit? mask &= ~bit; word += 1; wake
 *
 * Either the writer sees the bit, or the waiter sees the commit. A mask, not counts: a killed waiter leaves no debt.
 * A writer killed between its commit and the wake leaves waiters to their time limit (500 ms at most). */
typedef struct { uint32_t word, mask; } KlammBell;

static inline void klamm_ring(KlammBell *bell, uint32_t bit) {
    klamm_fence_full();
    if (__builtin_expect(klamm_load(&bell->mask) & bit, 0)) {
        klamm_fetch_and(&bell->mask, ~bit);     /* before the word changes: who sets the bit later has read the new word */
        klamm_fetch_add(&bell->word, 1);
        os_futex_wake(&bell->word, bit);
    }
}
static inline uint32_t klamm_listen(KlammBell *bell, uint32_t bits) {
    uint32_t word = klamm_load(&bell->word);
    klamm_fetch_or(&bell->mask, bits);
    return word;
}
#endif
