"""Mutants of the Spark door. Their tests start no session."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BATCHES = "src/klamm/spark/batches.py"
JOINT_DECISION = "src/klamm/store/joint_decision.py"
PLANNER = "src/klamm/spark/planner.py"
STAGED_BATCHES = "src/klamm/spark/staged_batches.py"
OFFSETS_TESTS = "tests/spark/test_offsets.py"
STREAM_TESTS = "tests/spark/test_stream.py"
PUBLISHER_TESTS = "tests/spark/test_publisher.py"
DAMAGED_TEST = f"{PUBLISHER_TESTS}::test_a_staged_file_that_is_not_what_the_task_wrote_fails_the_whole_batch"
TWO_DRIVERS_TEST = (
    f"{PUBLISHER_TESTS}::test_of_two_drivers_that_commit_one_batch_at_the_same_time_the_second_appends_nothing_visible"
)

OTHER_PLAN_TEST = f"{PUBLISHER_TESTS}::test_a_batch_that_was_planned_otherwise_under_a_number_of_the_log_is_an_error"
SAME_PLAN_TEST = (
    f"{PUBLISHER_TESTS}::"
    "test_other_records_of_the_same_plan_are_the_same_batch_in_another_run_and_another_write_in_the_same_one"
)

HELD_TEST = "test_nothing_of_a_batch_is_swept_while_one_of_its_tasks_runs_though_it_has_no_row_yet"

SINK = "src/klamm/spark/sink.py"
STREAM = "src/klamm/spark/stream.py"
PIPELINES = "src/klamm/spark/pipelines"
TABLE = f"{PIPELINES}/archive_table.py"
TABLE_TESTS = "tests/spark/pipelines/test_archive_tables.py"
ICEBERG = f"{PIPELINES}/iceberg_table.py"
ICEBERG_TESTS = "tests/spark/pipelines/test_iceberg.py"
OBJECTS = f"{PIPELINES}/object_files.py"
OBJECT_TESTS = "tests/spark/pipelines/test_object_archive.py"
CLASS_ARCHIVE = "src/klamm/spark/class_archive.py"
CLASS_ARCHIVE_TESTS = "tests/spark/test_class_archive.py"
MUTANTS = [
    Mutant(
        "a Protobuf value of another message is decoded as the one that is wanted",
        "spark/value_decoder.py: a value that is not what the schema says is an error",
        (
            (
                "src/klamm/spark/value_decoder.py",
                "                if names[number, indexes] != self._message:\n",
                "                if False:\n",
            ),
        ),
        ("tests/spark/test_value_decoder.py::test_a_message_of_another_type_is_an_error_not_a_guess",),
    ),
    Mutant(
        "a run accepts a folder whose reset was killed",
        "spark/pipelines/registry.py R1",
        (
            (
                "src/klamm/spark/pipelines/pipeline_directory.py",
                '        if known["resetting"]:\n',
                "        if False:\n",
            ),
        ),
        ("tests/spark/pipelines/test_registry.py::test_a_reset_that_was_killed_is_finished_before_the_next_run",),
    ),
    Mutant(
        "a change that is in a table is committed again",
        "spark/pipelines/archive_table.py TBL1",
        ((TABLE, "            if last != sequence:\n", "            if True:\n"),),
        (f"{TABLE_TESTS}::test_a_run_that_dies_at_any_step_is_made_up_for_by_the_next",),
    ),
    Mutant(
        "a table that is older than its archive is continued",
        "spark/pipelines/archive_table.py TBL3",
        ((TABLE, "            if (last != sequence and last not in (sequence - 1, None)) or", "            if"),),
        (f"{TABLE_TESTS}::test_a_table_and_a_journal_that_are_apart_are_an_error",),
    ),
    Mutant(
        "metadata of an Iceberg table is not synced",
        "spark/pipelines/iceberg_table.py ICE1",
        ((ICEBERG, "warehouse=self._location, **self._io)", "warehouse=self._location)"),),
        (f"{ICEBERG_TESTS}::test_a_run_that_dies_at_any_file_of_a_commit_is_made_up_for_by_the_next",),
    ),
    Mutant(
        "an Iceberg table that was rolled back is continued",
        "spark/pipelines/archive_table.py TBL3",
        ((ICEBERG, "None if ours or kept is None", "None if kept is None"),),
        (f"{ICEBERG_TESTS}::test_what_others_do_to_the_table_is_not_undone",),
    ),
    Mutant(
        "a merge puts its file beside what others made of the same rows",
        "spark/pipelines/iceberg_table.py: a file of a merge is of use only if all that it replaces are in the table",
        ((ICEBERG, "return found if len(found) == len(names) else None", "return found"),),
        (f"{ICEBERG_TESTS}::test_what_others_do_to_the_table_is_not_undone",),
    ),
    Mutant(
        "what a killed attempt of a task has written is archived",
        "spark/pipelines/archive_pipeline.py",
        (
            (
                "src/klamm/spark/pipelines/archive_pipeline.py",
                "        staged = by_day(written)\n",
                '        staged = {day: files_in(f"{path}/{day}") for day in days_of(path)}\n',
            ),
        ),
        ("tests/spark/pipelines/test_archive.py::test_what_a_killed_attempt_of_a_task_has_written_is_not_archived",),
    ),
    Mutant(
        "a plan that a killed run has left is not the one that is archived",
        "spark/pipelines/local_archive.py ARH1",
        (
            (
                "src/klamm/spark/pipelines/local_archive.py",
                "                end = _planned(self._folder.checkpoint, number)\n",
                "                end = None\n",
            ),
        ),
        ("tests/spark/pipelines/test_without_spark.py::test_a_run_without_spark_that_was_killed_does_its_plan_first",),
    ),
    Mutant(
        "a run replaces the journal of an object store whatever it is",
        "spark/pipelines/object_files.py OBJ1",
        ((OBJECTS, 'mode: Any = "create" if version is None else {"e_tag": version}', 'mode: Any = "overwrite"'),),
        (f"{OBJECT_TESTS}::test_of_two_runs_the_first_is_done_and_the_other_changes_nothing",),
    ),
    Mutant(
        "a run does not know its own change when the response was lost",
        "spark/pipelines/object_files.py OBJ1",
        ((OBJECTS, "                if is_ours:", "                if False:"),),
        (f"{OBJECT_TESTS}::test_a_run_knows_its_own_change_though_the_response_was_lost",),
    ),
    Mutant(
        "what another run has staged is removed before it can be decided no more",
        "spark/pipelines/object_files.py OBJ2",
        ((OBJECTS, "if _sequence_of(name) <= sequence]", "if name]"),),
        (f"{OBJECT_TESTS}::test_what_another_run_has_staged_stays_until_it_cannot_be_decided",),
    ),
    Mutant(
        "objects are merged while a copy may still come",
        "spark/pipelines/object_files.py OBJ3",
        ((OBJECTS, '["last_modified"].timestamp() <= newest_s', '["last_modified"].timestamp()'),),
        (f"{OBJECT_TESTS}::test_small_objects_are_merged_when_they_are_settled",),
    ),
    Mutant(
        "a change that another run has put into an Iceberg table is put there again",
        "spark/pipelines/archive_table.py TBL1",
        ((ICEBERG, '[_RETRIES] = "0"', '["klamm.nothing"] = "0"'),),
        (f"{OBJECT_TESTS}::test_an_iceberg_table_in_an_object_store_has_each_record_once",),
    ),
    Mutant(
        "an error has the values of storage options",
        "spark/pipelines/object_files.py OBJ4",
        ((f"{PIPELINES}/folder_files.py", 'text = text.replace(value, "***")', "text = text.strip()"),),
        (f"{OBJECT_TESTS}::test_what_is_wrong_with_an_address_or_its_options_is_said_without_them",),
    ),
    Mutant(
        "a plan of a micro-batch is not in the object store",
        "spark/pipelines/pipeline_directory.py PLD1",
        ((f"{PIPELINES}/pipeline_directory.py", "        if number not in before:\n", "        if False:\n"),),
        (f"{OBJECT_TESTS}::test_an_archive_in_an_object_store_has_each_record_once",),
    ),
    Mutant(
        "a class archive is used whatever its bytes are",
        "spark/class_archive.py CDS1",
        ((CLASS_ARCHIVE, ' and known["crc"] == _checksum(path):', ":"),),
        (f"{CLASS_ARCHIVE_TESTS}::test_an_archive_that_is_not_the_one_that_was_published_is_not_used",),
    ),
    Mutant(
        "a class archive that was changed since it was published is used",
        "spark/class_archive.py CDS1",
        ((CLASS_ARCHIVE, " and {name: known[name] for name in identity} == identity:", ":"),),
        (f"{CLASS_ARCHIVE_TESTS}::test_an_archive_that_is_not_the_one_that_was_published_is_not_used",),
    ),
    Mutant(
        "a class archive is published before its header is written",
        "spark/class_archive.py CDS2",
        ((CLASS_ARCHIVE, "        return any(file.read(_MAGIC))\n", "        return bool(file.read())\n"),),
        (f"{CLASS_ARCHIVE_TESTS}::test_a_file_that_a_jvm_did_not_complete_is_not_published",),
    ),
    Mutant(
        "a class archive from before the last boot is published",
        "spark/class_archive.py CDS2",
        ((CLASS_ARCHIVE, 'name.split(".")[1] != _boot() or ', ""),),
        (f"{CLASS_ARCHIVE_TESTS}::test_a_file_that_a_jvm_did_not_complete_is_not_published",),
    ),
    Mutant(
        "an INSERT of another table's rows is appended to that table's topic",
        "spark/source.py: tables",
        ((SINK, 'batch.column("offset").null_count < batch.num_rows', "False"),),
        ("tests/spark/test_tables.py::test_an_insert_that_names_no_columns_is_refused",),
    ),
    Mutant(
        "a micro-batch with too few offsets does not wait",
        "spark/stream.py",
        ((STREAM, "        return count < least and ", "        return False and "),),
        ("tests/spark/test_stream.py::test_a_micro_batch_waits_for_enough_offsets_or_for_the_longest_delay",),
    ),
    Mutant(
        "a micro-batch that is in the log is appended again",
        "spark/batches.py BID1",
        ((BATCHES, "    if last is None or batch.number > last.number:\n", "    if True:\n"),),
        (f"{PUBLISHER_TESTS}::test_a_batch_that_comes_again_is_skipped_and_logged", TWO_DRIVERS_TEST),
    ),
    Mutant(
        "two drivers append one micro-batch twice",
        "spark/batches.py BID1",
        ((BATCHES, "    if _is_committed(execute, batch):\n", "    if False:\n"),),
        (TWO_DRIVERS_TEST,),
    ),
    Mutant(
        "a micro-batch is skipped by its number alone",
        "spark/batches.py BID4",
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
        "spark/batches.py BID4",
        ((BATCHES, "    if batch.number == last.number and _is", "    if batch.number < last.number or _is"),),
        (OTHER_PLAN_TEST,),
    ),
    Mutant(
        "two writes of a micro-batch under one name are taken for one",
        "spark/batches.py BID4",
        ((BATCHES, ' and (same.get("records", True) or not same.get("run"))', ""),),
        (SAME_PLAN_TEST,),
    ),
    Mutant(
        "queries of one id skip each other's micro-batches, whatever they write to",
        "spark/batches.py BID4",
        (
            (JOINT_DECISION, "once.find(execute, writer, target) or", "once.find(execute, writer, 'x') or"),
            (
                BATCHES,
                "WriterNumber(batch.writer, batch.target, batch.number,",
                "WriterNumber(batch.writer, 'x', batch.number,",
            ),
        ),
        (f"{PUBLISHER_TESTS}::test_queries_of_one_id_that_write_to_different_topics_do_not_skip_for_each_other",),
    ),
    Mutant(
        "a query does not notice that an older copy of the store was put back",
        "spark/planner.py PLN5",
        ((PLANNER, "        if end < offset:\n", "        end = offset\n        if False:\n"),),
        (f"{OFFSETS_TESTS}::test_a_query_notices_that_an_older_copy_of_the_store_was_put_back",),
    ),
    Mutant(
        "a query that goes on after data loss skips what is new at the offsets that it had read",
        "spark/planner.py PLN5",
        (
            (
                PLANNER,
                "                begin = self._resumed(tp, partition, start)\n                end_offset",
                "                end_offset",
            ),
        ),
        (f"{OFFSETS_TESTS}::test_a_query_notices_that_an_older_copy_of_the_store_was_put_back",),
    ),
    Mutant(
        "the first micro-batch, done again, begins where a new query would",
        "spark/planner.py PLN3",
        ((PLANNER, "        if end.origin is not None and start.origin is None:", "        if False:"),),
        (f"{STREAM_TESTS}::test_the_first_micro_batch_done_again_begins_where_it_began",),
    ),
    Mutant(
        "a query goes on with a store that was moved away",
        "spark/planner.py",
        ((PLANNER, "        if not self.core.is_in_place():", "        if False:"),),
        (f"{OFFSETS_TESTS}::test_a_store_that_is_replaced_under_a_running_query_is_an_error",),
    ),
    Mutant(
        "on PySpark 4.1 a query that is started again begins where a new one would",
        "spark/stream.py",
        ((STREAM, "                if begin != self._initial:\n", "                if False:\n"),),
        (f"{STREAM_TESTS}::test_a_spark_that_does_not_say_where_a_micro_batch_starts_reads_each_record_once",),
    ),
    Mutant(
        "a task reads on in a store that was replaced",
        "spark/range_reader.py",
        (("src/klamm/spark/range_reader.py", " or not _kept[1].is_in_place()", ""),),
        ("tests/spark/test_source.py::test_a_task_opens_the_store_that_has_taken_the_place_of_the_one_it_has_open",),
    ),
    Mutant(
        "staged files are swept one by one",
        "store/scratch.py SCR1",
        (("src/klamm/store/scratch.py", "        if all(_is_older(path, now", "        if any(_is_older(path, now"),),
        (f"{PUBLISHER_TESTS}::test_staged_files_are_swept_a_day_after_the_last_of_their_batch_was_written",),
    ),
    Mutant(
        "staged files are swept under a task that has run for a day",
        "store/scratch.py SCR1",
        (("src/klamm/store/scratch.py", " and not any(map(_is_held, paths)):", ":"),),
        (f"{PUBLISHER_TESTS}::{HELD_TEST}",),
    ),
    Mutant(
        "the directory of a job is swept before its first task",
        "store/scratch.py SCR2",
        (("src/klamm/store/scratch.py", "OLD_DIRECTORY_MS = 30 * OLD_MS", "OLD_DIRECTORY_MS = 29 * OLD_MS"),),
        (f"{PUBLISHER_TESTS}::test_the_directory_of_a_job_is_kept_for_thirty_days",),
    ),
    Mutant(
        "the CRC of a staged batch is not checked",
        "promise 7",
        ((STAGED_BATCHES, " or header.crc != crc32c(memoryview(batch)[_CRC_COVERS_FROM:]):", ":"),),
        (DAMAGED_TEST,),
    ),
    Mutant(
        "the CRC of a staged frame is not checked",
        "promise 7",
        ((STAGED_BATCHES, " or _CRC.unpack_from(head, _FRAME.size)[0] != crc32c(head[: _FRAME.size]):", ":"),),
        (DAMAGED_TEST,),
    ),
]
