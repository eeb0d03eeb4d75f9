/* What os.h needs of POSIX, on Windows.
 *
 * One process at a time has a store open there (locks.py). So no other process looks at the mapped files, and as heads are
 * recovered at every open, they are not trusted later either: a mapping is memory, filled from the file. Only threads
 * of this process wait for one another.
 *
 * Descriptors are the C runtime's, and Python closes some of ours: both must use the same runtime, the UCRT.
 */
#ifndef KLAMM_WIN32_H
#define KLAMM_WIN32_H

#if !defined(__GNUC__) || !defined(_UCRT)
#error "on Windows Klamm needs GCC or Clang with the UCRT: MSYS2's UCRT64, llvm-mingw"
#endif
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <wchar.h>

#ifndef EUSERS
#define EUSERS 10068 /* as Python's errno has it */
#endif
enum { F_RDLCK, F_WRLCK, F_UNLCK, LOCK_EX = 1, LOCK_NB = 2, O_CLOEXEC = 0 /* no handle of ours is inheritable */ };

/* -1, with the errno for what Windows says. */
#define win_failed() (win_set_errno(), -1)
static void win_set_errno(void) {
    switch (GetLastError()) {
    case ERROR_FILE_NOT_FOUND: case ERROR_PATH_NOT_FOUND: case ERROR_INVALID_NAME: errno = ENOENT; break;
    case ERROR_FILE_EXISTS: case ERROR_ALREADY_EXISTS: errno = EEXIST; break;
    case ERROR_ACCESS_DENIED: case ERROR_SHARING_VIOLATION: case ERROR_LOCK_VIOLATION: case ERROR_WRITE_PROTECT:
    case ERROR_USER_MAPPED_FILE: case ERROR_DELETE_PENDING: errno = EACCES; break;
    case ERROR_DISK_FULL: case ERROR_HANDLE_DISK_FULL: case 1295: /* over quota */ errno = ENOSPC; break;
    case ERROR_TOO_MANY_OPEN_FILES: errno = EMFILE; break;
    case ERROR_INVALID_HANDLE: errno = EBADF; break;
    case ERROR_NOT_ENOUGH_MEMORY: case ERROR_OUTOFMEMORY: case ERROR_COMMITMENT_LIMIT: errno = ENOMEM; break;
    case ERROR_DIRECTORY: errno = ENOTDIR; break;
    case ERROR_FILENAME_EXCED_RANGE: errno = ENAMETOOLONG; break;
    default: errno = EIO;
    }
}
static HANDLE win_handle(int fd) { return fd < 0 ? INVALID_HANDLE_VALUE : (HANDLE)_get_osfhandle(fd); }

/* Paths come from os.fsencode, as UTF-8. */
enum { WIN_PATH = 4096 + 64 };
static int win_path(wchar_t *wide, const char *path) {
    if (MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, WIN_PATH)) return 0;
    errno = GetLastError() == ERROR_INSUFFICIENT_BUFFER ? ENAMETOOLONG : EILSEQ;
    return -1;
}

/* Files. FILE_SHARE_DELETE: a file in use can be renamed and removed, as elsewhere. */
static int win_open(const char *path, int flags) {
    wchar_t wide[WIN_PATH];
    if (win_path(wide, path)) return -1;
    DWORD access = GENERIC_READ | (flags & (O_RDWR | O_WRONLY) ? GENERIC_WRITE : 0);
    DWORD how = flags & O_CREAT ? (flags & O_EXCL ? CREATE_NEW : OPEN_ALWAYS) : OPEN_EXISTING;
    HANDLE file = CreateFileW(wide, access, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, how,
                              FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) return win_failed();
    int fd = flags & O_TRUNC && !SetEndOfFile(file) ? win_failed() : _open_osfhandle((intptr_t)file, O_BINARY);
    if (fd < 0) CloseHandle(file);
    return fd;
}
static ssize_t pread(int fd, void *data, size_t size, int64_t position) {
    OVERLAPPED at = {.Offset = (DWORD)position, .OffsetHigh = (DWORD)(position >> 32)};
    DWORD done = 0;
    if (ReadFile(win_handle(fd), data, size < 1 << 30 ? (DWORD)size : 1 << 30, &done, &at)) return done;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : win_failed();
}
static ssize_t pwrite(int fd, const void *data, size_t size, int64_t position) {
    OVERLAPPED at = {.Offset = (DWORD)position, .OffsetHigh = (DWORD)(position >> 32)};
    DWORD done = 0;
    return WriteFile(win_handle(fd), data, size < 1 << 30 ? (DWORD)size : 1 << 30, &done, &at) ? done : win_failed();
}
static int win_ftruncate(int fd, int64_t size) {
    FILE_END_OF_FILE_INFO end = {.EndOfFile.QuadPart = size};
    return SetFileInformationByHandle(win_handle(fd), FileEndOfFileInfo, &end, sizeof(end)) ? 0 : win_failed();
}
static int fsync(int fd) { return FlushFileBuffers(win_handle(fd)) ? 0 : win_failed(); }
static int fdatasync(int fd) { return fsync(fd); }
typedef struct { uint64_t st_dev, st_ino; int64_t st_size; } KlammStat;
static int win_fstat(int fd, KlammStat *out) { /* the C runtime's has no st_ino; this is Python's */
    BY_HANDLE_FILE_INFORMATION found;
    if (!GetFileInformationByHandle(win_handle(fd), &found)) return win_failed();
    out->st_dev = found.dwVolumeSerialNumber;
    out->st_ino = (uint64_t)found.nFileIndexHigh << 32 | found.nFileIndexLow;
    out->st_size = (int64_t)((uint64_t)found.nFileSizeHigh << 32 | found.nFileSizeLow);
    return 0;
}
static uint64_t os_inode_of(const char *path) {     /* 0: there is no such file */
    KlammStat found;
    int fd = win_open(path, O_RDONLY), failed = fd < 0 || win_fstat(fd, &found);
    if (fd >= 0) _close(fd);
    return failed ? 0 : found.st_ino;
}
static int os_is_replaced(const char *directory, int root, uint64_t device, uint64_t inode) { /* see os.h */
    char path[4096];
    (void)root, (void)device;
    if (snprintf(path, sizeof(path), "%s/heads", directory) >= (int)sizeof(path)) return 0;
    uint64_t found = os_inode_of(path);
    return found && found != inode;
}
/* Written through, for there is no syncing of directories. A target that is open is replaced, too, where NTFS can do
 * that (Windows 10); elsewhere EACCES. */
