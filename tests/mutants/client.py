"""Mutants of what programs use: consumers, groups, workers, producers, tables, scans, the command line."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COMMITS = "src/klamm/client/commits.py"
WORKERS = "src/klamm/client/workers.py"
ENGINE = "src/klamm/client/consume/log_engine.py"
CURSOR = "src/klamm/client/consume/cursor.py"
ENGINE_TESTS = "tests/client/test_read_engine.py"
CLOSING_TESTS = "tests/client/test_closing.py"
TAIL = "src/klamm/cli/tail.py"
PRODUCER = "src/klamm/client/producer.py"
LETTERS = "src/klamm/client/dead_letters.py"
END_TESTS = "tests/client/test_producer_end.py"
LETTER_TESTS = "tests/client/test_dead_letters.py"
GROUP_TESTS = "tests/client/test_groups.py"
WORKER_TESTS = "tests/client/test_workers.py"
TAIL_TEST = "tests/cli/test_tail.py::test_a_group_does_not_move_past_what_could_not_be_printed"
RANGES = "(each, bounds.range_in(each, start, self._end, committed=self._committed)) for each in opened"
FLUSH = "sys.stdout.buffer.flush()"

MUTANTS = [
    Mutant(
        "a consumer closes its files while another thread reads them",
        "client/consume/read_engine.py E1",
        (
            (
                ENGINE,
                "        with suppress(StoreBusy), self._urgent():\n            self._close_files()\n",
                "        self._close_files()\n",
            ),
        ),
        (f"{CLOSING_TESTS}::test_a_loop_that_is_closed_by_another_thread_returns_nothing_of_another_topic",),
    ),
    Mutant(
        "records count as handed out before they are",
        "client/consume/read_engine.py E2",
        (
            (
                CURSOR,
                "        self.handed = HandedOut(before, end, iter(found), offsets, len(records))\n",
                "        self.handed = HandedOut(end, end)\n",
            ),
        ),
        (f"{ENGINE_TESTS}::test_records_count_as_handed_out_one_by_one_or_all_at_once",),
    ),
    Mutant(
        "a partition keeps its turn when its chunk is used up",
        "client/consume/read_engine.py E3",
        ((CURSOR, "            self.is_used_up = True  # once that is handed out\n", ""),),
        ("tests/client/test_turns.py::test_a_partition_is_read_while_another_one_stays_busy",),
    ),
    Mutant(
        "pausing a partition changes whose turn it is",
        "client/consume/read_engine.py E3",
        ((ENGINE, "(not cursor.has_more, cursor.last_read)", "(not cursor.has_more, cursor.index)"),),
        (f"{ENGINE_TESTS}::test_of_k_partitions_that_are_fed_for_ever_each_is_returned_within_k_chunks",),
    ),
    Mutant(
        "a reading thread that comes back late leaves its files open",
        "client/consume/read_engine.py E4",
        (
            (
                ENGINE,
                "                if self._is_closed:\n                    self._close_files()\n",
                "                pass\n",
            ),
        ),
        (f"{ENGINE_TESTS}::test_close_does_not_wait_for_ever_and_the_reading_thread_closes_what_is_open",),
    ),
    Mutant(
        "a close does not end a wait",
        "client/consume/read_engine.py E5",
        (
            (
                ENGINE,
                "    def interrupt(self) -> None:\n        self._poller.interrupt()\n",
                "    def interrupt(self) -> None:\n        pass\n",
            ),
        ),
        (f"{ENGINE_TESTS}::test_an_interrupt_ends_a_wait_and_is_not_lost_if_it_comes_before",),
    ),
    Mutant(
        "an interrupt leaves the decoder ahead of the position",
        "client/consume/cursor.py",
        ((CURSOR, "        if decoder.offset != self._decoded:\n", "        if False:\n"),),
        ("tests/client/test_turns.py::test_an_interrupted_poll_loses_nothing",),
    ),
    Mutant(
        "a slow loop of a member takes its whole chunk",
        "client/consumer.py: a loop looks after its group",
        (("src/klamm/client/consumer.py", " or time.monotonic() >= due:\n", ":\n"),),
        ("tests/client/test_turns.py::test_a_slow_loop_stays_a_member",),
    ),
    Mutant(
        "Ctrl-C makes a bounded read a short one",
        "client/interrupt.py",
        (("src/klamm/client/interrupt.py", "        if self._is_bounded or threading", "        if threading"),),
        ("tests/client/test_bounded_reads.py::test_ctrl_c_never_makes_a_bounded_read_a_short_one",),
    ),
    Mutant(
        "a worker that an exception ends keeps its record",
        "client/tasks.py: the reader never waits for a worker that is gone",
        ((WORKERS, "            self._tasks.fail(number, error)\n", "            self._tasks.fail(None, error)\n"),),
        (
            "tests/client/test_worker_interrupts.py::test_an_exception_from_outside_ends_a_worker_and_nobody_waits_for_it",
        ),
    ),
    Mutant(
        "a thread that was just started gets an exception that was meant for its parent",
        "disk/threads.py",
        (("src/klamm/disk/threads.py", "        began = (_do_nothing, ", "        began = (int, "),),
        ("tests/disk/test_threads.py::test_a_thread_begins_though_an_exception_comes_to_the_one_that_starts_it",),
    ),
    Mutant(
        "klamm tail commits a batch before it is printed",
        "guide/command-line.md: what was printed, the group has read",
        ((TAIL, f"        {FLUSH}\n        commit(batch)\n", f"        commit(batch)\n        {FLUSH}\n"),),
        (TAIL_TEST,),
    ),
    Mutant(
        "klamm tail --count commits its last record before it is printed",
        "guide/command-line.md: what was printed, the group has read",
        (
            (
                TAIL,
                f"                {FLUSH}\n                commit(record)\n",
                f"                commit(record)\n                {FLUSH}\n",
            ),
        ),
        (TAIL_TEST,),
    ),
    Mutant(
        "a scan looks at the end of a partition when it comes to it",
        "arrow/scan.py: a stream is of one moment",
        (
            (
                "src/klamm/arrow/scan.py",
                f"ranges = [{RANGES}]",
                f"ranges = ({RANGES})",
            ),
        ),
        ("tests/arrow/test_scan.py::test_a_stream_ends_in_every_partition_where_it_ended_when_the_stream_began",),
    ),
    Mutant(
        "auto-commit includes partitions that the member has lost",
        "client/commits.py: a partition that was lost is committed by its new owner",
        (
            (
                COMMITS,
                " for place, entry in entries.items() if member.owns(*place)}",
                " for place, entry in entries.items()}",
            ),
        ),
        ("tests/client/test_commits.py::test_auto_commit_leaves_out_partitions_that_were_lost",),
    ),
    Mutant(
        "a batch from before a partition was lost and came back can be committed",
        "client/commits.py: the ownership epoch of a batch",
        ((COMMITS, "            if entry.epoch is not None and self", "            if False and self"),),
        (f"{GROUP_TESTS}::test_a_batch_from_before_a_loss_cannot_be_committed_when_the_partition_is_back",),
    ),
    Mutant(
        "a member that lost its partitions is not told",
        "guide/consuming.md: on_lost",
        (("src/klamm/client/sharing.py", "            _call(self.on_lost, lost)\n", ""),),
        (f"{GROUP_TESTS}::test_a_member_that_hangs_loses_its_partitions_and_cannot_commit",),
    ),
    Mutant(
        "the partitions of a named member that is gone are shared out at once",
        "client/membership.py M3",
        (("src/klamm/client/membership.py", "        if now - since < row.rejoin_ms:\n", "        if False:\n"),),
        (f"{GROUP_TESTS}::test_a_named_member_that_is_gone_keeps_its_share_until_it_is_late",),
    ),
    Mutant(
        "workers commit past a record that is not done",
        "client/workers.py W1",
        ((WORKERS, "        while tasks and tasks[0].done:\n", "        while tasks:\n"),),
        (f"{WORKER_TESTS}::test_an_error_that_stops_leaves_committed_what_is_done_before_it",),
    ),
    Mutant(
        "workers give a partition away without committing what is done of it",
        "client/workers.py W2",
        ((WORKERS, "        self._commit(places)\n        self.lost(places)\n", "        self.lost(places)\n"),),
        (f"{WORKER_TESTS}::test_a_partition_goes_to_another_member_when_what_runs_of_it_is_done",),
    ),
    Mutant(
        "workers give a partition away while a handler works on it",
        "client/workers.py W2",
        (
            (
                WORKERS,
                "            while not tasks.wait(lambda: not tasks.running(places), 60.0):\n",
                "            while False:\n",
            ),
        ),
        (f"{WORKER_TESTS}::test_a_partition_goes_to_another_member_when_what_runs_of_it_is_done",),
    ),
    Mutant(
        "a row of SqlOffsets is set whatever its epoch",
        "client/sql_offsets.py O4",
        (
            (
                "src/klamm/client/sql_offsets.py",
                "self._database.run(_UPDATE + _AND_EPOCH, (*end, *key, *loaded))",
                "self._database.run(_UPDATE, (*end, *key, begin))",
            ),
        ),
        ("tests/client/test_sql_offsets.py::test_a_row_ahead_of_the_log_is_set_from_exactly_what_was_loaded",),
    ),
    Mutant(
        "a follower of a table does not catch up with its maintainer",
        "guide/tables.md: a read sees what was committed before it",
        (("src/klamm/client/materialised.py", "            rocks.catch_up()\n", "            pass\n"),),
        ("tests/client/test_table_processes.py::test_followers_see_what_was_committed_before_they_read",),
    ),
    Mutant(
        "a follower of a table does not wait for its maintainer",
        "guide/tables.md: a read sees what was committed before it",
        (
            (
                "src/klamm/client/materialised.py",
                "            if self.applying.places[each.place].position.offset < each.end:\n",
                "            if self.maintains and self.applying.places[each.place].position.offset < each.end:\n",
            ),
        ),
        ("tests/client/test_table_processes.py::test_a_stopped_maintainer_makes_followers_wait_and_say_so",),
    ),
    Mutant(
        "flush does not raise what went wrong",
        "guide/producing.md: errors of a batch",
        (
            (
                "src/klamm/client/producer.py",
                ' within {timeout} s")\n        with self._mutex:\n            self._raise_failed()\n',
                ' within {timeout} s")\n',
            ),
        ),
        ("tests/client/test_producer.py::test_a_batch_that_fails_is_told_by_flush_close_and_exit",),
    ),
    Mutant(
        "close does not close the lanes",
        "client/producer.py P7",
        (
            (
                PRODUCER,
                "                    road.lane.close()\n                self._mutex.notify_all()\n",
                "                    pass\n                self._mutex.notify_all()\n",
            ),
            (PRODUCER, "            road.lane.close()\n        return not", "            pass\n        return not"),
        ),
        (f"{END_TESTS}::test_a_send_that_comes_too_late_raises_and_is_not_lost_silently",),
    ),
    Mutant(
        "the thread of a producer holds it for as long as it lives",
        "client/producer.py: asleep, the thread refers to nothing but the monitor",
        (
            (
                PRODUCER,
                "                    self._anchor.producer = None\n                    return\n",
                (
                    "                    if self._closed:\n"
                    "                        self._anchor.producer = None\n"
                    "                        return\n"
                ),
            ),
        ),
        (f"{END_TESTS}::test_a_dropped_producer_leaves_no_thread_and_what_was_sent_is_delivered",),
    ),
    Mutant(
        "a producer's thread that sleeps is not told of the next record before it is sent",
        "client/producer.py: a lane takes records only while the thread is awake",
        ((PRODUCER, "            self._wake()\n            lane.open()\n", "            lane.open()\n"),),
        ("tests/client/test_producer.py::test_a_lone_record_is_delivered_after_linger_ms",),
    ),
    Mutant(
        "the send that fills the buffer leaves open batches open",
        "client/producer.py P6",
        (
            (
                PRODUCER,
                "            if self._memory.is_full:\n                self._take_all()\n",
                "            if False:\n                pass\n",
            ),
        ),
        ("tests/client/test_producer.py::test_open_batches_of_many_partitions_stay_within_the_buffer",),
    ),
    Mutant(
        "flush waits in a callback of a delivery",
        "guide/producing.md: flush and close are refused in a callback",
        (("src/klamm/client/sender.py", "        return get_ident() in self._answering\n", "        return False\n"),),
        (f"{END_TESTS}::test_what_waits_for_deliveries_is_refused_in_a_callback",),
    ),
    Mutant(
        "a redriven record has the time of its redrive",
        "guide/workers-and-dead-letters.md: with the time they had",
        ((LETTERS, "headers=headers, timestamp=time_ms)", "headers=headers)"),),
        (f"{LETTER_TESTS}::test_a_redriven_record_has_the_time_it_had",),
    ),
    Mutant(
        "a purge removes letters that were not redriven",
        "client/dead_letters.py: up to the first letter that was not redriven",
        (
            (
                LETTERS,
                "                    start = record.offset\n                    break\n",
                "                    continue\n",
            ),
        ),
        (f"{LETTER_TESTS}::test_purge_removes_what_was_redriven_up_to_the_first_letter_that_was_not",),
    ),
    Mutant(
        "a letter that was purged is put back once more",
        "client/dead_letters.py: what lies before the start of the log is never put back",
        ((LETTERS, " or letter.offset < self._starts[letter.partition]", ""),),
        (f"{LETTER_TESTS}::test_a_letter_that_was_redriven_and_purged_meanwhile_is_left_alone",),
    ),
    Mutant(
        "a redrive does not look at the notes again",
        "client/dead_letters.py: the notes are read again",
        ((LETTERS, "        self.read()\n        return 0 if last", "        return 0 if last"),),
        (f"{LETTER_TESTS}::test_a_letter_that_another_redrive_took_meanwhile_is_left_alone",),
    ),
    Mutant(
        "a transaction takes records without a key for a compacted topic",
        "client/transaction.py: refused at send",
        (
            (
                "src/klamm/client/transaction.py",
                '            keyed="compact" in opened.topic.settings.cleanup_policy,\n',
                "",
            ),
        ),
        ("tests/client/test_transaction.py::test_a_record_without_a_key_is_refused_by_send_if_the_topic_is_compacted",),
    ),
    Mutant(
        "a scan reads a partition as often as it is named",
        "arrow/scan.py",
        (("src/klamm/arrow/scan.py", "    return list(dict.fromkeys(numbers))\n", "    return numbers\n"),),
        ("tests/arrow/test_scan.py::test_a_partition_named_twice_is_read_once",),
    ),
]
