"""Mutants of what is said to be on disk outside of the log itself: a sync that is missing, or comes too late."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ON_DISK = "tests/crash/test_on_disk.py"
CALL = f"{ON_DISK}::test_what_a_call_says_is_on_disk_survives_a_power_cut"
LETTERS = f"{ON_DISK}::test_no_offset_of_a_record_that_failed_survives_a_power_cut_without_its_dead_letter"
BACKUP = f"{ON_DISK}::test_a_backup_is_on_disk_when_it_returns_and_no_store_before_it_is_whole"
REPAIR = f"{ON_DISK}::test_a_power_cut_at_any_step_of_a_repair_takes_nothing_that_was_good"
FOLDER = f"{ON_DISK}::test_a_power_cut_at_any_step_leaves_a_folder_of_a_pipeline_as_it_was_before_or_after_a_change"
MICRO_BATCH = f"{ON_DISK}::test_no_micro_batch_survives_a_power_cut_without_its_plan"
LETTERS_SENT = (
    "tests/spark/test_checkpoints.py::"
    "test_a_plan_that_is_lost_after_its_dead_letters_were_sent_sends_none_again_and_loses_none"
)
ARCHIVE_PIPELINE = "src/klamm/spark/pipelines/archive_pipeline.py"
PRODUCE = "tests/kafka/test_produce.py"
SERVE = "tests/crash/test_serve_power_cut.py::test_no_power_cut_of_a_server_loses_what_it_acknowledged"
NOT_DURABLE = "database.transaction(durable=False) as execute:"


def _without(name: str, breaks: str, file: str, line: str, *tests: str, instead: str = "") -> Mutant:
    """Return Klamm without a line of `file`."""
    return Mutant(name, breaks, ((f"src/klamm/{file}", line, instead),), tests)


MUTANTS = [
    _without(
        "a Produce request whose sync failed is answered as if it were on disk",
        "promises 4, 6",
        "kafka/apis/produce.py",
        "    def _synced(self, partition_response: Any, error: BaseException | None) -> None:\n",
        PRODUCE,
        instead="    def _synced(self, partition_response: Any, error: BaseException | None) -> None:\n        error = None\n",  # noqa: E501
    ),
    _without(
        "acks=all waits for the first partition of a request only",
        "promise 4",
        "kafka/apis/produce.py",
        "            if partition.log.flushed_offset < end:\n",
        PRODUCE,
        instead="            if partition.log.flushed_offset < end and self.left == 1:\n",
    ),
    _without(
        "an ordinary Produce request whose sync failed is answered as if it were on disk",
        "promises 4, 6",
        "kafka/apis/ordinary_produce.py",
        "            self._failed[number] = error\n",
        PRODUCE,
        instead="            pass\n",
    ),
    _without(
        "acks=all waits for the first partition of an ordinary request only",
        "promise 4",
        "kafka/apis/ordinary_produce.py",
        "        if is_all and log.flushed_offset < offset + record_count:\n",
        PRODUCE,
        instead="        if is_all and not unsynced and log.flushed_offset < offset + record_count:\n",
    ),
    _without(
        "a backup's segments are not synced",
        "store/backup.py BAK2",
        "store/backup.py",
        "_os.fsync(writing)\n",
        BACKUP,
        instead="pass\n",
    ),
    _without(
        "a backup's names are not synced",
        "store/backup.py BAK2",
        "store/backup.py",
        "    files.sync_directory(destination)\n    files.sync_directory(os.path.dirname(destination))\n",
        BACKUP,
    ),
    _without(
        "new directories above a backup are not synced",
        "store/backup.py BAK2",
        "store/backup.py",
        "    files.sync_ancestors(os.path.dirname(destination))  # some may be new, too\n",
        BACKUP,
    ),
    _without(
        "a backup has records that the store itself may lose",
        "store/backup.py BAK1",
        "store/backup.py",
        "        partition.sync(now.next_offset)\n",
        BACKUP,
        instead="        pass\n",
    ),
    _without(
        "a dead letter is not synced",
        "client/work/dead_letters.py",
        "client/work/dead_letters.py",
        "        log.sync(offset + 1)\n",
        CALL,
        LETTERS,
    ),
    _without(
        "a repaired segment is not synced",
        "store/repair.py",
        "store/repair.py",
        "            _os.fsync(fd)\n",
        REPAIR,
        instead="            pass\n",
    ),
    _without(
        "damaged bytes are taken away before they are kept",
        "store/repair.py",
        "store/repair.py",
        "before the segment is replaced.\n            files.sync_directory(self.directory)\n",
        REPAIR,
        instead="before the segment is replaced.\n",
    ),
    _without(
        "a directory is moved into one that a power cut may take",
        "store/check.py",
        "store/check.py",
        "                files.sync_directory(self.core.files)  # the new directory",
        REPAIR,
        instead="                #",
    ),
    _without(
        "a check does not notice that a log ends before its recovery point",
        "promise 7",
        "store/check_partition.py",
        "known.offset if known is not None else 0\n",
        REPAIR,
        "tests/store/test_check.py",
        instead="0\n",
    ),
    _without(
        "staged files of a pipeline are not synced",
        "spark/pipelines/journal.py JRN1",
        "spark/pipelines/folder_files.py",
        "            files.sync_file(self.path(name))\n",
        FOLDER,
        instead="            pass\n",
    ),
    _without(
        "names of staged files of a pipeline are not synced",
        "spark/pipelines/journal.py JRN1",
        "spark/pipelines/folder_files.py",
        "                files.sync_directory(self.path(above))\n",
        FOLDER,
    ),
    _without(
        "files of a pipeline are moved into a folder that a power cut may take",
        "spark/pipelines/journal.py JRN2",
        "spark/pipelines/folder_files.py",
        "        files.sync_directory(self.root)  # a new sub-folder is on disk before a file is moved into it\n",
        FOLDER,
    ),
    _without(
        "a change of a pipeline's folder is not synced before the next one",
        "spark/pipelines/journal.py JRN2",
        "spark/pipelines/folder_files.py",
        "            files.sync_directory(self.path(folder))\n",
        FOLDER,
        instead="            pass\n",
    ),
    _without(
        "the plan of a micro-batch is not synced",
        "spark/checkpoint.py CKP1",
        "spark/checkpoint.py",
        '    files.sync_file(f"{offsets}/{number}")\n',
        FOLDER,
        MICRO_BATCH,
    ),
    _without(
        "the directory of Spark's plans is not synced",
        "spark/checkpoint.py CKP1",
        "spark/checkpoint.py",
        "        files.sync_directory(checkpoint)\n",
        FOLDER,
        MICRO_BATCH,
    ),
    _without(
        "the id of a query is not synced",
        "spark/checkpoint.py CKP1",
        "spark/checkpoint.py",
        "            files.sync_file(metadata)\n",
        MICRO_BATCH,
    ),
    _without(
        "a micro-batch is committed before its plan is on disk",
        "spark/checkpoint.py CKP1",
        "spark/checkpoint.py",
        "        sync_plan(checkpoint, number)\n",
        MICRO_BATCH,
    ),
    Mutant(
        "dead letters of an archive are sent before Spark's plan is on disk",
        "spark/pipelines/archive_pipeline.py",
        (
            (ARCHIVE_PIPELINE, "        self.folder.save_plan(number)  # before", "        # before"),
            (
                ARCHIVE_PIPELINE,
                '        self._send_dead_letters(schema, _written_by_spark(f"{path}/fits=false"), number)\n',
                """        self._send_dead_letters(schema, _written_by_spark(f"{path}/fits=false"), number)
        self.folder.save_plan(number)
