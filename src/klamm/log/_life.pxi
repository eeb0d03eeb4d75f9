# The life number of this process in a store, without which it takes no append lock. See owner.h.

cdef class Log


cdef class Life:
    """The identity of this process as an owner of append locks, from the opening of a store until it is closed.

    `file` is a LockFile of `heads`: the byte of this life is held through it, and asked through it for others' lives.
    It has a descriptor of its own, which is not mapped, and which a forked child closes.
    """
    cdef KlammLife life
    cdef Heads heads
    cdef object file
    cdef set slots                      # of which a log was opened in this life

    def __cinit__(self, Heads heads not None, file):
        cdef int error
        if not heads.writable or heads.private:
            raise ValueError(f"{heads.path}: is not mapped for writing")
        self.heads, self.file, self.slots = heads, file, set()
        self.life.fd = file.fd
        self.life.inode = os.fstat(self.life.fd).st_ino
        error = life_begin(&self.life, &heads.store().lives)
        if error:
            raise OSError(-error, os.strerror(-error), heads.path)

    @property
    def number(self):
        return self.life.number

    cdef int join(self, Log log) except -1:
        """Let a log that was just made take its append lock."""
        cdef uint32_t owner = load32(&log.w.slot.owner)
        if log.heads is not self.heads:
            raise ValueError(f"{log.directory}: a life in another mapping of heads")
        if log.number not in self.slots:
            self.slots.add(log.number)
            if owner & ~WAITERS == self.life.number:    # no process stored it: `heads` was damaged, or put back
                owner_swap(&log.w.slot.owner, owner, 0)
        log.w.life, log.life = self.life, self
        return 0

    def busy(self, directory, int64_t slot, int64_t timeout_ms):
        """Return the StoreBusy for an append lock that was not free in time."""
        cdef uint32_t owner = self.heads.owner_of(slot)
        return self.file.busy_life(f"{directory}: append lock", LIFE + owner, self.heads.holder_of(4 * slot), timeout_ms)
