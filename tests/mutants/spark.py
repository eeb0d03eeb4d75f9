"""Mutants of the Spark sink. Their tests start no JVM."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BATCHES = "src/klamm/spark/batches.py"
PLANNING = "src/klamm/spark/planning.py"
STAGING = "src/klamm/spark/staging.py"
OFFSETS_TESTS = "tests/spark/test_offsets.py"
STREAM_TESTS = "tests/spark/test_stream.py"
PUBLISHING_TESTS = "tests/spark/test_publishing.py"
DAMAGED_TEST = f"{PUBLISHING_TESTS}::test_a_staged_file_that_is_not_what_the_task_wrote_fails_the_whole_batch"
TWO_DRIVERS_TEST = (
    f"{PUBLISHING_TESTS}::test_of_two_drivers_that_commit_one_batch_at_the_same_time_the_second_appends_nothing_visible"
)

OTHER_PLAN_TEST = f"{PUBLISHING_TESTS}::test_a_batch_that_was_planned_otherwise_under_a_number_of_the_log_is_an_error"
SAME_PLAN_TEST = (
    f"{PUBLISHING_TESTS}::"
    "test_other_records_of_the_same_plan_are_the_same_batch_in_another_run_and_another_write_in_the_same_one"
)

MUTANTS = [
    Mutant(
        "a micro-batch that is in the log is appended again",
        "spark/batches.py M1",
        ((BATCHES, "    if last is None or batch.number > last.number:\n", "    if True:\n"),),
        (f"{PUBLISHING_TESTS}::test_a_batch_that_comes_again_is_skipped_and_logged", TWO_DRIVERS_TEST),
    ),
    Mutant(
        "two drivers append one micro-batch twice",
        "spark/batches.py M1",
        ((BATCHES, "    if _is_committed(execute, batch):\n", "    if False:\n"),),
        (TWO_DRIVERS_TEST,),
    ),
    Mutant(
        "a micro-batch is skipped by its number alone",
        "spark/batches.py M4",
        (
            (
                BATCHES,
                "    if batch.number == last.number and _is_same(batch, last):\n",
                "    if batch.number == last.number:\n",
            ),
        ),
        (OTHER_PLAN_TEST,),
    ),
    Mutant(
        "an older micro-batch is skipped",
        "spark/batches.py M4",
        ((BATCHES, "    if batch.number == last.number and _is", "    if batch.number < last.number or _is"),),
        (OTHER_PLAN_TEST,),
    ),
    Mutant(
        "two writes of a micro-batch under one name are taken for one",
        "spark/batches.py M4",
        ((BATCHES, ' and (same.get("records", True) or not same.get("run"))', ""),),
        (SAME_PLAN_TEST,),
    ),
    Mutant(
        "queries of one id skip each other's micro-batches, whatever they write to",
        "spark/batches.py M4",
        (
            (BATCHES, "once.find(execute, batch.writer, batch.target) or", "once.find(execute, batch.writer, 'x') or"),
            (BATCHES, "Once(batch.writer, batch.target, batch.number,", "Once(batch.writer, 'x', batch.number,"),
        ),
        (f"{PUBLISHING_TESTS}::test_queries_of_one_id_that_write_to_different_topics_do_not_skip_for_each_other",),
    ),
    Mutant(
        "a query does not notice that an older copy of the store was put back",
        "spark/planning.py P5",
        ((PLANNING, "        if end < offset:\n", "        end = offset\n        if False:\n"),),
        (f"{OFFSETS_TESTS}::test_a_query_notices_that_an_older_copy_of_the_store_was_put_back",),
    ),
    Mutant(
        "a query that goes on after data loss skips what is new at the offsets that it had read",
        "spark/planning.py P5",
        (
            (
                PLANNING,
                "                begin = self._resumed(place, partition, start)\n                upto",
                "                upto",
            ),
        ),
        (f"{OFFSETS_TESTS}::test_a_query_notices_that_an_older_copy_of_the_store_was_put_back",),
    ),
    Mutant(
        "the first micro-batch, done again, begins where a new query would",
        "spark/planning.py P3",
        ((PLANNING, "        if end.origin is not None and start.origin is None:", "        if False:"),),
        (f"{STREAM_TESTS}::test_the_first_micro_batch_done_again_begins_where_it_began",),
    ),
    Mutant(
        "the CRC of a staged batch is not checked",
        "promise 7",
        ((STAGING, " or header.crc != crc32c(memoryview(batch)[_CRC_COVERS_FROM:]):", ":"),),
        (DAMAGED_TEST,),
    ),
    Mutant(
        "the CRC of a staged frame is not checked",
        "promise 7",
        ((STAGING, " or _CRC.unpack_from(head, _FRAME.size)[0] != crc32c(head[: _FRAME.size]):", ":"),),
        (DAMAGED_TEST,),
    ),
]