static int win_rename(const char *from, const char *to) {
    wchar_t wide[WIN_PATH];
    struct { DWORD flags; HANDLE root; DWORD size; wchar_t name[WIN_PATH]; } target = {3 /* replace, POSIX */};
    if (win_path(wide, from) || win_path(target.name, to)) return -1;
    if (MoveFileExW(wide, target.name, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH)) return 0;
    if (win_failed() && errno != EACCES) return -1;
    HANDLE file = CreateFileW(wide, DELETE | SYNCHRONIZE, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                              OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_WRITE_THROUGH, NULL);
    if (file == INVALID_HANDLE_VALUE) return win_failed();
    target.size = (DWORD)(wcslen(target.name) * sizeof(wchar_t));
    FILE_INFO_BY_HANDLE_CLASS rename_ex = 22; /* FileRenameInfoEx, which older headers lack */
    BOOL done = SetFileInformationByHandle(file, rename_ex, &target, sizeof(target));
    CloseHandle(file);
    return done ? 0 : (errno = EACCES, -1);
}
static int win_unlink(const char *path) {
    wchar_t wide[WIN_PATH];
    return win_path(wide, path) ? -1 : DeleteFileW(wide) ? 0 : win_failed();
}
static int win_mkdir(const char *path) {
    wchar_t wide[WIN_PATH];
    return win_path(wide, path) ? -1 : CreateDirectoryW(wide, NULL) ? 0 : win_failed();
}
/* The names in a directory, as UTF-8. Names are durable with their files: there is no syncing of directories. */
typedef struct { HANDLE search; WIN32_FIND_DATAW found; int first; } KlammListing;
static int os_list(KlammListing *listing, const char *path) {
    char pattern[WIN_PATH];
    wchar_t wide[WIN_PATH];
    if (snprintf(pattern, sizeof(pattern), "%s*", path) >= (int)sizeof(pattern)) return -ENAMETOOLONG;
    if (win_path(wide, pattern)) return -errno;
    listing->search = FindFirstFileW(wide, &listing->found);
    listing->first = 1;
    return listing->search == INVALID_HANDLE_VALUE ? (win_set_errno(), -errno) : 0;
}
static int os_list_next(KlammListing *listing, char *name, size_t room) {
    for (;; listing->first = 0) {
        if (!listing->first && !FindNextFileW(listing->search, &listing->found)) return 0;
        if (WideCharToMultiByte(CP_UTF8, 0, listing->found.cFileName, -1, name, (int)room, NULL, NULL)) {
            listing->first = 0;
            return 1;
        }
    }
}
static void os_list_end(KlammListing *listing) { FindClose(listing->search); }
static int os_sync_directory(const char *path) { return (void)path, 0; }
static int flock(int fd, int how) { /* the first byte stands for all */
    OVERLAPPED at = {0};
    DWORD flags = (how & LOCK_EX ? LOCKFILE_EXCLUSIVE_LOCK : 0) | (how & LOCK_NB ? LOCKFILE_FAIL_IMMEDIATELY : 0);
    return LockFileEx(win_handle(fd), flags, 0, 1, 0, &at) ? 0 : win_failed();
}
#define open(path, flags, mode) win_open(path, flags)
#define ftruncate win_ftruncate
#define fstat win_fstat
#define rename win_rename
#define unlink win_unlink
#define mkdir(path, mode) win_mkdir(path)

