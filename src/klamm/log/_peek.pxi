# What heads say of logs that nobody has opened.

def leader_epochs(Heads heads not None, slots):
    """The leader epoch of each of these slots; -1 for a log that must be recovered first, or whose head is damaged."""
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


def blank_slots(Heads heads not None, slots):
    """Those of the slots whose logs never had a record, and need nothing."""
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
