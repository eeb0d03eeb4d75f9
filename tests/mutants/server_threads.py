"""Mutants of what the server's threads do: syncs, transactions side by side, changes of the catalog."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SYNC_QUEUE = "src/klamm/kafka/sync_queue.py"
SYNC_THREAD = "src/klamm/log/_sync_thread.pxi"
GROUP_COMMIT = "src/klamm/store/group_commit.py"
RESOLVER = "src/klamm/store/transaction_resolver.py"
COORDINATOR = "src/klamm/kafka/transaction_coordinator.py"
TOPIC_CHANGES = "src/klamm/store/topic_changes.py"
DIRECTORY = "src/klamm/store/directory.py"
TRANSACTION_QUEUE = "src/klamm/kafka/transaction_queue.py"
QUEUE_TESTS = "tests/kafka/test_sync_queue.py"
THREAD_TESTS = "tests/log/test_sync_thread.py"
TRANSACTION_QUEUE_TESTS = "tests/kafka/test_transaction_queue.py"
ORDINARY = "src/klamm/kafka/apis/ordinary_produce.py"
SESSION = "src/klamm/kafka/session.py"
CHANNEL = "src/klamm/kafka/channel.py"
NATIVE_PRODUCE = "src/klamm/kafka/_produce.pyx"
FRAME = "src/klamm/kafka/_frame.pxi"
SYNC_THREAD = "src/klamm/log/_sync_thread.pxi"
REPLY_TESTS = "tests/log/test_sync_replies.py"
PRODUCE_TESTS = "tests/kafka/test_produce.py"
ORDINARY_TESTS = "tests/kafka/test_ordinary_produce.py"
GROUP_INTERRUPT = "test_an_interrupt_is_for_the_thread_that_commits_and_each_write_of_the_others_is_committed_once"
GROUP_TESTS = "tests/store/test_group_commit.py"
COORDINATOR_TESTS = "tests/kafka/transactions/test_transaction_coordinator_threads.py"
TOPIC_TESTS = "tests/store/test_topic_changes.py"

GROUPS_API = "src/klamm/kafka/apis/groups.py"
LOOP_APIS_TESTS = "tests/kafka/test_loop_apis.py"

MUTANTS = [
    Mutant(
        "a handler reads groups from SQLite on the loop",
        "what may block is not reached from a handler that runs on the loop",
        (
            (
                GROUPS_API,
                "        for names in pieces(await broker.catalog(stored.names)):\n",
                "        for names in pieces(stored.names()):\n",
            ),
        ),
        (f"{LOOP_APIS_TESTS}::test_no_request_of_any_api_waits_on_the_loop",),
    ),
    Mutant(
        "a sync that could not be done counts as done",
        "kafka/sync_queue.py SYQ1",
        ((SYNC_QUEUE, "            if result == 0:\n", "            if True:\n"),),
        (f"{QUEUE_TESTS}::test_those_who_come_while_a_sync_runs_share_the_next",),
    ),
    Mutant(
        "a request that comes while a sync runs is answered with it",
        "kafka/sync_queue.py SYQ1",
        (
            (
                SYNC_QUEUE,
                "        if sync is not None and sync.is_started:\n",
                "        if sync is not None and False:\n",
            ),
        ),
        (f"{QUEUE_TESTS}::test_nobody_is_told_before_it_is_on_disk",),
    ),
    Mutant(
        "who waits for a sync when the server stops is told nothing",
        "kafka/sync_queue.py SYQ3",
        ((SYNC_QUEUE, "                done(_closed())\n\n\n", "                pass\n\n\n"),),
        (f"{QUEUE_TESTS}::test_who_still_waits_when_it_is_closed_is_told_so",),
    ),
    Mutant(
        "a thread tells the loop before it has synced",
        "log/_sync_thread.pxi SYN2",
        (
            (
                SYNC_THREAD,
                "            job.result = try_sync(job.writer, job.end_offset)\n",
                "            job.result = 0\n",
            ),
        ),
        (f"{THREAD_TESTS}::test_what_is_told_to_be_synced_is_on_disk",),
    ),
    Mutant(
        "the loop is told of each sync by itself",
        "log/_sync_thread.pxi SYN4",
        (
            (
                SYNC_THREAD,
                "            tells = not self.told and not is_quiet\n",
                "            tells = not is_quiet\n",
            ),
        ),
        (f"{THREAD_TESTS}::test_the_loop_is_told_once_of_all_that_is_done",),
    ),
    Mutant(
        "a thread responds to a request though the next one is here already, and waits for the beat",
        "kafka/channel.py: fd",
        ((CHANNEL, "return -1 if self._is_paused or self.reader.has_more else", "return -1 if self._is_paused else"),),
        (f"{PRODUCE_TESTS}::test_requests_that_arrive_together_do_not_wait_for_the_beat",),
    ),
    Mutant(
        "a thread responds to a request while nothing is received, and the next one waits for the beat",
        "kafka/channel.py: fd",
        (
            (
                CHANNEL,
                "return -1 if self._is_paused or self.reader.has_more else",
                "return -1 if self.reader.has_more else",
            ),
        ),
        (f"{PRODUCE_TESTS}::test_a_request_behind_one_that_arrived_during_a_sync_does_not_wait_for_the_beat",),
    ),
    Mutant(
        "a batch begins a segment on the event loop",
        "internals/server.md: the loop never waits for a disk",
        (
            (
                "src/klamm/log/_append.pxi",
                "    if quick and needs_files(w, &now, batch, size):\n",
                "    if quick and False:\n",
            ),
        ),
        ("tests/log/test_partition.py::test_an_append_that_may_not_wait_makes_no_files",),
    ),
    Mutant(
        "requests of one transactional id take all threads for transactions",
        "kafka/transaction_queue.py TRQ1",
        ((TRANSACTION_QUEUE, "        if waiting is not None:\n", "        if False:\n"),),
        (f"{TRANSACTION_QUEUE_TESTS}::test_calls_of_one_id_that_are_stuck_keep_no_other_waiting",),
    ),
    Mutant(
        "a request that was cancelled lets the next of its transactional id begin beside it",
        "kafka/transaction_queue.py TRQ1",
        (
            (
                TRANSACTION_QUEUE,
                "        self._submit(call.function).add_done_callback(partial(self._end, call))\n",
                """        inner = self._submit(call.function)
        inner.add_done_callback(partial(self._end, call))
        call.done.add_done_callback(lambda done: done.cancelled() and inner.cancel())