/* A mapping: address space for `room` bytes, and memory for those the file has. */
enum { KLAMM_MAPS_GROW = 0 };
static int os_map_more(void *map, int fd, int64_t from, int64_t size) {
    uint8_t *to = (uint8_t *)map + from;
    if (size > 0 && !VirtualAlloc(to, (size_t)size, MEM_COMMIT, PAGE_READWRITE)) return win_failed();
    for (ssize_t got; size > 0; to += got, from += got, size -= got)
        if ((got = pread(fd, to, (size_t)size, from)) <= 0) return got ? -1 : (errno = EIO, -1);
    return 0;
}
static void os_unmap(void *map, size_t room) { (void)room, VirtualFree(map, 0, MEM_RELEASE); }
static void *os_map(int fd, size_t room, int writable, int private) {
    (void)writable, (void)private;
    KlammStat found;
    if (win_fstat(fd, &found)) return NULL;
    void *map = VirtualAlloc(NULL, room, MEM_RESERVE, PAGE_READWRITE);
    if (!map) return win_set_errno(), NULL;
    if (!os_map_more(map, fd, 0, found.st_size < (int64_t)room ? found.st_size : (int64_t)room)) return map;
    os_unmap(map, room);
    return NULL;
}

/* Clocks. */
static int64_t klamm_monotonic_ns(void) {
    LARGE_INTEGER now, second;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&second);
    return now.QuadPart / second.QuadPart * 1000000000 + now.QuadPart % second.QuadPart * 1000000000 / second.QuadPart;
}
static inline int64_t klamm_coarse_ns(void) { return klamm_monotonic_ns(); }
static uint32_t klamm_identity(void) { return 0; }    /* one process at a time: it needs no identity */
static int64_t klamm_wall_ms(void) {
    FILETIME now;
    GetSystemTimePreciseAsFileTime(&now);
    return (int64_t)((uint64_t)now.dwHighDateTime << 32 | now.dwLowDateTime) / 10000 - 11644473600000; /* since 1601 */
}
static int64_t klamm_boot_ms(void) { return (int64_t)GetTickCount64(); } /* time asleep included */

/* Waiting. All threads sleep here, and each looks at its own word when it wakes. Never long, so that Ctrl-C works. */
static SRWLOCK win_lobby = SRWLOCK_INIT;
static CONDITION_VARIABLE win_gong = CONDITION_VARIABLE_INIT;
static void win_wake(void) {
    AcquireSRWLockExclusive(&win_lobby); /* a thread that has seen the old word is asleep by now */
    ReleaseSRWLockExclusive(&win_lobby);
    WakeAllConditionVariable(&win_gong);
}
static void win_wait(const uint32_t *word, uint32_t value, int64_t until_ns) {
    int64_t left_ms = (until_ns - klamm_monotonic_ns() + 999999) / 1000000;
    AcquireSRWLockExclusive(&win_lobby);
    if (left_ms > 0 && __atomic_load_n(word, __ATOMIC_SEQ_CST) == value)
        SleepConditionVariableSRW(&win_gong, &win_lobby, left_ms < 50 ? (DWORD)left_ms : 50, 0);
    ReleaseSRWLockExclusive(&win_lobby);
}

typedef uint32_t KlammMutex; /* 1: held; 2: and another thread waits for it */
static int klamm_mutex_init(KlammMutex *mutex, void *unused) { return (void)unused, *mutex = 0; }
static int klamm_mutex_unlock(KlammMutex *mutex) {
    if (__atomic_exchange_n(mutex, 0, __ATOMIC_SEQ_CST) == 2) win_wake();
    return 0;
}
static int klamm_mutex_lock(KlammMutex *mutex, int wait) { /* -EINTR now and then, for Ctrl-C */
    uint32_t unlocked = 0;
    if (__atomic_compare_exchange_n(mutex, &unlocked, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 0;
    if (!wait) return -EAGAIN;
    if (__atomic_exchange_n(mutex, 2, __ATOMIC_SEQ_CST) == 0) return 0;
    win_wait(mutex, 2, klamm_monotonic_ns() + 50000000);
    return __atomic_exchange_n(mutex, 2, __ATOMIC_SEQ_CST) == 0 ? 0 : -EINTR;
}

/* A trap's signal: whichever it is, the process ends here and now. */
static int win_die(int signal) { return !TerminateProcess(GetCurrentProcess(), 128 + (UINT)signal); }
#define kill(process, signal) win_die(signal)
#endif
