"""Reuse of the slots of deleted partitions (docs/internals/format.md)."""


cdef int is_reused(Writer *w) noexcept nogil:
    """Return whether the partition was deleted and its slot belongs to another one by now.

    Asked after what was read of the slot is copied: the generation moves before anything else changes. A process that
    has one of the slot's locks and was told no keeps the slot: to use it again takes all of them.
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
    """Make the slot the empty slot of another partition, but for DELETED. Called under all four locks of the slot.

    The generation moves first, so that logs of the partition that was deleted change nothing from now on and take
    nothing they read for theirs.
    """
    cdef Slot *slot = w.slot
    cdef Commit empty
    cdef int i
    w.slot_generation = next_slot_generation(load64(&slot.flags))
    store64(&slot.flags, w.slot_generation | FLAG_DELETED)
    klamm_fence_release()
    memset(&empty, 0, sizeof(empty))
    for i in range(RING):                               # no commit of the other one is evidence for this one
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
