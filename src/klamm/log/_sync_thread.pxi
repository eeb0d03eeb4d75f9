"""Syncs for an event loop: threads that need no GIL, and a file descriptor.

The loop submits a log and an offset; a thread syncs the log, as `sync_once` does, and writes to `fd` (an eventfd), so
that the loop takes the result. What is not done in one try, because another process syncs just now or the disk reports
an error, is not tried again here: the loop sees the result and leaves the rest to a thread that may wait and rewrite.

A job may have a Reply: bytes for a socket, which the thread sends when the sync is done. If all of them were taken, the
loop is not woken for it: it takes the result when it has something else to do (`take`), or says that it waits (`want`).
A client that sends a request, waits for its response and sends the next so wakes the loop once a request, not twice.

Promises
  SYN1  Each job that was submitted is taken once, with its result, unless the threads are stopped before it begins.
  SYN2  A result of 0 means: everything below the job's end offset is on disk.
  SYN3  Jobs begin in the order in which they were submitted. One that takes long delays none, as long as there are as
        many threads as jobs.
  SYN4  `fd` is written once for all that is done until the loop takes it, and never after the last thread has ended.
  SYN5  A reply is sent once, after its sync has succeeded, and not after `withdraw` has returned: by then its
        descriptor may be another connection's.
  SYN6  A job whose reply was not sent whole is signalled, and so is one for which `want` was called before it was done.
"""

cdef extern from *:
    """
    #if defined(_WIN32)
    #define klamm_send(fd, data, size) ((void)(fd), (void)(data), (void)(size), (ssize_t)-1)
    #define klamm_yield() ((void)0)
    #else
    #include <sched.h>
    #include <sys/socket.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    #define klamm_send(fd, data, size) send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL)
    #define klamm_yield() sched_yield()
    #endif
    """
    ssize_t klamm_send(int fd, const void *data, size_t size) nogil
    void klamm_yield() nogil

cdef enum:
    IDLE_NS = 60000000000           # no wake-up is lost in here: this is only not to sleep forever
    SENDING_NS = 50000              # a send that does not wait takes 10 microseconds


cdef struct SyncReply:
    const char *data
    Py_ssize_t size, sent
    int64_t ended_ns
    int fd                      # -1: withdrawn
    int is_sending, wanted, is_over


cdef class Reply:
    """Bytes that a thread sends to a socket, without waiting, when what they acknowledge is on disk."""
    cdef SyncReply r
    cdef bytes data

    def __cinit__(self, int fd, bytes data not None):
        self.data = data
        self.r.data, self.r.size, self.r.sent = PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), 0
        self.r.fd, self.r.is_sending, self.r.wanted, self.r.is_over, self.r.ended_ns = fd, 0, 0, 0, 0

    @property
    def sent(self):
        """How many of the bytes the socket has taken."""
        return self.r.sent

    @property
    def ended(self):
        """When they were sent, in seconds of time.monotonic()."""
        return self.r.ended_ns / 1e9


cdef struct SyncJob:
    SyncReply *reply            # or NULL
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
    cdef dict tokens            # by number: the log, which has the writer, the caller's object, and the reply
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
        """Make space for more jobs, so that no thread has to allocate. Return 0 or -ENOMEM. Called with the mutex."""
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

    def submit(self, Log log not None, int64_t end_offset, token, Reply reply=None):
        """Queue a sync of everything below `end_offset`, then a send of the reply; `take` returns `token`. Return
        whether more threads are needed.
        """
        cdef SyncJob job
        cdef bint wakes, wants
        cdef int error = 0
        job.writer, job.end_offset, job.number, job.result = &log.w, end_offset, self.number, 0
        job.reply = NULL if reply is None else &reply.r
        self.number += 1
        self.tokens[job.number] = (log, token, reply)   # before the mutex: with it, nothing of Python's may run
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

    def want(self, Reply reply not None):
        """Ask for the loop to be woken when the job of this reply is done. Return whether it is done already.

        A client that has the reply may ask for more before the thread that sent it is on again: on a machine of few
        cores it often runs on the thread's. It is waited for, for as long as that should take.
        """
        cdef int64_t until = 0, now
        cdef bint is_over
        while True:
            self.hold()
            is_over = reply.r.is_over
            if is_over or not reply.r.is_sending:
                break
            now = klamm_monotonic_ns()
            if until == 0:
                until = now + SENDING_NS
            elif now > until:
                break
            pthread_mutex_unlock(&self.mutex)
            klamm_yield()
        reply.r.wanted = 1
        pthread_mutex_unlock(&self.mutex)
        return is_over

    def withdraw(self, Reply reply not None):
        """Send no more of the reply: its socket is about to be closed."""
        cdef int is_sending
        with nogil:
            while True:
                self.hold()
                reply.r.fd = -1
                is_sending = reply.r.is_sending
                pthread_mutex_unlock(&self.mutex)
                if not is_sending:
                    break
                klamm_yield()                           # it does not wait for the client: this takes microseconds

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

    cdef bint send(self, SyncReply *reply) noexcept nogil:
        """Send the reply, unless it is withdrawn. Return whether all is sent. Called with the mutex; released
        meanwhile.
        """
        cdef ssize_t sent
        cdef int fd = reply.fd
        if fd < 0:
            return False
        reply.is_sending = 1
        pthread_mutex_unlock(&self.mutex)
        sent = klamm_send(fd, reply.data, reply.size)
        reply.ended_ns = klamm_monotonic_ns()
        self.hold()
        reply.is_sending = 0
        reply.sent = max(<ssize_t>0, sent)              # an error is the loop's, which meets it, too
        return reply.sent == reply.size

    cdef void work(self) noexcept nogil:
        cdef SyncJob job
        cdef uint64_t one = 1
        cdef uint32_t control
        cdef bint tells, is_quiet
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
            is_quiet = job.reply != NULL and job.result == 0 and self.send(job.reply) and not job.reply.wanted
            if job.reply != NULL:
                job.reply.is_over = 1
            self.finished[self.done] = job
            self.done += 1
            tells = not self.told and not is_quiet
            if tells:
                self.told = 1
                pthread_mutex_unlock(&self.mutex)
                c_write(self.fd, &one, sizeof(one))
                self.hold()
        pthread_mutex_unlock(&self.mutex)
