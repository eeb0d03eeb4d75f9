"""Spark at a server: tasks that write in transactions, the one decision, and records that are fetched."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ATTEMPT = "src/klamm/spark/server/attempt.py"
JOINT_DECISION = "src/klamm/store/joint_decision.py"
DECISION = "src/klamm/spark/server/decision.py"
REMOTE_STORE = "src/klamm/spark/server/remote_store.py"
STORE_LOCATION = "src/klamm/spark/pipelines/store_location.py"
LOCAL_ARCHIVE = "src/klamm/spark/pipelines/local_archive.py"
PIPELINE_TESTS = "tests/spark/pipelines/test_at_a_server.py"
JOINT_TESTS = "tests/kafka/transactions/test_joint_decisions.py"
SINK_TESTS = "tests/spark/test_server_sink.py"
ATTEMPT_TESTS = "tests/spark/test_server_attempt.py"
READER_TESTS = "tests/spark/test_server_reader.py"

MUTANTS = [
    Mutant(
        "a decision does not look at the writer's number",
        "store/joint_decision.py JNT1",
        ((JOINT_DECISION, "!= decision.last:", "== ():"),),
        (f"{JOINT_TESTS}::test_the_number_is_recorded_if_it_is_still_the_one_that_was_seen",),
    ),
    Mutant(
        "a decision records a number that is not above the last one",
        "store/once.py ONC1",
        ((JOINT_DECISION, "if last is not None and number.number <= last.number:", "if number is None:"),),
        (f"{JOINT_TESTS}::test_a_number_that_is_not_above_the_last_one_commits_nothing",),
    ),
    Mutant(
        "of several transactions those that can be are committed",
        "store/joint_decision.py JNT1",
        ((JOINT_DECISION, "            return Decided(done.outcome, name, last=last)\n", "            continue\n"),),
        (f"{JOINT_TESTS}::test_nothing_is_decided_if_one_of_them_is_over",),
    ),
    Mutant(
        "attempts that were not chosen stay open after the decision",
        "store/joint_decision.py JNT2",
        ((JOINT_DECISION, "elif row is not None and (done := step", "elif row is None and (done := step"),),
        (f"{JOINT_TESTS}::test_what_is_not_named_is_aborted_and_its_producer_fenced",),
    ),
    Mutant(
        "an attempt that has not written yet is not fenced",
        "store/joint_decision.py JNT2",
        ((JOINT_DECISION, "Fence(with_empty=True)", "Fence()"),),
        (f"{JOINT_TESTS}::test_an_attempt_that_has_not_written_yet_is_fenced_too",),
    ),
    Mutant(
        "an attempt fences another of its number that Spark may choose",
        "spark/server/decision.py SRV2",
        ((ATTEMPT, "_IDS = 4", "_IDS = 1"),),
        (
            f"{SINK_TESTS}::test_an_attempt_takes_no_transaction_from_another_of_its_number",
            f"{SINK_TESTS}::test_a_task_that_is_stopped_and_goes_on_after_the_decision_changes_nothing",
        ),
    ),
    Mutant(
        "a task that begins after the decision opens a transaction that nobody ends",
        "spark/server/decision.py SRV2",
        ((ATTEMPT, "if self._is_decided is not None and", "if not self._ids and"),),
        (
            f"{SINK_TESTS}::test_a_task_that_begins_when_its_batch_is_in_the_log_writes_nothing",
            f"{SINK_TESTS}::test_a_task_that_is_stopped_and_goes_on_after_the_decision_changes_nothing",
        ),
    ),
    Mutant(
        "a task is done before the server has the last of its rows",
        "spark/server/attempt.py",
        ((ATTEMPT, "        self._send()\n        self._complete()\n\n", "        self._send()\n\n"),),
        (f"{ATTEMPT_TESTS}::test_a_server_that_refuses_one_of_three_requests_gets_none_after_it_and_nothing_is_read",),
    ),
    Mutant(
        "a task waits for each response before it encodes the next rows",
        "spark/server/attempt.py",
        ((ATTEMPT, "            self._start()\n\n", "            self._start()\n        self._complete()\n\n"),),
        (f"{ATTEMPT_TESTS}::test_rows_are_encoded_while_the_server_is_slow_and_two_requests_are_in_memory",),
    ),
    Mutant(
        "a task that fails is aborted before what it has under way is done",
        "spark/server/attempt.py",
        ((ATTEMPT, "for sent in self._under_way:", "for sent in ():"),),
        (f"{ATTEMPT_TESTS}::test_an_attempt_that_fails_with_a_request_under_way_is_aborted_behind_it",),
    ),
    Mutant(
        "a stream that fails before a task is done leaves what it has written open",
        "spark/server/decision.py",
        (("src/klamm/spark/sink.py", "checkpoint.find_query(options.checkpoint)", "checkpoint.find_query(None)"),),
        (f"{SINK_TESTS}::test_a_stream_that_fails_before_any_task_is_done_leaves_no_transaction_open",),
    ),
    Mutant(
        "a driver whose response was lost commits again",
        "spark/server/decision.py SRV1",
        ((DECISION, "if batch is not None and batches.is_recorded(last, batch):", "if batch is None:"),),
        (f"{SINK_TESTS}::test_what_all_tasks_have_written_is_there_once_with_its_number",),
    ),
    Mutant(
        "a driver goes on expecting the row that it has written, though another has written since",
        "spark/server/decision.py SRV1",
        ((DECISION, "last, expected = expected, None", "last = expected"),),
        (f"{SINK_TESTS}::test_a_driver_asks_once_for_each_batch_and_notices_one_that_another_has_committed",),
    ),
    Mutant(
        "tasks write to a server that cannot decide",
        "spark/server/decision.py SRV3",
        ((DECISION, "if not can_decide(client):", "if not client:"),),
        (f"{SINK_TESTS}::test_a_server_that_is_not_klamms_is_refused_before_anything_is_written",),
    ),
    Mutant(
        "a pipeline writes to an Apache Kafka",
        "spark/pipelines/store_location.py",
        ((STORE_LOCATION, "if not can_decide(store.client):", "if not store.client:"),),
        (f"{PIPELINE_TESTS}::test_what_a_server_cannot_do_is_refused_before_anything_is_done",),
    ),
    Mutant(
        "tasks of an archive read a directory in the place of the server",
        "spark/pipelines/local_archive.py",
        ((LOCAL_ARCHIVE, "options.fail_on_data_loss, options.server)", "options.fail_on_data_loss)"),),
        (f"{PIPELINE_TESTS}::test_a_login_stands_behind_the_address_and_in_no_file",),
    ),
    Mutant(
        "every user may decide",
        "kafka/apis/decisions.py",
        (
            (
                "src/klamm/kafka/apis/decisions.py",
                "        for name in (request.writer, request.scope):\n",
                "        for name in ():\n",
            ),
        ),
        (f"{SINK_TESTS}::test_a_user_needs_the_right_to_decide",),
    ),
    Mutant(
        "a task hands aborted records to Spark",
        "spark/server/remote_store.py",
        ((REMOTE_STORE, "elif batch.producer_id in is_open:", "elif not is_open and batch.producer_id in is_open:"),),
        (f"{READER_TESTS}::test_aborted_records_are_left_out_wherever_a_fetch_begins_and_ends",),
    ),
    Mutant(
        "a task does not check what it has fetched",
        "spark/server/remote_store.py",
        (
            (
                REMOTE_STORE,
                "size, next_offset = verify(records, max(base, 0), False)",
                "size, next_offset = len(records), walk(records)[-1].next_offset",
            ),
        ),
        (f"{READER_TESTS}::test_bytes_that_were_damaged_are_an_error_and_never_records",),
    ),
]
