"""Reuse of the slots of deleted partitions (docs/internals/format.md)."""


cdef int is_reused(Writer *w) noexcept nogil:
    """Return whether the partition was deleted and its slot belongs to another one by now.

    A reader copies what it needs of the slot first and calls this afterwards: `use_again` changes the
    generation before anything else. A process that holds one of the slot's four locks, and got 0 here, can rely on the
    slot until it gives the lock up: `use_again` needs all four.
    """
    klamm_fence_acquire()
    return (load64(&w.slot.flags) ^ w.slot_generation) >> 32 != 0


cdef int take_own_snapshot(Writer *w, Commit *out) noexcept nogil:
    """Copy the latest commit of this partition: 0, R_DELETED or R_DAMAGED_HEAD."""
    cdef int error = take_snapshot(w.slot, out)
    return R_DELETED if is_reused(w) else error


cdef int keep_unless_reused(Writer *w) noexcept nogil:
    if is_reused(w):
        unlock_append(w)
        return R_DELETED
    return 0


cdef void use_again(Writer *w, const char *topic_id, uint32_t number) noexcept nogil:
    """Clear the slot for another partition, and leave it marked DELETED. Called under all four locks of the slot.

    The generation changes first: from then on `is_reused` is true for every process that still has the deleted
    partition open, so it neither writes to the slot nor uses what it has read there.
    """
    cdef Slot *slot = w.slot
    cdef Commit empty
    cdef int i
    w.slot_generation = next_slot_generation(load64(&slot.flags))
    store64(&slot.flags, w.slot_generation | FLAG_DELETED)
    klamm_fence_release()
    memset(&empty, 0, sizeof(empty))
    for i in range(RING):                               # the deleted partition's commits say nothing of the new one
        store_commit(&slot.ring[i], &empty)
    store_i64(&slot.index_base, -1)
    store_i64(&slot.index_position, 0)
    store_i64(&slot.index_count, 0)
    store_i64(&slot.recovery_base, -1)
    store_i64(&slot.recovery_position, 0)
    store64(&slot.redo_seq, 0)
    store64(&slot.producers_seq, 0)
    store_i64(&slot.aborted_base, -1)
    store_i64(&slot.aborted_count, 0)
    store_i64(&slot.active_since_ms, 0)
    store64(&slot.flushed, next_generation(load64(&slot.flushed)) & FLUSH_GENERATION)
    store_i64(&slot.flushed_check, ~<int64_t>0)
    klamm_step(STEP_STORE)
    memcpy(slot.topic_id, topic_id, 16)
    slot.number = number
    slot.identity_crc = slot_identity_crc(slot)
    empty.max_timestamp = -1
    publish(slot, &empty)
    store64(&slot.intent, empty.seq)
    fetch_add32(&slot.segments_version, 1)
