"""The poller: wait for heads to move, and read new batches, in one native call."""

from libc.stdlib cimport free, malloc

cdef enum:
    POLL_BYTES = 65536              # as much is read in the call that waits
    SPIN_MOST = 64                  # more heads than that, and looking at each costs more than sleeping
    NOTHING = -1

cdef int64_t POLL_INTERVAL_NS = 500000000             # a writer may die between its commit and the bell
cdef int64_t interval_ns = POLL_INTERVAL_NS
cdef int64_t SPIN_NS = 10000000             # then signals are looked at
cdef int64_t READ_ONLY_POLL_INTERVAL_NS = 20000000    # a read-only mapping has no bell to listen to
cdef uint32_t ANY_BIT = 0x80000000u


def set_poll_interval(int64_t ns=POLL_INTERVAL_NS):
    """Set how long this process sleeps at most. For tests, which wait for the bell alone."""
    global interval_ns
    interval_ns = ns


cdef struct Watched:
    Writer *w
    uint64_t seq                    # of the head, as the reader has seen it
    bint is_told                    # `moved` has returned it since it was seen
    Tail tail


cdef class Poller:
    """The heads that one thread reads. `interrupt` may be called from any thread, all else from that one only."""
    cdef Heads heads
    cdef list logs                  # they keep the mapping
    cdef Watched *watched
    cdef Py_ssize_t count, turn
    cdef uint32_t bits, interrupts, answered
    cdef unsigned char *read_bytes

    def __cinit__(self, Heads heads not None):
        self.heads, self.logs, self.bits = heads, [], ANY_BIT

    def __dealloc__(self):
        free(self.watched)
        free(self.read_bytes)

    def watch(self, logs):
        """Watch the heads of `logs` instead of those before; all of them count as moved."""
        cdef list watched = list(logs)
        cdef Py_ssize_t i
        cdef Log log
        cdef Watched *entries
        cdef uint32_t bits = 0
        if not all(isinstance(each, Log) for each in watched):
            raise TypeError("not a log")
        entries = <Watched *>malloc(max(1, len(watched)) * sizeof(Watched))
        if entries == NULL:
            raise MemoryError
        for i in range(len(watched)):
            log = <Log>watched[i]
            entries[i].w, entries[i].seq, entries[i].tail.fd, entries[i].is_told = &log.w, NO_SEQ, -1, False
            bits |= log.w.bell_bit
        free(self.watched)
        self.watched, self.logs, self.count, self.turn, self.bits = entries, watched, len(watched), 0, bits or ANY_BIT

    def seen(self, Py_ssize_t index, uint64_t seq, tuple end=None):
        """Record that the head at `index` was read up to `seq`. `end`: where in the active segment (see Reader.end)."""
        cdef Watched *entry
        if not 0 <= index < self.count:
            raise IndexError(index)
        entry = &self.watched[index]
        entry.seq, entry.tail.fd, entry.is_told = seq, -1, False
        if end is not None:
            entry.tail.base, entry.tail.position, entry.tail.next_offset = end[1], end[2], end[3]
            entry.tail.contiguous = end[4]
            entry.tail.fd = end[0]

    def forget_file(self, Py_ssize_t index):
        """Forget the file of the reader at `index`, which closes it."""
        if 0 <= index < self.count:
            self.watched[index].tail.fd = -1

    def moved(self, Py_ssize_t most=-1):
        """Return the indexes of heads that have moved on since they were seen.

        With `most`, look at so many of them, in turn, and leave out those that were returned before.
        """
        cdef Py_ssize_t i, looked, looks = self.count if most < 0 else min(most, self.count)
        cdef list found = []
        for looked in range(looks):
            i = (self.turn + looked) % self.count
            if load64(&self.watched[i].w.slot.seq) != self.watched[i].seq and not (most >= 0 and self.watched[i].is_told):
                self.watched[i].is_told = True
                found.append(i)
        if self.count:
            self.turn = (self.turn + looks) % self.count
        return found

    def interrupt(self):
        """Let `wait` return, now or when it is next called."""
        fetch_add32(&self.interrupts, 1)
        self.heads.ring_all()

    cdef Py_ssize_t find_moved(self) noexcept nogil:
        cdef Py_ssize_t i
        for i in range(self.count):
            if load64(&self.watched[i].w.slot.seq) != self.watched[i].seq:
                return i
        return NOTHING

    cdef bint other_change(self, StoreSlot *store, int64_t catalog_version, int64_t groups_version) noexcept nogil:
        return (load32(&self.interrupts) != self.answered
                or (catalog_version >= 0 and load64(&store.catalog_version) != <uint64_t>catalog_version)
                or (groups_version >= 0 and load64(&store.groups_version) != <uint64_t>groups_version))

    cdef int64_t read(self, Watched *entry, int64_t *end_offset) noexcept nogil:
        """Read whole batches into `read_bytes` and check them: their size, or 0 if a Reader has to look into it.

        It has to if one is of a transaction: that may have been aborted.
        """
        cdef Commit now
        cdef int64_t size = size_behind(entry.w, &entry.tail, POLL_BYTES, &now)
        if size:
            size = read_behind(&entry.tail, self.read_bytes, size, &now, end_offset)
        return 0 if has_transactional(self.read_bytes, size) else size

    def wait(self, int64_t timeout_us, int64_t spin_us, int64_t catalog_version=-1, int64_t groups_version=-1):
        """Wait until a head has moved on, or something else has changed: spin, then sleep on the bell.

        Return (index of the head, its whole and verified batches, the offset behind them); the batches are None if a
        Reader has to look into it. None: nothing moved in time, or `interrupt` was called, or another version of the
        catalog or of the groups is there than the given one.
        """
        cdef StoreSlot *store = self.heads.store()
        cdef int64_t start = klamm_monotonic_ns(), now = start, until = start + timeout_us * 1000, interval
        cdef int64_t spin_until = min(until, start + spin_us * 1000), size = 0, end_offset = 0
        cdef Py_ssize_t i = NOTHING
        cdef uint32_t word = 0
        cdef bint writable = self.heads.writable
        if self.read_bytes == NULL:
            self.read_bytes = <unsigned char *>malloc(POLL_BYTES)
            if self.read_bytes == NULL:
                raise MemoryError
        while True:
            with nogil:
                if now < spin_until and self.count <= SPIN_MOST:
                    interval = min(spin_until, now + SPIN_NS)
                    while i < 0 and now < interval and not self.other_change(store, catalog_version, groups_version):
                        i = self.find_moved()
                        klamm_pause()
                        now = klamm_monotonic_ns()
                else:
                    if writable:
                        word = klamm_listen(&store.bell, self.bits)
                    i = self.find_moved()
                    if i < 0 and not self.other_change(store, catalog_version, groups_version) and now < until:
                        interval = min(until, now + (interval_ns if writable else READ_ONLY_POLL_INTERVAL_NS))
                        if writable:
                            os_futex_wait(&store.bell.word, word, self.bits, interval)
                        else:
                            word = 0
                            os_futex_wait(&word, 0, 1, interval)
                        i = self.find_moved()
                if i >= 0 and self.watched[i].tail.fd >= 0:
                    size = self.read(&self.watched[i], &end_offset)
                now = klamm_monotonic_ns()
            if i >= 0:
                if size:
                    return i, PyBytes_FromStringAndSize(<char *>self.read_bytes, size), end_offset
                return i, None, -1
            PyErr_CheckSignals()
            if self.other_change(store, catalog_version, groups_version):
                self.answered = load32(&self.interrupts)
                return None
            if now >= until:
                return None