""",
            ),
        ),
        (LETTERS_SENT,),
    ),
    _without(
        "the folder of a pipeline is not synced",
        "spark/pipelines/folder_files.py",
        "spark/pipelines/folder_files.py",
        "        files.sync_ancestors(path)\n",
        CALL,
    ),
    _without(
        "generations that were reserved are reserved again after a power cut",
        "store/wire_groups.py",
        "store/wire_groups.py",
        '        catalog, key = self._core.catalog, "next_generation"\n'
        "        with self._database.db_lock(), self._database.transaction() as execute:\n",
        CALL,
        instead='        catalog, key = self._core.catalog, "next_generation"\n'
        f"        with self._database.db_lock(), self._{NOT_DURABLE}\n",
    ),
    _without(
        "producer ids that were given out are given out again after a power cut",
        "store/catalog.py",
        "store/catalog.py",
        "        with self.database.db_lock(), self.database.transaction() as execute:\n"
        '            first = int(self.meta(execute, "next_producer_id"))\n',
        CALL,
        instead=f"        with self.database.db_lock(), self.{NOT_DURABLE}\n"
        '            first = int(self.meta(execute, "next_producer_id"))\n',
    ),
    _without(
        "an imported group is not synced",
        "store/database.py DBS2",
        "client/groups/group_admin.py",
        "        with database.db_lock(), database.transaction() as execute:\n"
        "            group = core.groups.claim(execute, wanted)\n",
        CALL,
        instead=f"        with database.db_lock(), {NOT_DURABLE}\n"
        "            group = core.groups.claim(execute, wanted)\n",
    ),
    _without(
        "a write of Spark is decided before its records are on disk",
        "spark/publisher.py U1",
        "spark/publisher.py",
        "            log.sync(end)\n",
        CALL,
        instead="            pass\n",
    ),
    _without(
        "Spark is told offsets that are not on disk",
        "spark/planner.py PLN1",
        "spark/planner.py",
        "            partition.sync(end_offset)\n",
        CALL,
        instead="            pass\n",
    ),
    _without(
        "restored records are not synced",
        "spark/pipelines/restore_pipeline.py",
        "spark/pipelines/restore_pipeline.py",
        "        opened.partition(number).sync(restore_writer.next_offset)\n",
        CALL,
    ),
    _without(
        "rows of a table are not synced",
        "promise 4",
        "arrow/append_table.py",
        "            self._opened.partition(number).sync(found[-1].stop)\n",
        CALL,
        instead="            pass\n",
    ),
    _without(
        "records of append_many are not synced",
        "promise 4",
        "client/produce/target.py",
        "            self._target.opened.partition(number).sync(found[-1].stop)\n",
        CALL,
        instead="            pass\n",
    ),
    _without(
        "records of a producer are not synced",
        "promise 4",
        "client/produce/sender.py",
        "                partition.sync(offset)\n",
        CALL,
        instead="                pass\n",
    ),
    _without(
        "the server answers acks=all before the sync",
        "promises 4, 5",
        "kafka/apis/produce.py",
        "self.broker.sync_queue.wait(partition, end, partial(self._synced, partition_response))",
        SERVE,
        instead="self._synced(partition_response, None)",
    ),
    _without(
        "the server answers an ordinary request of acks=all before the sync",
        "promises 4, 5",
        "kafka/apis/ordinary_produce.py",
        "    is_all = request.acks < 0\n",
        PRODUCE,
        instead="    is_all = False\n",
    ),
    _without(
        "the server commits a transaction whose records are not on disk",
        "store/transactions.py T2",
        "kafka/transaction_coordinator.py",
        "                if not self._transactions.sync(synced):\n",
        SERVE,
        instead="                if False:\n",
    ),
    _without(
        "rows of transactions over the wire are not synced",
        "store/transactions.py WTX1",
        "store/group_commit.py",
        "database.transaction(durable=is_durable)",
        SERVE,
        instead="database.transaction(durable=False)",
    ),
    Mutant(
        "the name of an .aborted file may be lost when a snapshot relies on it",
        "internals/recovery.md: what was aborted is on disk before a snapshot",
        (("src/klamm/log/aborted.py", "        files.sync_directory(directory)\n", "        pass\n"),),
        (f"{ON_DISK}::test_what_was_aborted_stays_so_though_the_power_is_cut_while_a_recovery_point_is_written",),
    ),
]
