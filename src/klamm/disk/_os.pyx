# cython: language_level=3, boundscheck=False, wraparound=False
"""System calls for Python code, through the same trapped steps as the native modules (see os.h)."""

import gc
import os as _std

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetObject, PyErr_WriteUnraisable
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from libc.errno cimport EAGAIN, EACCES, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from klamm.errors import readable

cdef extern from "os.h" nogil:
    ctypedef struct KlammTrap:
        int64_t countdown, taken
        uint32_t kinds
        int signal, error, repeat
    KlammTrap klamm_own_trap
    enum:
        STEP_LOCK, STEP_OPEN, STEP_WRITE, STEP_TRUNCATE, STEP_SYNC, STEP_RENAME, STEP_UNLINK, STEP_MKDIR
        STEP_STORE, STEP_WAKE, STEP_READ, STEP_ALL, KLAMM_BYTE_LOCKS
    int os_open(const char *path, int flags)
    ssize_t os_pread(int fd, void *data, size_t size, int64_t position)
    ssize_t os_pwrite(int fd, const void *data, size_t size, int64_t position)
    int os_ftruncate(int fd, int64_t size)
    int os_fsync(int fd)
    int os_fdatasync(int fd)
    int os_rename(const char *source, const char *to)
    int os_unlink(const char *path)
    int os_mkdir(const char *path)
    int os_lock(int fd, int64_t byte, int type, int wait)
    int os_find_lock(int fd, int64_t *start, int64_t *length)
    int os_lock_whole(int fd)
    uint64_t os_inode_of(const char *path)
    int F_RDLCK, F_WRLCK, F_UNLCK
    int64_t klamm_boot_ms()
    int64_t klamm_monotonic_ns()
    void os_name_thread(const char *name)
    int os_futex_wait(uint32_t *word, uint32_t value, uint32_t bits, int64_t until_ns)
    void os_futex_wake(uint32_t *word, uint32_t bits)
    void os_futex_wake_one(uint32_t *word)
    uint32_t klamm_fetch_add(uint32_t *word, uint32_t value)
    ctypedef struct KlammLockNote:
        uint64_t holder
        uint32_t released, waiting
    uint32_t klamm_identity()
    void klamm_note_holder(uint64_t *, uint32_t)
    int os_lock_or_sleep(int, int64_t, KlammLockNote *, int64_t)
    int os_unlock(int, int64_t, KlammLockNote *)
    int os_lock_after_row(int, int64_t, KlammLockNote *, int64_t, int64_t)
    int os_unlock_in_row(int, int64_t, KlammLockNote *)
    ctypedef struct KlammMutex:
        pass
    int klamm_mutex_init(KlammMutex *, void *)
    int klamm_mutex_unlock(KlammMutex *)
    int klamm_mutex_lock(KlammMutex *, int)

LOCK, OPEN, WRITE, TRUNCATE, SYNC = STEP_LOCK, STEP_OPEN, STEP_WRITE, STEP_TRUNCATE, STEP_SYNC
RENAME, UNLINK, MKDIR, STORE, WAKE, READ, ALL = STEP_RENAME, STEP_UNLINK, STEP_MKDIR, STEP_STORE, STEP_WAKE, STEP_READ, STEP_ALL
HAS_BYTE_LOCKS = bool(KLAMM_BYTE_LOCKS)


def trap(int64_t at_step, *, uint32_t kinds=STEP_ALL, int signal=0, int error=0, bint repeat=False):
    """Trap the n-th step of `kinds` from now: send this process `signal` there, or let the step fail with `error`.

    With `repeat` every later such step fails, too. 0 lifts the trap; neither signal nor error only counts.
    """
    klamm_own_trap.countdown = 0
    klamm_own_trap.taken = 0
    klamm_own_trap.kinds = kinds
    klamm_own_trap.signal = signal
    klamm_own_trap.error = error
    klamm_own_trap.repeat = repeat
    klamm_own_trap.countdown = at_step


def steps_taken():
    """Return the number of steps of the armed kinds since `trap` was called."""
    return klamm_own_trap.taken


def trap_address():
    """Return the address of the trap, for the other native modules."""
    return <uint64_t><uintptr_t>&klamm_own_trap


cdef object failed(path):
    return OSError(errno, _std.strerror(errno), readable(path) if isinstance(path, str) else path)


def open_file(path, int flags):
    """Open a file and return its descriptor, which is closed on exec."""
    cdef bytes name = _std.fsencode(path)
    cdef const char *c_name = name
    cdef int fd
    while True:
        with nogil:
            fd = os_open(c_name, flags)
        if fd >= 0:
            return fd
        if errno != EINTR:
            raise failed(path)
        PyErr_CheckSignals()


