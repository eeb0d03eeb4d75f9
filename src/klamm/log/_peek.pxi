# Heads of logs that are not open.

def leader_epochs(Heads heads not None, slots):
    """Return the leader epoch of each slot; -1 for a log that must be recovered first, or whose head is damaged."""
    cdef int64_t number, end = heads.size()
    cdef Slot *slot
    cdef Commit now
    cdef list epochs = []
    for number in slots:
        if not 0 < number < end:
            raise IndexError(f"{heads.path}: has no slot {number}")
        slot = <Slot *>(heads.map + number * SLOT_SIZE)
        if load64(&slot.flags) & FLAG_NEEDS_RECOVERY or take_snapshot(slot, &now):
            epochs.append(-1)
        else:
            epochs.append(now.leader_epoch)
    return epochs


def empty_slots(Heads heads not None, slots):
    """Return those of the slots whose logs never had a record, and need no recovery."""
    cdef int64_t number, end = heads.size()
    cdef Slot *slot
    cdef Commit now
    cdef set blank = set()
    for number in slots:
        if 0 < number < end:
            slot = <Slot *>(heads.map + number * SLOT_SIZE)
            if not load64(&slot.flags) & 0xffffffffu and not take_snapshot(slot, &now) and now.next_offset == 0:
                blank.add(number)
    return blank


cdef object evidence_of(Slot *slot):
    """Return what a slot proves of a log that must be recovered, however old the slot is."""
    cdef Commit commit
    cdef int i
    cdef int64_t flushed = flushed_offset_of(load64(&slot.flushed)), next_offset = 0, log_start = 0, epoch = 0
    cdef uint64_t last = 0
    if load64(&slot.flags) & FLAG_NEW_HEAD:
        return Evidence(False, 0, 0, 0, 0, False)
    for i in range(RING):
        load_commit(&commit, &slot.ring[i])
        if commit.crc == commit_crc(&commit) and <int>(commit.seq % RING) == i:
            log_start, epoch = max(log_start, commit.log_start), max(epoch, <int64_t>commit.leader_epoch)
            if commit.seq >= last:
                last, next_offset = commit.seq, commit.next_offset
    if load_i64(&slot.flushed_check) != ~flushed:
        flushed = 0
    return Evidence(True, flushed, next_offset, log_start, epoch, slot.recovery_base >= 0)
