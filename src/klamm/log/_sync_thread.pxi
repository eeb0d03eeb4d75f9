"""Syncs for an event loop: threads that need no GIL, and a file descriptor.

The loop submits a log and an offset; a thread syncs the log, as `sync_once` does, and writes to `fd` (an eventfd), so
that the loop takes the result. What is not done in one try, because another process syncs just now or the disk reports
an error, is not tried again here: the loop sees the result and leaves the rest to a thread that may wait and rewrite.

Promises
  SYN1  Each job that was submitted is taken once, with its result, unless the threads are stopped before it begins.
  SYN2  A result of 0 means: everything below the job's end offset is on disk.
  SYN3  Jobs begin in the order in which they were submitted. One that takes long delays none, as long as there are as
        many threads as jobs.
  SYN4  `fd` is written once for all that is done until the loop takes it, and never after the last thread has ended.
"""

cdef enum:
    IDLE_NS = 60000000000           # no wake-up is lost in here: this is only not to sleep forever


cdef struct SyncJob:
    Writer *writer
    int64_t end_offset, number, result


cdef int try_sync(Writer *w, int64_t end_offset) noexcept nogil:
    """Sync, without waiting for another thread or process that does. 0, -EAGAIN or an error."""
    cdef int error
    if flushed_offset_of(load64(&w.slot.flushed)) >= end_offset and not is_reused(w):
        return 0
    error = try_lock_flush(w)
    if error == 0:
        if flushed_offset_of(load64(&w.slot.flushed)) < end_offset:
            error = flush_locked(w)
        unlock_flush(w)
    return error


cdef class Syncer:
    """Jobs of one event loop. `submit` and `take` are the loop's; `run` is for threads, as many as `submit` wants."""
    cdef dict tokens            # by number: the log, which has the writer, and the caller's object
    cdef pthread_mutex_t mutex  # of everything below
    cdef SyncJob *queue         # a ring: `queued` jobs from `first` on
    cdef SyncJob *finished      # `done` jobs
    cdef int64_t first, queued, done, room, number
    cdef int idle, told, over, fd
    cdef uint32_t control       # changes with what an idle thread should look at

    def __cinit__(self, int fd):
        self.fd, self.tokens = fd, {}
        pthread_mutex_init(&self.mutex, NULL)

    def __dealloc__(self):
        PyMem_RawFree(self.queue)
        PyMem_RawFree(self.finished)

    def __len__(self):
        return len(self.tokens)

    cdef void hold(self) noexcept nogil:
        while klamm_mutex_lock(&self.mutex, 1):     # it gives up now and then
            pass

    cdef int grow(self) noexcept nogil:
        """With the mutex: room for more, queued or finished, so that a thread never has to allocate. 0 or -ENOMEM."""
        cdef int64_t i, room = max(<int64_t>64, 2 * self.room)
        cdef SyncJob *queue = <SyncJob *>PyMem_RawRealloc(NULL, room * sizeof(SyncJob))
        cdef void *finished = PyMem_RawRealloc(self.finished, room * sizeof(SyncJob))
        if finished != NULL:
            self.finished = <SyncJob *>finished
        if queue == NULL or finished == NULL:
            PyMem_RawFree(queue)
            return -ENOMEM
        for i in range(self.queued):
            queue[i] = self.queue[(self.first + i) % self.room]
        PyMem_RawFree(self.queue)
        self.queue, self.first, self.room = queue, 0, room
        return 0

    def submit(self, Log log not None, int64_t end_offset, token):
        """Have everything below `end_offset` synced; `take` returns `token`. Return whether more threads are wanted."""
        cdef SyncJob job
        cdef bint wakes, wants
        cdef int error = 0
        job.writer, job.end_offset, job.number, job.result = &log.w, end_offset, self.number, 0
        self.number += 1
        self.tokens[job.number] = (log, token)      # before the mutex: with it, nothing of Python's may run
        self.hold()
        if len(self.tokens) > self.room:
            error = self.grow()
        if error == 0:
            self.queue[(self.first + self.queued) % self.room] = job
            self.queued += 1
        wakes, wants = self.idle > 0, self.queued > self.idle
        pthread_mutex_unlock(&self.mutex)
        if error:
            del self.tokens[job.number]
            raise MemoryError
        if wakes:
            fetch_add32(&self.control, 1)
            os_futex_wake_one(&self.control)
        return wants

    def take(self):
        """Return what is done since the last call: [(token, result)]. 0, -errno or a Result."""
        cdef SyncJob job
        cdef bint is_there
        taken = []
        while True:
            self.hold()
            is_there = self.done > 0
            if is_there:
                self.done -= 1
                job = self.finished[self.done]
            else:
                self.told = 0
            pthread_mutex_unlock(&self.mutex)
            if not is_there:
                return taken
            taken.append((self.tokens.pop(job.number)[1], job.result))

    def stop(self):
        """Let the threads end after the job that each is at."""
        self.hold()                                 # so that a thread either sees it, or sleeps on the older `control`
        self.over = 1
        fetch_add32(&self.control, 1)
        pthread_mutex_unlock(&self.mutex)
        os_futex_wake(&self.control, 0xffffffffu)

    def run(self):
        """Work, until `stop`."""
        with nogil:
            self.work()

    cdef void work(self) noexcept nogil:
        cdef SyncJob job
        cdef uint64_t one = 1
        cdef uint32_t control
        cdef bint tells
        self.hold()
        while not self.over:
            if self.queued == 0:
                control = load32(&self.control)     # before it counts as idle: who submits then changes it
                self.idle += 1
                pthread_mutex_unlock(&self.mutex)
                os_futex_wait(&self.control, control, 0xffffffffu, klamm_monotonic_ns() + IDLE_NS)
                self.hold()
                self.idle -= 1
                continue
            job = self.queue[self.first]
            self.first = (self.first + 1) % self.room
            self.queued -= 1
            pthread_mutex_unlock(&self.mutex)
            job.result = try_sync(job.writer, job.end_offset)
            self.hold()
            self.finished[self.done] = job
            self.done += 1
            tells, self.told = not self.told, 1
            if tells:
                pthread_mutex_unlock(&self.mutex)
                c_write(self.fd, &one, sizeof(one))
                self.hold()
        pthread_mutex_unlock(&self.mutex)
