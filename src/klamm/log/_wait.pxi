"""Waiting for heads to move, and the bytes of an index for those who make one anew."""

cdef int64_t NAP_NS = 500000000     # a writer may die between its commit and the bell
cdef int64_t nap_ns = NAP_NS


def set_nap(int64_t ns=NAP_NS):
    """Let this process sleep that long at most before it looks for itself. For tests: of the bell alone."""
    global nap_ns
    nap_ns = ns


cdef bint poll_any(list logs, list seqs, int64_t until) except -1:
    """Look every 20 ms."""
    cdef uint32_t nothing = 0
    cdef int64_t now
    while True:
        for log, seq in zip(logs, seqs):
            if load64(&(<Log>log).w.slot.seq) != <uint64_t>seq:
                return True
        now = klamm_monotonic_ns()
        if now >= until:
            return False
        with nogil:
            os_futex_wait(&nothing, 0, 1, min(until, now + 20000000))
        PyErr_CheckSignals()


def wait_any(list logs not None, list seqs not None, int64_t timeout_us, int64_t spin_us, int64_t groups_version=-1):
    """Until the head of one of `logs` has moved on from its `seqs`: spin, then sleep on the bell. Whether one has.

    With `groups_version`, also until the store's is another. Sleeps at most NAP_NS at a time: a writer may die between
    its commit and the bell.
    """
    cdef Py_ssize_t i, count = len(logs)
    cdef int64_t start = klamm_monotonic_ns(), now = start, until = start + timeout_us * 1000, nap
    cdef uint64_t *words[64]
    cdef uint64_t known[64]
    cdef uint32_t bits = 0, word
    cdef StoreSlot *store
    cdef Log log
    cdef bint moved = False
    if count == 0 or len(seqs) != count:
        raise ValueError("wait_any wants as many seqs as logs, and at least one")
    store = (<Log>logs[0]).w.store
    for i in range(count):
        log = logs[i]
        bits |= log.w.bell_bit
        if i < 64:
            words[i], known[i] = &log.w.slot.seq, seqs[i]
        if load64(&log.w.slot.seq) != <uint64_t>seqs[i]:
            return True
    if not (<Log>logs[0]).heads.writable:     # a read-only mapping has no bell to listen to
        return poll_any(logs, seqs, until)
    if count <= 64:                     # more than that, and looking at each costs more than sleeping
        with nogil:
            while not moved and now - start < spin_us * 1000 and now < until:
                for i in range(count):
                    moved = moved or load64(words[i]) != known[i]
                klamm_pause()
                now = klamm_monotonic_ns()
        if moved:
            return True
    while True:
        word = klamm_listen(&store.bell, bits)
        for i in range(count):
            log = logs[i]
            if load64(&log.w.slot.seq) != <uint64_t>seqs[i]:
                return True
        if groups_version >= 0 and load64(&store.groups_version) != <uint64_t>groups_version:
            return True
        now = klamm_monotonic_ns()
        if now >= until:
            return False
        nap = min(until, now + nap_ns)
        with nogil:
            os_futex_wait(&store.bell.word, word, bits, nap)
        PyErr_CheckSignals()


def index_header(int64_t base, uint32_t first, int64_t size=0, int64_t last_position=0, uint32_t last=0):
    """The first bytes of an index, for one that is made again: of an open segment, or of one that is closed."""
    cdef IndexHeader header
    fill_index_header(&header, base, first)
    header.size, header.last_position, header.last = size, last_position, last
    header.crc = header_crc(&header)
    return bytes((<char *>&header)[:sizeof(header)])


def index_entry(int64_t offset, int64_t position, int64_t max_timestamp):
    cdef IndexEntry entry
    entry.offset, entry.position, entry.max_timestamp, entry.unused = offset, position, max_timestamp, 0
    entry.crc = index_crc(&entry)
    return bytes((<char *>&entry)[:sizeof(entry)])
