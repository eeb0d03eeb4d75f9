"""Mutants of the Spark sink. Their tests start no JVM."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BATCHES = "src/klamm/store/spark_batches.py"
STAGING = "src/klamm/spark/staging.py"
PUBLISHING_TESTS = "tests/spark/test_publishing.py"
DAMAGED_TEST = f"{PUBLISHING_TESTS}::test_a_staged_file_that_is_not_what_the_task_wrote_fails_the_whole_batch"
TWO_DRIVERS_TEST = (
    f"{PUBLISHING_TESTS}::test_of_two_drivers_that_commit_one_batch_at_the_same_time_the_second_appends_nothing_visible"
)

MUTANTS = [
    Mutant(
        "a micro-batch that is in the log is appended again",
        "store/spark_batches.py M1",
        (
            (
                "src/klamm/spark/publishing.py",
                "    return last is not None and mark.batch <= last\n",
                "    return False\n",
            ),
            (BATCHES, "    if before is not None and batch <= before:\n", "    if False:\n"),
        ),
        (f"{PUBLISHING_TESTS}::test_a_batch_that_comes_again_is_skipped_and_so_is_an_older_one",),
    ),
    Mutant(
        "two drivers append one micro-batch twice",
        "store/spark_batches.py M1",
        ((BATCHES, "    if before is not None and batch <= before:\n", "    if False:\n"),),
        (TWO_DRIVERS_TEST,),
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
