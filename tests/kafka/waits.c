/* For LD_PRELOAD below `klamm serve`: calls that wait for a disk or a lock.

   Held:     while the file $HELD is there, syncs (reads of a page or more, if $HELD_CALLS is "read") of files whose path
             has $HELD_PATH in it wait, and say so by making the file $HELD_SEEN.
   Watched:  while the file $WATCHED is there, calls of the first thread, which runs the loop, that may wait are written
             to $WATCHED_SEEN, one name a line: syncs, locks that are waited for, futexes of the store, whatever is done
             with klamm.db, and in directories that have $WATCHED_PATH in their name: files that are opened to be read,
             lists of files, and reads that may wait (preadv2 with RWF_NOWAIT does not). */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

static int is_there(const char *variable) {
    const char *path = getenv(variable);
    return path && access(path, F_OK) == 0;
}

static void append(const char *variable, const char *line) {
    int fd = open(getenv(variable), O_CREAT | O_WRONLY | O_APPEND, 0600);
    if (write(fd, line, strlen(line)) < 0 || write(fd, "\n", 1) < 0) abort();
    close(fd);
}

static int path_has(int fd, const char *part) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strstr(path, part) != NULL;
}

static void hold(int fd, const char *kind) {
    const char *calls = getenv("HELD_CALLS");
    if (!is_there("HELD") || strcmp(calls ? calls : "sync", kind) || !path_has(fd, getenv("HELD_PATH"))) return;
    append("HELD_SEEN", kind);
    while (is_there("HELD")) usleep(1000);
}

static void watch(const char *name) {
    if (gettid() == getpid() && is_there("WATCHED")) append("WATCHED_SEEN", name);
}

static void watch_database(int fd, const char *name) {
    if (gettid() == getpid() && is_there("WATCHED") && path_has(fd, "klamm.db")) append("WATCHED_SEEN", name);
}

static int is_watched(const char *path) {
    const char *part = getenv("WATCHED_PATH");
    return gettid() == getpid() && part && strstr(path, part) && is_there("WATCHED");
}

static void watch_open(const char *path, int flags) {
    if ((flags & O_ACCMODE) == O_RDONLY && is_watched(path)) append("WATCHED_SEEN", "open");
}

static void watch_read(int fd) {
    const char *part = getenv("WATCHED_PATH");
    if (gettid() == getpid() && part && is_there("WATCHED") && path_has(fd, part)) append("WATCHED_SEEN", "read");
}

#define OPENING(name) \
    int name(const char *path, int flags, ...) { \
        va_list list; \
        va_start(list, flags); \
        mode_t mode = flags & O_CREAT ? (mode_t)va_arg(list, int) : 0; \
        va_end(list); \
        watch_open(path, flags); \
        return NEXT(name)(path, flags, mode); \
    }
OPENING(open)
OPENING(open64)

DIR *opendir(const char *path) {
    if (is_watched(path)) append("WATCHED_SEEN", "opendir");
    return NEXT(opendir)(path);
}

int fsync(int fd) { watch("fsync"), hold(fd, "sync"); return NEXT(fsync)(fd); }
int fdatasync(int fd) { watch("fdatasync"), hold(fd, "sync"); return NEXT(fdatasync)(fd); }
int flock(int fd, int how) {
    if (!(how & (LOCK_NB | LOCK_UN))) watch("flock");
    return NEXT(flock)(fd, how);
}

static void on_read(int fd, size_t size) {
    watch_database(fd, "read of klamm.db");
    watch_read(fd);
    if (size >= 4096) hold(fd, "read");
}
ssize_t pread(int fd, void *to, size_t size, off_t at) { on_read(fd, size); return NEXT(pread)(fd, to, size, at); }
ssize_t pread64(int fd, void *to, size_t size, off64_t at) { on_read(fd, size); return NEXT(pread64)(fd, to, size, at); }

static void on_lock(int fd, int what) {
    if (what == F_SETLKW || what == F_OFD_SETLKW) watch("a lock that is waited for");
    if (what == F_SETLK || what == F_OFD_SETLK) watch_database(fd, "lock of klamm.db");
}
int fcntl(int fd, int what, ...) {
    va_list list;
    va_start(list, what);
    void *argument = va_arg(list, void *);
    va_end(list);
    on_lock(fd, what);
    return NEXT(fcntl)(fd, what, argument);
}
int fcntl64(int fd, int what, ...) {
    va_list list;
    va_start(list, what);
    void *argument = va_arg(list, void *);
    va_end(list);
    on_lock(fd, what);
    return NEXT(fcntl64)(fd, what, argument);
}

long syscall(long number, ...) {
    long given[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) given[i] = va_arg(list, long);
    va_end(list);
    int command = (int)given[1] & FUTEX_CMD_MASK;
    if (number == SYS_futex && (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET)) watch("futex");
    return NEXT(syscall)(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