""",
            ),
        ),
        (f"{TRANSACTION_QUEUE_TESTS}::test_a_call_runs_whatever_became_of_those_before_it",),
    ),
    Mutant(
        "requests run outside of the queue of their transactional id",
        "kafka/transaction_queue.py TRQ1",
        (("src/klamm/kafka/broker.py", "        if name is None:\n", "        if True:\n"),),
        (f"{TRANSACTION_QUEUE_TESTS}::test_an_init_of_a_transactional_id_waits_for_the_one_before_it",),
    ),
    Mutant(
        "of transactions that end together, one counts as marked though its log was held",
        "kafka/transaction_coordinator.py TCO1",
        ((RESOLVER, "        return [is_marked and is_synced(some)", "        return [is_synced(some)"),),
        (f"{COORDINATOR_TESTS}::test_of_those_that_end_together_one_whose_log_is_held_is_left_to_be_ended_alone",),
    ),
    Mutant(
        "of transactions that end together, one is over before its markers are on disk",
        "kafka/transaction_coordinator.py TCO1",
        ((RESOLVER, "        return [is_marked and is_synced(some)", "        return [is_marked"),),
        (f"{COORDINATOR_TESTS}::test_together_none_is_decided_before_its_records_are_on_disk",),
    ),
    Mutant(
        "of transactions that end together, one is decided before its records are on disk",
        "kafka/transaction_coordinator.py TCO1",
        ((COORDINATOR, "strict=True) if is_synced(some)]", "strict=True)]"),),
        (f"{COORDINATOR_TESTS}::test_together_none_is_decided_before_its_records_are_on_disk",),
    ),
    Mutant(
        "of transactions that end together, one is ended though another thread is at it",
        "store/turns.py",
        (
            (
                COORDINATOR,
                "if turns.enter_context(self._turns.attempt(name)) and self._is_plain",
                "if turns.enter_context(self._turns.attempt(name)) is not None and self._is_plain",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_of_those_that_end_together_one_that_another_thread_is_at_is_left",),
    ),
    Mutant(
        "a tick writes that transactions are complete, and forgets which",
        "kafka/transaction_coordinator.py: complete is written with what comes next",
        ((COORDINATOR, "                del self._marked[row.producer_id]\n", "                pass\n"),),
        (f"{COORDINATOR_TESTS}::test_that_a_transaction_is_complete_is_written_with_the_next_one",),
    ),
    Mutant(
        "a client that comes again waits for what is marked already",
        "kafka/transaction_coordinator.py: complete is written with what comes next",
        (
            (
                "src/klamm/store/transactions.py",
                "        elif row is not None and row == marked:\n",
                "        elif False:\n",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_that_a_transaction_is_complete_is_written_with_the_next_one",),
    ),
    Mutant(
        "rows that are read again are behind what is on disk",
        "kafka/transaction_coordinator.py: complete is written with what comes next",
        ((COORDINATOR, "self._completed(row) if self._marked.get(producer_id) == row else row\n", "row\n"),),
        (f"{COORDINATOR_TESTS}::test_that_a_transaction_is_complete_is_written_with_the_next_one",),
    ),
    Mutant(
        "a write that fails takes its group with it",
        "store/group_commit.py GCM2",
        (
            (
                GROUP_COMMIT,
                "        except KlammError as error:\n            write.error = error\n            execute",
                "        except KeyError as error:\n            write.error = error\n            execute",
            ),
        ),
        (f"{GROUP_TESTS}::test_one_that_raises_is_undone_and_the_others_are_not",),
    ),
    Mutant(
        "a write that fails is committed with its group",
        "store/group_commit.py GCM2",
        ((GROUP_COMMIT, '            execute("ROLLBACK TO one_of_a_group")\n', ""),),
        (f"{GROUP_TESTS}::test_one_that_raises_is_undone_and_the_others_are_not",),
    ),
    Mutant(
        "a group is as durable as its first write",
        "store/group_commit.py GCM1",
        ((GROUP_COMMIT, "True in [write.durable for write in writes]", "writes[0].durable"),),
        (f"{GROUP_TESTS}::test_a_group_is_durable_if_one_of_it_has_to_be",),
    ),
    Mutant(
        "what a thread was committing when it was interrupted is committed again",
        "store/group_commit.py GCM4",
        ((GROUP_COMMIT, "tried if section.is_committed else ()", "()"),),
        (f"{GROUP_TESTS}::{GROUP_INTERRUPT}",),
    ),
    Mutant(
        "what a thread was committing when it was interrupted is lost",
        "store/group_commit.py GCM4",
        ((GROUP_COMMIT, "tried if section.is_committed else ()", "tried"),),
        (f"{GROUP_TESTS}::{GROUP_INTERRUPT}",),
    ),
    Mutant(
        "a tick marks what another thread is about to mark",
        "store/transactions.py T3",
        (
            (
                RESOLVER,
                "                found = (has_turn and self._resolve_id(row.producer_id)) or found\n",
                "                found = self._resolve_id(row.producer_id) or found\n",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_a_tick_does_not_mark_what_a_thread_is_about_to",),
    ),
    Mutant(
        "what came late is aborted while its producer begins again",
        "store/transactions.py T3",
        (
            (
                RESOLVER,
                "                    if has_turn:\n                        self._abort_late",
                "                    if True:\n                        self._abort_late",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_what_came_late_is_not_aborted_while_its_producer_begins_again",),
    ),
    Mutant(
        "what a thread changes while all rows are read is forgotten",
        "kafka/transaction_coordinator.py TCO3",
        (
            (
                COORDINATOR,
                "                    if producer_id not in self._changed:\n",
                "                    if True:\n",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_what_changes_while_all_is_read_again_stays_known",),
    ),
    Mutant(
        "a topic that is not what its row says is confirmed",
        "store/topic_changes.py: a reader of changes knows what one that reads all knows",
        ((DIRECTORY, "opened.topic is not topic and opened.topic != topic", "False"),),
        (f"{TOPIC_TESTS}::test_what_another_thread_has_read_since_is_not_confirmed",),
    ),
    Mutant(
        "logs of topics that have not changed wait for their settings",
        "store/topic_changes.py: a reader of changes knows what one that reads all knows",
        ((DIRECTORY, "                        partition.log.confirm(version)\n", "                        pass\n"),),
        (f"{TOPIC_TESTS}::test_logs_of_topics_that_have_not_changed_are_appended_to_at_once",),
    ),
    Mutant(
        "what an ordinary request has appended is appended again when a partition has to wait",
        "kafka/call.py: the handler does the rest",
        ((ORDINARY, "            return tuple(offsets)\n", "            return ()\n"),),
        (f"{PRODUCE_TESTS}::test_what_is_appended_before_another_partition_has_to_wait_is_appended_once",),
    ),
    Mutant(
        "a batch that the disk refused looks as if a client had chosen its offset",
        "log/partition.py append_plain: the batch is as it was",
        (("src/klamm/log/partition.py", "            batch[:8] = _NO_OFFSET", "            pass"),),
        (f"{PRODUCE_TESTS}::test_a_batch_that_the_disk_does_not_take_is_refused_with_the_error_of_the_disk",),
    ),
    Mutant(
        "a sync whose reply was sent keeps the next of its partition waiting",
        "kafka/sync_queue.py SYQ1",
        ((SYNC_QUEUE, "            self.want(sync.reply)  # it may", "            pass  # it may"),),
        (f"{QUEUE_TESTS}::test_a_sync_whose_reply_was_sent_keeps_nobody_waiting",),
    ),
    Mutant(
        "a response that a thread has sent is sent again",
        "kafka/sync_queue.py SYQ4",
        (
            (SESSION, "        if reply is not None and sent == len(response):\n", "        if False:\n"),
            (SESSION, "response[sent:]", "response"),
        ),
        (f"{PRODUCE_TESTS}::test_requests_are_answered_in_order_however_many_are_sent_at_once",),
    ),
    Mutant(
        "a reply is sent before its log is synced",
        "log/_sync_thread.pxi SYN5",
        ((SYNC_THREAD, "job.reply != NULL and job.result == 0 and", "job.reply != NULL and"),),
        (f"{REPLY_TESTS}::test_nothing_is_sent_where_the_sync_failed",),
    ),
    Mutant(
        "a reply is sent to a socket that was given up",
        "log/_sync_thread.pxi SYN5",
        ((SYNC_THREAD, "                reply.r.fd = -1\n", "                pass\n"),),
        (REPLY_TESTS,),
    ),
    Mutant(
        "the loop is not woken for a reply that it waits for",
        "log/_sync_thread.pxi SYN6",
        ((SYNC_THREAD, " and not job.reply.wanted\n", "\n"),),
        (f"{REPLY_TESTS}::test_the_loop_is_woken_for_a_reply_if_it_waits",),
    ),
    Mutant(
        "the CRC of an ordinary batch is not looked at",
        "kafka/_produce.pyx PRD1",
        ((NATIVE_PRODUCE, "    if batch.crc != klamm_crc32c(", "    if False and batch.crc != klamm_crc32c("),),
        (ORDINARY_TESTS,),
    ),
    Mutant(
        "the max_timestamp of an ordinary batch is believed",
        "kafka/_produce.pyx PRD1",
        (
            (
                NATIVE_PRODUCE,
                "batch.record_count if scan.max_timestamp == batch.max_timestamp else 0",
                "batch.record_count",
            ),
        ),
        (ORDINARY_TESTS,),
    ),
    Mutant(
        "a partition may be in an ordinary request twice",
        "kafka/_produce.pyx PRD1",
        ((NATIVE_PRODUCE, "at.p == NULL or is_repeated(self.parts, self.count)", "at.p == NULL"),),
        (ORDINARY_TESTS,),
    ),
    Mutant(
        "the response to an ordinary request lacks the log start offset",
        "kafka/_produce.pyx PRD2",
        ((NATIVE_PRODUCE, "    LOG_START_SINCE = 5\n", "    LOG_START_SINCE = 6\n"),),
        (ORDINARY_TESTS,),
    ),
    Mutant(
        "a length beyond the end of a Produce request is believed",
        "kafka/_produce.pyx PRD3",
        ((FRAME, "size < 0 or size > at.end - p:", "size < 0:"),),
        (f"{ORDINARY_TESTS}::test_it_reads_and_responds_as_the_compiled_codec_does_and_takes_no_frame_that_is_cut",),
    ),
]