def pread(int fd, Py_ssize_t size, int64_t position):
    """Read up to `size` bytes from `position`; fewer only at the end of the file."""
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    cdef char *to = PyBytes_AS_STRING(data)
    cdef Py_ssize_t done = 0
    cdef ssize_t got
    while done < size:
        with nogil:
            got = os_pread(fd, to + done, size - done, position + done)
        if got > 0:
            done += got
        elif got == 0:
            return data[:done]
        elif errno != EINTR:
            raise failed(None)
        else:
            PyErr_CheckSignals()
    return data


def pwrite(int fd, const unsigned char[::1] data not None, int64_t position):
    """Write all of `data` at `position`."""
    cdef Py_ssize_t done = 0, size = data.shape[0]
    cdef ssize_t written
    while done < size:
        with nogil:
            written = os_pwrite(fd, &data[done], size - done, position + done)
        if written >= 0:
            done += written
        elif errno != EINTR:
            raise failed(None)
        else:
            PyErr_CheckSignals()


cdef int again(int result, path) except -1:
    """Return 0 if a call is done, 1 if a signal came first and it must be repeated. Raise OSError if it failed."""
    if result == 0:
        return 0
    if errno != EINTR:
        raise failed(path)
    PyErr_CheckSignals()
    return 1


def truncate(int fd, int64_t size):
    cdef int result = -1
    while True:
        with nogil:
            result = os_ftruncate(fd, size)
        if not again(result, None):
            return


def fsync(int fd):
    cdef int result = -1
    while True:
        with nogil:
            result = os_fsync(fd)
        if not again(result, None):
            return


def fdatasync(int fd):
    cdef int result = -1
    while True:
        with nogil:
            result = os_fdatasync(fd)
        if not again(result, None):
            return


def rename(source, to):
    cdef bytes from_name = _std.fsencode(source), to_name = _std.fsencode(to)
    while again(os_rename(from_name, to_name), source):
        pass


def unlink(path):
    cdef bytes name = _std.fsencode(path)
    while again(os_unlink(name), path):
        pass


def mkdir(path):
    cdef bytes name = _std.fsencode(path)
    while again(os_mkdir(name), path):
        pass


def lock_byte(int fd, int64_t byte, *, bint shared=False, bint wait=True):
    """Lock the byte for this open file description. Return False, only without `wait`, if another one holds it."""
    cdef int result, kind = F_RDLCK if shared else F_WRLCK
    while True:
        with nogil:
            result = os_lock(fd, byte, kind, wait)
        if result == 0:
            return True
        if errno in (EAGAIN, EACCES) and not wait:
            return False
        if errno != EINTR:
            raise failed(None)
        PyErr_CheckSignals()


def unlock_byte(int fd, int64_t byte):
    if os_lock(fd, byte, F_UNLCK, False):
        raise failed(None)


def find_lock(int fd, int64_t start, int64_t length):
    """Return some (start, length) in the range, clipped to it, that another open file description holds; or None."""
    cdef int64_t first = start, size = length
    cdef int found = os_find_lock(fd, &first, &size)
    if found < 0:
        raise failed(None)
    if not found:
        return None
    end = start + length if size == 0 else min(start + length, first + size)
    first = max(first, start)
    return first, end - first


def lock_whole(int fd):
    """Lock the whole file, without waiting. Return whether this descriptor holds it now."""
    while os_lock_whole(fd):
        if errno in (EAGAIN, EACCES):
            return False
        again(-1, None)
    return True


def inode_of(bytes path not None):
    """Return the inode of the file, 0 if there is none: os.stat, for a path that is looked at again and again."""
    return os_inode_of(path)


include "_hold.pxi"
include "_fork.pxi"


def begin_thread(first, run, tuple arguments, ended):
    """Run a new thread, and release the lock `ended` when it ends, however it does.

    CPython 3.11 takes a thread that was not scheduled yet for the one that started it: an exception that a third thread
    raises in that one (PyThreadState_SetAsyncExc) comes to this one, at its first bytecode. `first` is a Python
    function that does nothing: the exception hits that, and is dropped.
    """
    try:
        try:
            first()
        except BaseException:
            pass
        run(*arguments)
    finally:
        ended.release()


def name_thread(str name not None):
    """Name the current thread, for the system's tools."""
    cdef bytes encoded = name.encode()
    os_name_thread(encoded)


def boot_ms():
    """Return the milliseconds since the machine booted, time asleep included."""
    return klamm_boot_ms()


def monotonic_ms():
    return klamm_monotonic_ns() // 1000000


def identity():
    """Return the pid of this process and a hash of its pid namespace, as a holder's word has them (os.h)."""
    cdef uint32_t word = klamm_identity()
    return word & 0x3fffff, word >> 22
