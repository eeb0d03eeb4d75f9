"""Mutants of what programs use: consumers, groups, workers, producers, tables, scans, the command line."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COMMITS = "src/klamm/client/groups/commits.py"
WORKERS = "src/klamm/client/work/workers.py"
TASKS = "src/klamm/client/work/tasks.py"
PROCESS = "src/klamm/client/work/worker_process.py"
INTERRUPT = "src/klamm/client/consume/interrupt.py"
OUTCOMES = "src/klamm/client/work/outcomes.py"
THREADS = "src/klamm/client/work/thread_workers.py"
ASYNC = "src/klamm/client/work/async_workers.py"
RUN_OPTIONS = "src/klamm/client/work/run_options.py"
ENGINE = "src/klamm/client/consume/log_engine.py"
SESSION = "src/klamm/client/consume/session.py"
CURSOR = "src/klamm/client/consume/cursor.py"
ENGINE_TESTS = "tests/client/test_read_engine.py"
ONE_BATCH_TEST = (
    "tests/client/test_bounded_reads.py::test_the_process_has_memory_for_one_large_batch_whatever_their_sizes"
)
CLOSING_TESTS = "tests/client/test_closing.py"
TAIL = "src/klamm/cli/tail.py"
PRODUCER = "src/klamm/client/produce/producer.py"
SENDER = "src/klamm/client/produce/sender.py"
INTERRUPTS = "tests/client/test_producer_interrupts.py"
AT_ANY_POINT = f"{INTERRUPTS}::test_an_interrupt_at_any_point_of_send_loses_no_batch_and_doubles_none"
LETTERS = "src/klamm/client/work/dead_letters.py"
END_TESTS = "tests/client/test_producer_end.py"
LETTER_TESTS = "tests/client/test_dead_letters.py"
GROUP_TESTS = "tests/client/test_groups.py"
WORKER_TESTS = "tests/client/test_workers.py"
HUNG_TESTS = "tests/client/test_hung_workers.py"
SIGNAL_TESTS = "tests/client/test_worker_signals.py"
TAIL_TEST = "tests/cli/test_tail.py::test_a_group_does_not_move_past_what_could_not_be_printed"
RANGES = "(each, range_in(each, start, end, committed=self._committed)) for each in opened"
WHERE = "src/klamm/where.py"
FLUSH = "sys.stdout.buffer.flush()"

MUTANTS = [
    Mutant(
        "a batch that an interrupt came after is appended again",
        "client/produce/sender.py SND2",
        ((SENDER, "if batch is not None and patch.leader_epoch_of(batch) >= 0:", "if False:"),),
        (AT_ANY_POINT,),
    ),
    Mutant(
        "a batch that was noted is taken again after an interrupt",
        "client/produce/sender.py SND2",
        (
            (SENDER, "            or delivery in self._completed\n", ""),
            (SENDER, "            delivery.done\n            or ", "            "),
        ),
        (AT_ANY_POINT,),
    ),
    Mutant(
        "a batch leaves the producer before it is appended",
        "client/produce/sender.py SND2",
        (
            (
                PRODUCER,
                "                number, builder, delivery = full[0]\n",
                "                number, builder, delivery = full.pop(0)\n",
            ),
            (PRODUCER, "                del full[0]\n", ""),
        ),
        (AT_ANY_POINT,),
    ),
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
                "        self.handed = found\n        return found if found.has_more else None\n",
                "        self.handed = found.part(found.end, 0)\n        return found if found.has_more else None\n",
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
        "each large batch of zstd is decompressed into memory of its own",
        "batch/batch_memory.py BMM1",
        ((CURSOR, "partition.number, BatchMemory())", "partition.number)"),),
        (ONE_BATCH_TEST,),
    ),
    Mutant(
        "a partition holds the memory of a batch while another one has the turn",
        "batch/batch_memory.py BMM1",
        ((ENGINE, "if turns[0] is not cursor:", "if False:"),),
        (ONE_BATCH_TEST,),
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
        ((CURSOR, "        elif self.decoder.offset != self._decoded:", "        elif False:"),),
        ("tests/client/test_turns.py::test_an_interrupted_poll_loses_nothing",),
    ),
    Mutant(
        "a slow loop of a member takes its whole chunk",
        "client/consume/consumer.py: a loop looks after its group",
        (("src/klamm/client/consume/consumer.py", " or time.monotonic() >= due:\n", ":\n"),),
        ("tests/client/test_turns.py::test_a_slow_loop_stays_a_member",),
    ),
    Mutant(
        "a second thread that closes a consumer does not wait for the first one",
        "client/consume/session.py: close",
        ((SESSION, "self._closing, 0 if self._is_waited_for() else TURN_S", "self._closing, 0"),),
        (f"{CLOSING_TESTS}::test_a_second_thread_that_closes_a_consumer_returns_when_it_is_closed",),
    ),
    Mutant(
        "Ctrl-C makes a bounded read a short one",
        "client/consume/interrupt.py",
        (
            (
                "src/klamm/client/consume/interrupt.py",
                "        if self._is_bounded or threading",
                "        if threading",
            ),
        ),
        ("tests/client/test_bounded_reads.py::test_ctrl_c_never_makes_a_bounded_read_a_short_one",),
    ),
    Mutant(
        "a worker that an exception ends keeps its record",
        "client/work/tasks.py: the reader never waits for a worker that is gone",
        ((THREADS, "            self._tasks.fail(number, error)\n", "            self._tasks.fail(None, error)\n"),),
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
        "a consumer that starts an hour ago means another hour for each partition",
        "klamm/where.py: how long ago is fixed when a door is opened",
        ((SESSION, "self._start = fixed(start, core.heads.wall_ms())\n", "self._start = start\n"),),
        ("tests/test_where.py::test_the_moment_of_a_duration_is_fixed_when_a_consumer_is_made",),
    ),
    Mutant(
        "a partition that is added is read from its latest record on",
        "guide/consuming.md: what to read",
        ((WHERE, '    if is_new and where._kind not in ("time", "ago"):\n', "    if False:\n"),),
        ("tests/test_where.py::test_a_partition_that_is_added_later_is_read_from_its_first_record",),
    ),
    Mutant(
        "a number that may be milliseconds is taken for an offset",
        "guide/command-line.md: a bare number is an offset",
        ((WHERE, "if not match[1] and len(match[2]) > _LONGEST_OFFSET:", "if False:"),),
        ("tests/test_where.py::test_a_long_number_as_text_is_refused_with_both_ways_to_write_it",),
    ),
    Mutant(
        "a consumer skips records that have expired without being told to",
        "guide/consuming.md: offsets that are gone",
        ((CURSOR, 'if reset not in ("earliest", "latest"):', 'if reset == "error":'),),
        ("tests/client/test_commits.py::test_a_committed_offset_that_is_not_there_any_more_follows_the_policy",),
    ),
    Mutant(
        "a tail that follows begins at the end of the log",
        "client/consume/tail.py: a consumer that starts there goes on without a gap",
        (
            (
                "src/klamm/client/consume/tail.py",
                "Position(offsets.stop) for name, offsets in ranges.items()",
                "Position(partition.ends().end) for name, partition in partitions.items()",
            ),
        ),
        ("tests/test_where.py::test_a_history_ends_before_a_transaction_that_is_open",),
    ),
    Mutant(
        "auto-commit includes partitions that the member has lost",
        "client/groups/commits.py: a partition that was lost is committed by its new owner",
        (
            (
                COMMITS,
                " for tp, entry in entries.items() if member.owns(*tp)}",
                " for tp, entry in entries.items()}",
            ),
        ),
        ("tests/client/test_commits.py::test_auto_commit_leaves_out_partitions_that_were_lost",),
    ),
    Mutant(
        "a batch from before a partition was lost and came back can be committed",
        "client/groups/commits.py: the ownership epoch of a batch",
        ((COMMITS, "            if entry.epoch is not None and self", "            if False and self"),),
        (f"{GROUP_TESTS}::test_a_batch_from_before_a_loss_cannot_be_committed_when_the_partition_is_back",),
    ),
    Mutant(
        "a member that lost its partitions is not told",
        "guide/consuming.md: on_lost",
        (("src/klamm/client/groups/group_session.py", "            _call(self.on_lost, lost)\n", ""),),
        (f"{GROUP_TESTS}::test_a_member_that_hangs_loses_its_partitions_and_cannot_commit",),
    ),
    Mutant(
        "the partitions of a named member that is gone are shared out at once",
        "client/groups/membership.py MEM3",
        (
            (
                "src/klamm/client/groups/membership.py",
                "        if now - since < row.rejoin_ms:\n",
                "        if False:\n",
            ),
        ),
        (f"{GROUP_TESTS}::test_a_named_member_that_is_gone_keeps_its_share_until_it_is_late",),
    ),
    Mutant(
        "workers commit past a record that is not done",
        "client/work/workers.py WRK1",
        ((WORKERS, "        while tasks and tasks[0].done:\n", "        while tasks:\n"),),
        (f"{WORKER_TESTS}::test_an_error_that_stops_leaves_committed_what_is_done_before_it",),
    ),
    Mutant(
        "workers give a partition away without committing what is done of it",
        "client/work/workers.py WRK2",
        ((WORKERS, "        self._commit(tps)\n        self.lost(tps)\n", "        self.lost(tps)\n"),),
        (f"{WORKER_TESTS}::test_a_partition_goes_to_another_member_when_what_runs_of_it_is_done",),
    ),
    Mutant(
        "workers give a partition away while a handler works on it",
        "client/work/workers.py WRK2",
        (
            (
                WORKERS,
                "            while not tasks.wait(lambda: not tasks.running(tps), self._look_s()):\n",
                "            while False:\n",
            ),
        ),
        (f"{WORKER_TESTS}::test_a_partition_goes_to_another_member_when_what_runs_of_it_is_done",),
    ),
    Mutant(
        "a rebalance waits for a hung handler",
        "client/work/workers.py WRK6",
        (
            (
                WORKERS,
                "                if time.monotonic() >= deadline or self._is_hung():\n",
                "                if False:\n",
            ),
        ),
        (f"{HUNG_TESTS}::test_a_rebalance_waits_for_a_hung_handler_no_longer_than_grace",),
    ),
    Mutant(
        "a member with a hung handler stays in its group",
        "client/work/workers.py WRK6",
        ((WORKERS, "        if self._sharing is None or not hung:\n", "        if True:\n"),),
        (f"{HUNG_TESTS}::test_a_hung_handler_gives_its_partitions_to_the_others_of_its_group",),
    ),
    Mutant(
        "a record that fails after its partition was lost is still the loser's",
        "client/work/workers.py WRK2",
        ((OUTCOMES, "        if task.is_forgotten or not self._owns(task.tp):\n", "        if False:\n"),),
        (f"{HUNG_TESTS}::test_a_record_that_fails_after_its_partition_was_lost_is_not_the_losers",),
    ),
    Mutant(
        "a handler that ends after its run makes a dead letter",
        "client/work/workers.py WRK2",
        ((WORKERS, "(None)\n        self._tasks.close()\n", "(None)\n"),),
        (f"{HUNG_TESTS}::test_a_handler_that_ends_after_the_run_counts_for_nothing",),
    ),
    Mutant(
        "what a handler that was replaced comes to counts",
        "client/work/thread_workers.py: counts for nothing",
        ((TASKS, "            self._replaced.add(worker)\n", ""),),
        (f"{HUNG_TESTS}::test_a_thread_that_was_replaced_cannot_end_the_run",),
    ),
    Mutant(
        "threads that hang are replaced without end",
        "client/work/thread_workers.py: one more ends the run",
        ((THREADS, "            if len(self._left_behind) > self._count:\n", "            if False:\n"),),
        (f"{HUNG_TESTS}::test_threads_that_hang_are_no_more_than_workers",),
    ),
    Mutant(
        "SIGTERM kills a run",
        "client/consume/interrupt.py: like Ctrl-C",
        ((INTERRUPT, "_SIGNALS if self._is_call else (signal.SIGINT,)", "(signal.SIGINT,)"),),
        (f"{SIGNAL_TESTS}::test_a_signal_ends_a_run_quietly",),
    ),
    Mutant(
        "a worker process dies of a signal to all processes while it starts",
        "client/work/worker_process.py: from its first instruction on",
        (
            (
                PROCESS,
                "    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)\n",
                "    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())\n",
            ),
        ),
        (f"{SIGNAL_TESTS}::test_a_signal_to_all_processes_while_workers_start_is_no_error",),
    ),
    Mutant(
        "a worker process that is killed while it starts goes on",
        "client/work/worker_process.py: also while it starts",
        ((PROCESS, "        if self._is_killed:  # `kill` may", "        if False:  # `kill` may"),),
        (f"{HUNG_TESTS}::test_a_process_that_is_killed_while_it_starts_does_not_handle_anything",),
    ),
    Mutant(
        "an async handler that takes too long goes on",
        "client/work/async_workers.py: is cancelled",
        ((ASYNC, "asyncio.timeout(self._context.timeout_s)", "asyncio.timeout(None)"),),
        ("tests/client/test_async_workers.py::test_a_coroutine_that_takes_too_long_is_cancelled",),
    ),
    Mutant(
        "errors are tried again whatever their type",
        "client/work/run_options.py",
        (
            (
                RUN_OPTIONS,
                "        if not isinstance(error, self.retry_on) or isinstance(error, self.give_up_on):\n",
                "        if False:\n",
            ),
        ),
        ("tests/client/test_worker_hooks.py::test_errors_are_tried_again_by_their_type",),
    ),
    Mutant(
        "a row of SqlOffsets is set whatever its epoch",
        "client/groups/sql_offsets.py O4",
        (
            (
                "src/klamm/client/groups/sql_offsets.py",
                "self._database.run(_UPDATE + _AND_EPOCH, (*end, *key, *loaded))",
                "self._database.run(_UPDATE, (*end, *key, begin))",
            ),
        ),
        ("tests/client/test_sql_offsets.py::test_a_row_ahead_of_the_log_is_set_from_exactly_what_was_loaded",),
    ),
    Mutant(
        "a write to a table leaves its serde out",
        "guide/tables.md: keys and values are what serde= and key_serde= make of them",
        (
            (
                "src/klamm/client/table/table.py",
                '        serdes = {"serde": self._serde, "key_serde": self._key_serde}\n',
                "        serdes: dict[str, Any] = {}\n",
            ),
        ),
        ("tests/client/test_table.py::test_what_is_put_is_appended_and_every_later_read_sees_it",),
    ),
    Mutant(
        "a closed table can be written",
        "reference/errors.md: Closed",
        (
            (
                "src/klamm/client/table/table.py",
                "        self._shared.check_usable()\n        if key is None:\n",
                "        if key is None:\n",
            ),
        ),
        ("tests/client/test_table.py::test_what_cannot_be_put_is_refused",),
    ),
    Mutant(
        "a loop over a closed consumer is empty",
        "reference/errors.md: Closed",
        (
            (
                "src/klamm/client/consume/consumer.py",
                'or Ctrl-C."""\n        session = self._session\n        session.check_usable()\n',
                'or Ctrl-C."""\n        session = self._session\n',
            ),
        ),
        ("tests/client/test_consumer.py::test_a_closed_consumer_says_so",),
    ),
    Mutant(
        "a follower of a table does not catch up with its maintainer",
        "guide/tables.md: a read sees what was committed before it",
        (("src/klamm/client/table/materialised.py", "            db.catch_up()\n", "            pass\n"),),
        ("tests/client/test_table_processes.py::test_followers_see_what_was_committed_before_they_read",),
    ),
    Mutant(
        "a follower of a table does not wait for its maintainer",
        "guide/tables.md: a read sees what was committed before it",
        (
            (
                "src/klamm/client/table/materialised.py",
                "            if self.updater.partitions[each.log_index].position.offset < each.end:\n",
                "            if self.maintains and self.updater.partitions[each.log_index].position.offset < each.end:\n",  # noqa: E501
            ),
        ),
        ("tests/client/test_table_processes.py::test_a_stopped_maintainer_makes_followers_wait_and_say_so",),
    ),
    Mutant(
        "flush does not raise what went wrong",
        "guide/producing.md: errors of a batch",
        (
            (
                "src/klamm/client/produce/producer.py",
                ' within {timeout_s:g} s")\n        with self._mutex:\n            self._raise_failed()\n',
                ' within {timeout_s:g} s")\n',
            ),
        ),
        ("tests/client/test_producer.py::test_a_batch_that_fails_is_told_by_flush_close_and_exit",),
    ),
    Mutant(
        "flush does not wait for callbacks",
        "guide/producing.md: flush waits until callbacks were called",
        ((PRODUCER, " and delivery.wait_for_callbacks(left())", ""),),
        (f"{END_TESTS}::test_callbacks_were_called_when_flush_or_close_returns",),
    ),
    Mutant(
        "close does not close the accumulators",
        "client/produce/producer.py SND7",
        (
            (
                PRODUCER,
                "                    producer_topic.accumulator.close()\n                self._mutex.notify_all()\n",
                "                    pass\n                self._mutex.notify_all()\n",
            ),
            (
                PRODUCER,
                "            producer_topic.accumulator.close()\n        return not",
                "            pass\n        return not",
            ),
        ),
        (f"{END_TESTS}::test_a_send_that_comes_too_late_raises_and_is_not_lost_silently",),
    ),
    Mutant(
        "the thread of a producer holds it for as long as it lives",
        "client/produce/producer.py: asleep, the thread refers to nothing but the monitor",
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
        "client/produce/producer.py: an accumulator takes records only while the thread is awake",
        ((PRODUCER, "            self._wake()\n            accumulator.open()\n", "            accumulator.open()\n"),),
        ("tests/client/test_producer.py::test_a_lone_record_is_delivered_after_linger_ms",),
    ),
    Mutant(
        "the send that fills the buffer leaves open batches open",
        "client/produce/producer.py SND6",
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
        (
            (
                SENDER,
                "        return self._in_callback.is_mine\n",
                "        return False\n",
            ),
        ),
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
        "client/work/dead_letters.py: up to the first letter that was not redriven",
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
        "client/work/dead_letters.py: what lies before the start of the log is never put back",
        ((LETTERS, " or letter.offset < self._starts[letter.partition]", ""),),
        (f"{LETTER_TESTS}::test_a_letter_that_was_redriven_and_purged_meanwhile_is_left_alone",),
    ),
    Mutant(
        "a redrive does not look at the notes again",
        "client/work/dead_letters.py: the notes are read again",
        ((LETTERS, "        self.read_stable()\n        return 0 if last", "        return 0 if last"),),
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
