"""Mutants of the native modules: append, table of producers, head, CRC, sync."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ACCUMULATOR = "src/klamm/batch/_accumulator.pxi"
HEAD = "src/klamm/log/_head.pyx"
APPEND = "src/klamm/log/_append.pxi"
REUSE = "src/klamm/log/_reuse.pxi"
TAIL = "src/klamm/log/_tail.pxi"
DECODER = "src/klamm/batch/_decoder.pxi"
OWNER = "src/klamm/log/owner.h"
HOLD = "src/klamm/disk/_hold.pxi"
LIFE = "src/klamm/log/_life.pxi"
PRODUCERS = "src/klamm/log/_producers.pxi"
PRODUCER_FILE = "src/klamm/log/_producer_file.pxi"
TABLE_TESTS = "tests/log/test_producer_table.py"
POWER_CUT = "tests/crash/test_power_cut.py"
DAMAGE = "tests/crash/test_damage.py"
TRANSACTIONS_TESTS = "tests/log/test_transactions.py"
HEAD_TESTS = "tests/log/test_head.py"
KILLS = "tests/crash/test_killed_writer.py"
RANDOM_KILLS = "tests/crash/test_random_kills.py"
LOCK_WORD = "tests/crash/test_lock_word.py"
HOLDERS = "tests/disk/test_holders.py"
WRITING = (KILLS, RANDOM_KILLS, "tests/log")

MUTANTS = [
    Mutant(
        "what is aborted is written down after the marker's commit",
        "log/aborted.py A1",
        (
            (
                APPEND,
                ("        error = note_aborted(w, &now, batch)\n        if error:\n            return error\n"),
                "        pass\n",
            ),
            (
                APPEND,
                "    publish(w.slot, &now)\n    if producer_id",
                (
                    "    publish(w.slot, &now)\n"
                    "    if attributes & KLAMM_CONTROL and batch[MARKER_TYPE_AT + 1] == 0:\n"
                    "        note_aborted(w, &before, batch)\n"
                    "    if producer_id"
                ),
            ),
        ),
        (
            f"{TRANSACTIONS_TESTS}::test_whoever_writes_a_marker_of_the_same_epoch_and_is_killed_leaves_it_whole_or_to_the_next",
        ),
    ),
    Mutant(
        "a marker makes everything stable, whatever else is open",
        "a transaction is read whole or not at all",
        ((APPEND, "        now.stable_offset = oldest if oldest >= 0 else end", "        now.stable_offset = end"),),
        (f"{TRANSACTIONS_TESTS}::test_what_was_aborted_is_never_read_except_by_those_who_ask_for_it",),
    ),
    Mutant(
        "an open transaction does not hold the stable offset back",
        "a transaction is read whole or not at all",
        ((APPEND, " and not attributes & KLAMM_TRANSACTIONAL:", ":"),),
        (f"{TRANSACTIONS_TESTS}::test_what_is_open_is_not_read_and_what_comes_after_it_waits",),
    ),
    Mutant(
        "a late marker ends a later transaction",
        "store/transactions.py T3",
        (
            (
                PRODUCERS,
                "    if epoch <= last:\n        return R_ENDED\n",
                "    if epoch <= last:\n        return R_IN_ORDER\n",
            ),
        ),
        (f"{TRANSACTIONS_TESTS}::test_a_marker_is_written_once_and_never_for_a_later_transaction",),
    ),
    Mutant(
        "a marker of the same epoch is written though nothing is open",
        "store/transactions.py T3",
        (
            (
                PRODUCERS,
                "if epoch == last and entry.first_open_offset >= 0 else R_ENDED",
                "if epoch == last else R_ENDED",
            ),
        ),
        (f"{TRANSACTIONS_TESTS}::test_a_marker_of_the_same_epoch_ends_what_is_open_and_the_sequence_goes_on",),
    ),
    Mutant(
        "after a marker of the same epoch the sequence begins anew",
        "an idempotent producer's retry is stored once",
        ((PRODUCERS, "            item.last_sequence = last.last_sequence\n", "            pass\n"),),
        (f"{TRANSACTIONS_TESTS}::test_a_marker_of_the_same_epoch_ends_what_is_open_and_the_sequence_goes_on",),
    ),
    Mutant(
        "what an ended transaction wrote is taken for what the next one writes",
        "decisions/2026-11-17-a-retry-is-compared-with-the-log.md",
        (
            (
                PRODUCERS,
                "& KLAMM_TRANSACTIONAL and not 0 <= entry.first_open_offset <= item.base_offset:",
                "& KLAMM_TRANSACTIONAL and False:",
            ),
        ),
        (
            (
                "tests/log/test_repeated.py::"
                "test_what_an_ended_transaction_wrote_is_no_duplicate_of_what_the_next_one_writes"
            ),
        ),
    ),
    Mutant(
        "a marker ends an older transaction, whatever became of that",
        "store/transactions.py T3",
        ((PRODUCERS, " if entry.first_open_offset < 0 or epoch == last + 1 else R_OUT_OF_ORDER", ""),),
        (f"{TRANSACTIONS_TESTS}::test_a_marker_never_ends_an_older_transaction_that_has_yet_to_get_its_own",),
    ),
    Mutant(
        "a marker does not end the transaction in the table",
        "store/transactions.py T4",
        ((PRODUCERS, "        open_at = -1\n    elif", "        pass\n    elif"),),
        (f"{TRANSACTIONS_TESTS}::test_what_was_aborted_is_never_read_except_by_those_who_ask_for_it",),
    ),
    Mutant(
        "a dead writer's bytes stay",
        "promise 3",
        ((APPEND, "    if w.slot.intent != now.seq:", "    if False:"),),
        (f"{KILLS}::test_a_writer_killed_at_any_step_leaves_committed_batches_and_nothing_else",),
    ),
    Mutant(
        "intent is stored after the write",
        "promise 3",
        (
            (APPEND, "    store64(&w.slot.intent, now.seq + 1)\n    while done < size:", "    while done < size:"),
            (APPEND, "    before = now\n", "    before = now\n    store64(&w.slot.intent, now.seq + 1)\n"),
            (APPEND, "        if status.st_size > now.position and w.slot.intent == now.seq:", "        if False:"),
        ),
        (f"{KILLS}::test_a_writer_killed_at_any_step_leaves_committed_batches_and_nothing_else",),
    ),
    Mutant(
        "seq is stored before the commit is filled",
        "promise 1",
        (
            (
                APPEND,
                "    store_commit(&slot.ring[next.seq % RING], next)\n    store64(&slot.seq, next.seq)",
                "    store64(&slot.seq, next.seq)\n    store_commit(&slot.ring[next.seq % RING], next)",
            ),
        ),
        (f"{KILLS}::test_a_writer_killed_at_any_step_leaves_committed_batches_and_nothing_else",),
    ),
    Mutant(
        "no append lock",
        "promise 2",
        ((APPEND, "        error = owner_take(&w.slot.owner, &w.life, wait)", "        error = 0"),),
        (f"{RANDOM_KILLS}::test_hundreds_of_killed_writers_never_disturb_a_reader",),
    ),
    Mutant(
        "the first in the queue for klamm.db is not woken when the holder has had its row",
        "internals/commit.md: waiting",
        (
            (
                HOLD,
                "        return self.unlock(self.byte, self.mutex.note)\n",
                "        return self.unlock(self.byte, NULL)\n",
            ),
        ),
        (f"{HOLDERS}::test_the_first_in_the_queue_is_woken_when_the_holder_has_had_its_row_and_not_before",),
    ),
    Mutant(
        "the first in the queue for klamm.db is woken by every unlock",
        "internals/commit.md: waiting",
        ((HOLD, "and self.mutex.in_a_row < IN_A_ROW:\n            return os_", "and False:\n            return os_"),),
        (f"{HOLDERS}::test_the_first_in_the_queue_is_woken_when_the_holder_has_had_its_row_and_not_before",),
    ),
    Mutant(
        "an append lock is stolen without proof that its owner died",
        "log/owner.h LCK3",
        (
            (
                OWNER,
                "klamm_monotonic_ns() >= until && !life_goes_on(life, seen & ~WAITERS))",
                "klamm_monotonic_ns() >= until)",
            ),
        ),
        (f"{LOCK_WORD}::test_nothing_is_taken_from_a_stopped_process_and_everything_from_a_dead_one",),
    ),
    Mutant(
        "a process that only tries takes an append lock from the living",
        "log/owner.h LCK3",
        ((OWNER, "            if (life_goes_on(life, seen & ~WAITERS)) return -EAGAIN;\n", ""),),
        (f"{LOCK_WORD}::test_a_process_whose_owner_died_tries_without_waiting_and_has_it",),
    ),
    Mutant(
        "the lock of a dead owner is never taken",
        "promise 3",
        ((OWNER, "    return os_find_lock(own->fd, &start, &length) != 0;", "    return 1;"),),
        (f"{LOCK_WORD}::test_a_process_whose_owner_died_tries_without_waiting_and_has_it",),
    ),
    Mutant(
        "a process takes its own life number in an owner word for free",
        "log/owner.h LCK4",
        ((OWNER, "if (!KLAMM_BYTE_LOCKS || number == own->number) return 1;", "if (number == own->number) return 0;"),),
        (f"{LOCK_WORD}::test_a_process_and_its_unhandled_fork_take_turns_as_two_processes_do",),
    ),
    Mutant(
        "a process sleeps for the append lock and does not say so",
        "log/owner.h LCK5",
        ((OWNER, "        if (!(seen & WAITERS)) {", "        if (0) {"),),
        (f"{LOCK_WORD}::test_a_process_that_sleeps_has_said_so_and_is_woken",),
    ),
    Mutant(
        "WAITERS is dropped by a process that got the append lock by sleeping",
        "log/owner.h LCK5",
        ((OWNER, "owner_swap(owner, 0, life->number | WAITERS)", "owner_swap(owner, 0, life->number)"),),
        (f"{LOCK_WORD}::test_a_process_that_slept_wakes_the_next_when_it_is_done",),
    ),
    Mutant(
        "WAITERS is dropped by a process that took the append lock of a dead one",
        "log/owner.h LCK5",
        (
            (
                OWNER,
                "owner_swap(owner, seen, life->number | WAITERS)) return 0;  /* the owner died",
                "owner_swap(owner, seen, life->number)) return 0;  /* the owner died",
            ),
        ),
        (f"{LOCK_WORD}::test_a_process_that_slept_wakes_the_next_when_it_is_done",),
    ),
    Mutant(
        "owner words are not cleared after a boot",
        "log/owner.h LCK6",
        (
            (
                "src/klamm/log/_heads.pxi",
                "        self.free_locks()\n        store_i64(&store.anchor_wall_ms",
                "        store_i64(&store.anchor_wall_ms",
            ),
        ),
        (f"{LOCK_WORD}::test_after_a_boot_no_lock_is_held_whatever_the_words_say",),
    ),
    Mutant(
        "the owner word of a mapping that cannot be written is written",
        "log/owner.h LCK7",
        ((APPEND, "    elif not w.life.number:\n", "    elif False:\n"),),
        (f"{LOCK_WORD}::test_no_life_begins_in_a_mapping_that_cannot_be_written",),
    ),
    Mutant(
        "a handler of a fork that a signal handler interrupts is given up",
        "disk/fork.py",
        (("src/klamm/disk/_fork.pxi", "    FORK_TRIES = 50  ", "    FORK_TRIES = 1  "),),
        ("tests/disk/test_fork.py::test_an_interrupt_at_any_point_of_a_fork_leaves_no_lock_held",),
    ),
    Mutant(
        "a forked child goes on with its parent's life",
        "log/owner.h LCK8",
        ((APPEND, "    w.abandoned = 1\n", "    pass\n"), (APPEND, "    w.life.number = 0\n", "    pass\n")),
        ("tests/crash/test_fork_and_threads.py::test_the_parents_handles_refuse_in_the_child_and_go_on_in_the_parent",),
    ),
    Mutant(
        "the life byte is held through the descriptor that is mapped",
        "log/owner.h LCK9",
        ((LIFE, "        self.life.fd = file.fd\n", "        self.life.fd = heads.fd\n"),),
        ("tests/crash/test_fork_and_threads.py::test_a_copy_of_a_descriptor_does_not_keep_a_lock_of_the_dead",),
    ),
    Mutant(
        "a process waits for its own life number, which a damaged word has",
        "promise 7",
        ((LIFE, "            if owner & ~WAITERS == self.life.number:", "            if False:"),),
        (f"{LOCK_WORD}::test_a_word_with_a_number_that_nobody_has_stored_holds_up_nobody",),
    ),
    Mutant(
        "a failed write is not cut off",
        "promise 6",
        ((APPEND, "            cut(w, &now)\n", ""),),
        (f"{KILLS}::test_an_append_that_fails_at_any_step_leaves_no_trace_and_the_next_one_succeeds",),
    ),
    Mutant(
        "a short write is taken for a whole one",
        "promise 1",
        ((APPEND, "            done += written\n", "            done = size\n"),),
        (f"{KILLS}::test_an_append_that_fails_at_any_step_leaves_no_trace_and_the_next_one_succeeds",),
    ),
    Mutant(
        "the reader does not look at seq again",
        "promise 1",
        ((APPEND, "if load64(&slot.seq) - seq >= RING - 1:", "if False:"),),
        (f"{HEAD_TESTS}::test_a_reader_stopped_anywhere_in_its_copy_never_accepts_a_torn_commit",),
    ),
    Mutant(
        "the reader's bound is too wide, and it checks no seq and CRC",
        "promise 1",
        (
            (APPEND, "if load64(&slot.seq) - seq >= RING - 1:", "if load64(&slot.seq) - seq >= RING:"),
            (APPEND, "if out.seq != seq or out.crc != commit_crc(out):", "if False:"),
        ),
        (f"{HEAD_TESTS}::test_any_damaged_byte_of_the_latest_commit_is_noticed_by_readers_and_writers",),
    ),
    Mutant(
        "a damaged commit is believed",
        "promise 7",
        ((APPEND, "if out.seq != seq or out.crc != commit_crc(out):", "if False:"),),
        (f"{HEAD_TESTS}::test_any_damaged_byte_of_the_latest_commit_is_noticed_by_readers_and_writers",),
    ),
    Mutant(
        "nobody makes up for a writer that died before the table of producers",
        "promise 3",
        ((PRODUCERS, "    if w.slot.redo_seq == now.seq and not w.table_broken:", "    if False:"),),
        WRITING,
    ),
    Mutant(
        "what a dead writer changed in the table of producers stays half done",
        "promise 3",
        ((PRODUCERS, "    undo(w)\n    if w.slot.redo_seq", "    if w.slot.redo_seq"),),
        (f"{TABLE_TESTS}::test_a_writer_killed_at_any_step_leaves_a_table_that_is_whole_and_knows_its_batch",),
    ),
    Mutant(
        "a full table of producers forgets one with an open transaction",
        "docs/internals/commit.md, producers",
        ((PRODUCERS, "    after = &header.open if open_at >= 0 else &header.idle\n", "    after = &header.idle\n"),),
        (f"{TABLE_TESTS}::test_a_full_table_forgets_the_longest_unseen_producer_without_an_open_transaction",),
    ),
    Mutant(
        "a full table of producers forgets the longest known instead of the longest unseen",
        "docs/internals/commit.md, producers",
        ((PRODUCERS, " or (after == &header.idle and after.newest != link):", ":"),),
        (f"{TABLE_TESTS}::test_a_full_table_forgets_the_longest_unseen_producer_without_an_open_transaction",),
    ),
    Mutant(
        "the latest open transaction is taken for the oldest",
        "a transaction is read whole or not at all",
        ((PRODUCERS, "entry_of(w, w.table.header.open.oldest)", "entry_of(w, w.table.header.open.newest)"),),
        (f"{TABLE_TESTS}::test_the_oldest_open_transaction_is_known_however_they_begin_and_end",),
    ),
    Mutant(
        "links in the table of producers are followed wherever they lead",
        "log/_producers.pxi",
        ((PRODUCERS, " if 0 < link <= w.table.header.used else NULL", " if link else NULL"),),
        (f"{TABLE_TESTS}::test_no_table_of_producers_crashes_a_process_that_uses_it",),
    ),
    Mutant(
        "a bucket that is split keeps what belongs to the new one",
        "log/_producers.pxi",
        (
            (
                PRODUCERS,
                "        if bucket_of(producer_hash(header.key, entry.id), count + 1) == count:",
                "        if False:",
            ),
        ),
        (f"{TABLE_TESTS}::test_every_producer_of_thousands_is_found_however_the_table_grew",),
    ),
    Mutant(
        "a table of producers that is being made again is the log's from the start",
        "log/_producers.pxi",
        (
            (
                PRODUCER_FILE,
                "TABLE_VERSION, capacity, 0, os.urandom(8)",
                "TABLE_VERSION, capacity, w.slot.producers_seq, os.urandom(8)",
            ),
        ),
        (f"{TABLE_TESTS}::test_a_process_killed_while_it_makes_the_table_again_leaves_none_that_is_believed",),
    ),
    Mutant(
        "tables of producers are never unmapped",
        "log/_producer_file.pxi",
        ((PRODUCER_FILE, "    unmap_idle(room)\n", ""),),
        (f"{TABLE_TESTS}::test_a_process_maps_a_bounded_number_of_tables_and_every_producer_is_known_all_the_same",),
    ),
    Mutant(
        "producers are remembered before the commit",
        "promise 3",
        (
            (
                APPEND,
                ("    publish(w.slot, &now)\n    if producer_id >= 0:\n        remember(w, batch, base_offset)"),
                (
                    "    if producer_id >= 0:\n"
                    "        remember(w, batch, base_offset)\n"
                    "    publish(w.slot, &now)\n"
                    "    if producer_id >= 0:"
                ),
            ),
        ),
        WRITING,
    ),
    Mutant(
        "a roll does not say in the index what the segment is",
        "log/index.py I3",
        ((APPEND, "    os_pwrite(w.index_fd, &header, sizeof(header), 0)\n", "    pass\n"),),
        ("tests/log/test_index_binding.py::test_an_index_is_valid_beside_its_own_segment_only",),
    ),
    Mutant(
        "an index entry is written before its batch is committed",
        "promise 9",
        (
            (APPEND, "    before = now\n", "    before = now\n    maybe_index(w, &before, base_offset)\n"),
            (APPEND, "    while done < size:", "    maybe_index(w, &now, base_offset + 1)\n    while done < size:"),
        ),
        WRITING,
    ),
    Mutant(
        "the bell is rung before the commit",
        "internals/commit.md: a reader that waits sees what it was woken for",
        (
            (APPEND, "    if result >= 0:\n        klamm_ring(&w.store.bell, w.bell_bit)\n", ""),
            (
                APPEND,
                "    publish(w.slot, &now)\n    if producer_id",
                ("    klamm_ring(&w.store.bell, w.bell_bit)\n    publish(w.slot, &now)\n    if producer_id"),
            ),
        ),
        ("tests/disk/test_bell.py",),
    ),
    Mutant(
        "a bell thread that was armed with nothing to watch sleeps on when a head is watched",
        "internals/README.md: one thread sleeps on the bell for all clients",
        (
            (
                "src/klamm/log/_bell_thread.pxi",
                "            self.wake()             # it may sleep because nothing was watched\n",
                "",
            ),
        ),
        (
            "tests/log/test_bell_thread.py::test_a_head_that_is_watched_by_a_bell_thread_that_was_armed_with_nothing_to_watch",
        ),
    ),
    Mutant(
        "a head that is watched by an armed bell thread is not listened to",
        "internals/README.md: one thread sleeps on the bell for all clients",
        (
            (
                "src/klamm/log/_bell_thread.pxi",
                "            self.heads.ring_all()   # it listens to too little\n",
                "            pass\n",
            ),
        ),
        ("tests/log/test_bell_thread.py::test_a_head_that_is_watched_while_it_is_armed_already",),
    ),
    Mutant(
        "a sync does not reach the disk",
        "promise 5",
        (
            (
                "src/klamm/disk/os.h",
                "    return klamm_step(STEP_SYNC) ? -1 : fdatasync(fd);",
                "    return klamm_step(STEP_SYNC) ? -1 : 0;",
            ),
        ),
        (POWER_CUT,),
    ),
    Mutant(
        "the CRC of batches is not checked",
        "promise 7",
        (
            (
                "src/klamm/batch/record.h",
                "        if (batch.crc != klamm_crc32c(",
                "        if (0 && batch.crc != klamm_crc32c(",
            ),
        ),
        (f"{DAMAGE}::test_damage_to_a_log_or_its_index_is_an_error_or_harmless",),
    ),
    Mutant(
        "an older commit of the ring is believed",
        "promise 7",
        (
            (
                "src/klamm/log/_append.pxi",
                "        if flushed_offset_of(load64(&slot.flushed)) <= out.next_offset:\n            return 0\n",
                "        return 0\n",
            ),
        ),
        (f"{HEAD_TESTS}::test_a_seq_that_went_back_hides_nothing_that_was_synced_and_makes_no_writer_cut_it_off",),
    ),
    Mutant(
        "a log does not notice that its slot is another partition's",
        "internals/format.md: the generation of a slot",
        ((REUSE, "return (load64(&w.slot.flags) ^ w.slot_generation) >> 32 != 0", "return 0"),),
        (
            "tests/store/test_slots.py::test_a_log_of_a_deleted_partition_does_nothing_to_the_one_that_has_its_slot[read]",
        ),
    ),
    Mutant(
        "commits of a deleted partition are evidence for the next one in its slot",
        "internals/format.md: the ring is emptied",
        ((REUSE, "        store_commit(&slot.ring[i], &empty)\n", "        pass\n"),),
        ("tests/store/test_slots.py::test_after_a_boot_nothing_of_a_deleted_partition_is_evidence_for_the_next_one",),
    ),
    Mutant(
        "a damaged clock is believed",
        "promise 7",
        (
            (
                "src/klamm/log/_heads.pxi",
                "        if store.anchor_check != ",
                "        if False and store.anchor_check != ",
            ),
        ),
        ("tests/log/test_head.py::test_any_flipped_bit_of_the_store_s_slot_is_noticed_or_leaves_the_clock_right",),
    ),
    Mutant(
        "a reader that follows the active segment looks beyond the commit",
        "promise 1",
        (
            (TAIL, "max(0, min(most, now.position - tail.position))", "most"),
            (
                TAIL,
                "    if os_pread(tail.fd, to, size, tail.position) != size:\n",
                "    size = os_pread(tail.fd, to, size, tail.position)\n    if size <= 0:\n",
            ),
        ),
        (f"{KILLS}::test_a_writer_killed_at_any_step_leaves_committed_batches_and_nothing_else",),
    ),
    Mutant(
        "a decoder returns records of a batch whose rest is bad",
        "batch/_decoder.pxi: a batch is returned whole, or not at all",
        (
            (
                DECODER,
                "        try:\n            self.check_rest()\n",
                "        try:\n            self.is_checked = True\n",
            ),
        ),
        ("tests/batch/test_decoder.py::test_nothing_of_a_bad_batch_is_returned_and_what_is_good_comes_before_it",),
    ),
    Mutant(
        "a decoder is used while it makes a record",
        "batch/_decoder.pxi: memory that is being read is not given back",
        ((DECODER, "        if self.is_taking:\n", "        if False:\n"),),
        ("tests/batch/test_decoder.py::test_a_decoder_is_not_used_while_it_makes_a_record",),
    ),
    Mutant(
        "a consumer of a read-only store rings the bell",
        "a store opened with read_only=True writes nothing",
        (
            (
                "src/klamm/log/_heads.pxi",
                "        if self.writable:\n            klamm_ring(",
                "        if True:\n            klamm_ring(",
            ),
        ),
        ("tests/client/test_waiting.py::test_a_consumer_of_a_read_only_store_ends_while_another_process_waits",),
    ),
    Mutant(
        "an accumulator that was closed while the serializers ran takes the record",
        "client/produce/producer.py SND7",
        (
            (
                ACCUMULATOR,
                "            if self.closed:  # after everything that may run another thread\n",
                "            if False:\n",
            ),
        ),
        ("tests/client/test_producer_end.py::test_a_send_that_comes_too_late_raises_and_is_not_lost_silently",),
    ),
    Mutant(
        "a callback that raises ends the callbacks of its batch",
        "batch/_accumulator.pxi: each callback is called",
        (
            (
                ACCUMULATOR,
                "    except BaseException as interrupt:\n        return interrupt\n",
                "    except ZeroDivisionError:\n        pass\n",
            ),
        ),
        ("tests/batch/test_accumulator.py::test_every_callback_is_called_whatever_another_raises",),
    ),
    Mutant(
        "a full buffer is noticed only after the record was taken",
        "client/produce/producer.py SND6",
        (
            (
                ACCUMULATOR,
                "type(topic) is str and (self._memory is None or self._memory.used <= self._memory.limit)",
                "type(topic) is str",
            ),
        ),
        ("tests/client/test_producer.py::test_a_full_buffer_blocks_and_then_raises_without_taking_the_record",),
    ),
]
