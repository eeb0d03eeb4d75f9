/* A recorder of everything a process does to the files below one directory, for LD_PRELOAD in tests.
 *
 *   POWERCUT_ROOT     the directory, as realpath gives it
 *   POWERCUT_TRACE    the file that gets the records, one after the other (the format is told in powercut.py)
 *   POWERCUT_ALL      if set, the processes that it starts are recorded, too, into the same file: a lock on it makes
 *                     them take turns, and a file is known by its path, since another process may have made it
 *
 * Calls are made one at a time, and recorded in the order in which they took effect. Stores into mapped files pass us by;
 * so whenever a call is recorded, files named `heads` and `producers` are compared with what they were before, and
 * sectors that changed are recorded first. A call that changes files and is not understood is recorded as such, and the
 * replay refuses it: better than a model of the disk that misses something.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SECTOR = 512, MAX_INODES = 1 << 16, MAX_WATCHED = 64, WATCHED_BYTES = 1 << 20 };

typedef struct { uint8_t kind, unused[3]; uint32_t first, second, data; uint64_t inode; int64_t position; } Header;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static int trace = -1, all;
static char trace_path[PATH_MAX];
static dev_t device;
static uint64_t inodes[MAX_INODES];     /* of files and directories below the root; 0: a free place */
static int inode_count;
static struct { uint64_t inode; int fd; int64_t size; unsigned char *shadow; } watched[MAX_WATCHED];
static int watched_count;

static void die(const char *why) { fprintf(stderr, "powercut: %s\n", why); _exit(99); }

static void put(const void *data, size_t size) {
    while (size) {
        ssize_t n = syscall(SYS_write, trace, data, size);
        if (n <= 0) die("cannot write the trace");
        data = (const char *)data + n;
        size -= n;
    }
}
static void record(char kind, uint64_t inode, int64_t position, const char *first, const char *second, const void *data, size_t size) {
    Header header = {.kind = kind, .first = first ? strlen(first) : 0, .second = second ? strlen(second) : 0, .data = size,
                     .inode = inode, .position = position};
    put(&header, sizeof header);
    if (first) put(first, header.first);
    if (second) put(second, header.second);
    if (size) put(data, size);
}

/* Inodes below the root. */
static int known(uint64_t inode) {
    for (int i = inode_count - 1; i >= 0; i--) if (inodes[i] == inode) return 1;
    return 0;
}
static void learn(uint64_t inode) {
    if (known(inode)) return;
    if (inode_count == MAX_INODES) die("too many files");
    inodes[inode_count++] = inode;
}
static void forget(uint64_t inode) {
    for (int i = 0; i < inode_count; i++) if (inodes[i] == inode) inodes[i] = inodes[--inode_count];
}
static int is_below(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || !path[root_length]);
}
static uint64_t ours(int fd) {
    struct stat status;
    if (fstat(fd, &status) || status.st_dev != device) return 0;
    return (all ? is_below(fd) : known(status.st_ino)) ? status.st_ino : 0;
}
static int visit(const char *path, const struct stat *status, int type, struct FTW *unused) {
    (void)path, (void)type, (void)unused;
    learn(status->st_ino);
    return 0;
}

/* The path below the root, or NULL. */
static const char *below(int at, const char *path, char *room) {
    int held, length = 0;
    if (trace < 0 || !path) return NULL;
    if (sscanf(path, "/proc/self/fd/%d/%n", &held, &length) == 1 && length) at = held, path += length;
    if (path[0] == '/') snprintf(room, PATH_MAX, "%s", path);
    else {
        char link[64], base[PATH_MAX];
        snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
        ssize_t n = readlink(link, base, sizeof base - 1);
        if (n < 0) return NULL;
        base[n] = 0;
        if (snprintf(room, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return NULL;
    }
    size_t end = strlen(room);
    while (end > 1 && room[end - 1] == '/') room[--end] = 0;
    return strncmp(room, root, root_length) == 0 && room[root_length] == '/' ? room + root_length + 1 : NULL;
}

/* Mapped files. */
static void watch(uint64_t inode, const char *absolute) {
    for (int i = 0; i < watched_count; i++) if (watched[i].inode == inode) return;
    if (watched_count == MAX_WATCHED) die("too many mapped files");
    int fd = syscall(SYS_openat, AT_FDCWD, absolute, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) die("cannot watch a mapped file");
    unsigned char *shadow = calloc(2, WATCHED_BYTES);
    int64_t size = syscall(SYS_pread64, fd, shadow, WATCHED_BYTES, 0);
    if (size < 0 || size == WATCHED_BYTES) die("a mapped file is too large to watch");
    watched[watched_count].inode = inode;
    watched[watched_count].fd = fd;
    watched[watched_count].size = size;
    watched[watched_count++].shadow = shadow;
}
static void look_at_mapped(void) {
    for (int i = 0; i < watched_count; i++) {
        unsigned char *old = watched[i].shadow, *new = old + WATCHED_BYTES;
        int64_t size = syscall(SYS_pread64, watched[i].fd, new, WATCHED_BYTES, 0);
        if (size < 0 || size == WATCHED_BYTES) die("a mapped file is too large to watch");
        for (int64_t at = 0; at < size; at += SECTOR) {
            size_t n = size - at < SECTOR ? size - at : SECTOR;
            if (at >= watched[i].size || memcmp(old + at, new + at, n)) record('H', watched[i].inode, at, NULL, NULL, new + at, n);
        }
        memcpy(old, new, size);
        watched[i].size = size;
    }
}

static void take_turn(int operation) {
    while (all && trace >= 0 && flock(trace, operation)) if (errno != EINTR) die("cannot lock the trace");
}
static void begin(void) { pthread_mutex_lock(&mutex); take_turn(LOCK_EX); if (trace >= 0) look_at_mapped(); }
static void end(void) { int kept = errno; take_turn(LOCK_UN); pthread_mutex_unlock(&mutex); errno = kept; }

static void open_trace(void) {
    trace = syscall(SYS_openat, AT_FDCWD, trace_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (trace < 0) die("cannot open POWERCUT_TRACE");
}
static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void after_fork(void) { pthread_mutex_unlock(&mutex); }
static void in_child(void) {    /* a lock of its own */
    pthread_mutex_init(&mutex, NULL);
    if (trace >= 0 && all) { syscall(SYS_close, trace); open_trace(); }
}

__attribute__((constructor)) static void start(void) {
    const char *directory = getenv("POWERCUT_ROOT"), *path = getenv("POWERCUT_TRACE");
    struct stat status;
    if (!directory || !path) return;
    root_length = snprintf(root, sizeof root, "%s", directory);
    if (stat(root, &status)) die("there is no POWERCUT_ROOT");
    device = status.st_dev;
    nftw(root, visit, 16, FTW_PHYS);
    all = getenv("POWERCUT_ALL") != NULL;
    snprintf(trace_path, sizeof trace_path, "%s", path);
    open_trace();
    if (all) pthread_atfork(before_fork, after_fork, in_child);
    else unsetenv("LD_PRELOAD");     /* not for the children */
}

/* The test's own remark on what has happened so far. */
void powercut_note(const char *text) {
    begin();
    if (trace >= 0) record('N', 0, 0, NULL, NULL, text, strlen(text));
    end();
}

static int open_at(int at, const char *path, int flags, mode_t mode) {
    char room[PATH_MAX];
    const char *name = below(at, path, room);
    if (!name) return syscall(SYS_openat, at, path, flags, mode);
    begin();
    struct stat before, after;
    int existed = stat(room, &before) == 0;
    int fd = syscall(SYS_openat, at, path, flags, mode);
    if (fd >= 0 && fstat(fd, &after) == 0) {
        const char *last = strrchr(room, '/') + 1;
        if (!existed) { learn(after.st_ino); record('C', after.st_ino, 0, name, NULL, NULL, 0); }
        else if (flags & O_TRUNC && S_ISREG(after.st_mode)) record('T', after.st_ino, 0, NULL, NULL, NULL, 0);
        if (!strcmp(last, "heads") || !strcmp(last, "producers")) watch(after.st_ino, room);
    }
    end();
    return fd;
}
static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; }
#define OPENS(name) int name(const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t mode = mode_of(flags, rest); va_end(rest); return open_at(AT_FDCWD, path, flags, mode); }
#define OPENS_AT(name) int name(int at, const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t mode = mode_of(flags, rest); va_end(rest); return open_at(at, path, flags, mode); }
OPENS(open) OPENS(open64) OPENS_AT(openat) OPENS_AT(openat64)

static ssize_t write_at(int fd, const void *data, size_t size, int64_t position) {
    begin();
    uint64_t inode = trace >= 0 ? ours(fd) : 0;
    ssize_t n = position >= 0 ? syscall(SYS_pwrite64, fd, data, size, position) : syscall(SYS_write, fd, data, size);
    if (inode && n > 0) record('W', inode, position >= 0 ? position : lseek(fd, 0, SEEK_CUR) - n, NULL, NULL, data, n);
    end();
    return n;
}
ssize_t write(int fd, const void *data, size_t size) {
    return trace >= 0 && ours(fd) ? write_at(fd, data, size, -1) : syscall(SYS_write, fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t position) { return write_at(fd, data, size, position); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t position) { return write_at(fd, data, size, position); }

static int truncate_fd(int fd, int64_t size) {
    begin();
    uint64_t inode = trace >= 0 ? ours(fd) : 0;
    int result = syscall(SYS_ftruncate, fd, size);
    if (inode && !result) record('T', inode, size, NULL, NULL, NULL, 0);
    end();
    return result;
}
int ftruncate(int fd, off_t size) { return truncate_fd(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncate_fd(fd, size); }

/* Returns an error number, as POSIX has it. To the model it is a file that has become longer. */
static int allocate_fd(int fd, int64_t at, int64_t size) {
    struct stat status;
    begin();
    uint64_t inode = trace >= 0 ? ours(fd) : 0;
    int result = syscall(SYS_fallocate, fd, 0, at, size) ? errno : 0;
    if (inode && !result && fstat(fd, &status) == 0) record('T', inode, status.st_size, NULL, NULL, NULL, 0);
    end();
    return result;
}
static int fallocate_fd(int fd, int mode, int64_t at, int64_t size) {
    if (mode) { errno = EOPNOTSUPP; return -1; }
    int error = allocate_fd(fd, at, size);
    if (error) errno = error;
    return error ? -1 : 0;
}
int fallocate(int fd, int mode, off_t at, off_t size) { return fallocate_fd(fd, mode, at, size); }
int fallocate64(int fd, int mode, off64_t at, off64_t size) { return fallocate_fd(fd, mode, at, size); }
int posix_fallocate(int fd, off_t at, off_t size) { return allocate_fd(fd, at, size); }
int posix_fallocate64(int fd, off64_t at, off64_t size) { return allocate_fd(fd, at, size); }

static int sync_fd(long call, int fd) {
    begin();
    uint64_t inode = trace >= 0 ? ours(fd) : 0;
    int result = syscall(call, fd);
    if (inode && !result) record('S', inode, 0, NULL, NULL, NULL, 0);
    end();
    return result;
}
int fsync(int fd) { return sync_fd(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_fd(SYS_fdatasync, fd); }

int renameat(int from_at, const char *from, int to_at, const char *to) {
    char from_room[PATH_MAX], to_room[PATH_MAX];
    const char *source = below(from_at, from, from_room), *target = below(to_at, to, to_room);
    begin();
    int result = syscall(SYS_renameat, from_at, from, to_at, to);
    if (!result && (source || target)) {
        if (source && target) record('R', 0, 0, source, target, NULL, 0);
        else record('!', 0, 0, NULL, NULL, "a rename across the root", 24);
    }
    end();
    return result;
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int at, const char *path, int flags) {
    char room[PATH_MAX];
    const char *name = below(at, path, room);
    struct stat status;
    begin();
    int found = name && lstat(room, &status) == 0;
    int result = syscall(SYS_unlinkat, at, path, flags);
    if (found && !result) {
        record('U', 0, 0, name, NULL, NULL, 0);
        if (status.st_nlink <= 1 || flags & AT_REMOVEDIR) forget(status.st_ino);    /* the number may come back elsewhere */
    }
    end();
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int at, const char *path, mode_t mode) {
    char room[PATH_MAX];
    const char *name = below(at, path, room);
    struct stat status;
    begin();
    int result = syscall(SYS_mkdirat, at, path, mode);
    if (!result && name && stat(room, &status) == 0) {
        learn(status.st_ino);
        record('M', status.st_ino, 0, name, NULL, NULL, 0);
    }
    end();
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Calls that the model does not know: refused by the replay if they touch our files. */
#define STRANGER(result_type, name, parameters, arguments, fd) \
    result_type name parameters { \
        static result_type (*real) parameters; \
        if (!real) real = (result_type (*) parameters)dlsym(RTLD_NEXT, #name); \
        begin(); \
        if (trace >= 0 && ours(fd)) record('!', 0, 0, NULL, NULL, #name, sizeof #name - 1); \
        end(); \
        return real arguments; \
    }
STRANGER(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n), fd)
STRANGER(ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at), fd)
STRANGER(ssize_t, pwritev2, (int fd, const struct iovec *v, int n, off_t at, int f), (fd, v, n, at, f), fd)
STRANGER(ssize_t, sendfile, (int to, int from, off_t *at, size_t n), (to, from, at, n), to)
STRANGER(ssize_t, sendfile64, (int to, int from, off64_t *at, size_t n), (to, from, at, n), to)
STRANGER(ssize_t, copy_file_range, (int from, off64_t *a, int to, off64_t *b, size_t n, unsigned f), (from, a, to, b, n, f), to)
STRANGER(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), a)
