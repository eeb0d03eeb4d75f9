"""Mutants of copies between directories, servers and clusters, and of reading a cluster."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SOURCE = "src/klamm/transfer/directory_source.py"
TARGET = "src/klamm/transfer/directory_target.py"
KAFKA_TARGET = "src/klamm/transfer/kafka_target.py"
MESSAGES = "src/klamm/batch/_messages.pxi"
PARTITION = "src/klamm/cluster/cluster_partition.py"
COPIER = "src/klamm/transfer/copier.py"
ERRORS = "tests/cluster/test_kafka_errors.py"
TESTS = "tests/transfer/test_copy.py"
WHOLE = f"{TESTS}::test_a_directory_has_the_records_offsets_settings_and_groups_of_the_source"
SERVED = f"{TESTS}::test_a_server_has_the_records_and_groups_and_a_copy_of_it_is_the_same"

MUTANTS = [
    Mutant(
        "a copy reads what is not committed",
        "transfer/chunk.py CPY1",
        ((SOURCE, "self._log(partition).reader(offset)", "self._log(partition).reader(offset, committed=False)"),),
        (WHOLE,),
    ),
    Mutant(
        "a copy takes the producers of its source over",
        "transfer/chunk.py CPY1",
        ((SOURCE, "if header.producer_id >= 0:", "if False:"),),
        (WHOLE,),
    ),
    Mutant(
        "a copy stamps records with the time of now",
        "transfer/chunk.py CPY1",
        (
            (
                TARGET,
                "log.append_at(header.base_offset, batch, is_copy=True)",
                "log.append_at(header.base_offset, batch)",
            ),
        ),
        (f"{TESTS}::test_times_of_the_append_are_kept",),
    ),
    Mutant(
        "a copy goes on whatever the target holds",
        "transfer/copier.py: the last records there must be those of the source",
        ((COPIER, "if list(map(_contents, last)) != list(map(_contents, theirs)):", "if False:"),),
        (f"{TESTS}::test_a_target_that_is_not_a_copy_is_left_as_it_is",),
    ),
    Mutant(
        "a copy skips what retention has removed",
        "transfer/chunk.py CPY2",
        ((COPIER, "if since is None and start > position:", "if False:"),),
        (f"{TESTS}::test_a_gap_that_retention_left_is_an_error_until_it_is_accepted",),
    ),
    Mutant(
        "a copy moves groups back",
        "transfer/chunk.py: move a group forward",
        ((TARGET, "if offset > stored.get(partition, -1)", "if offset != stored.get(partition, -1)"),),
        (f"{TESTS}::test_groups_are_moved_forward_only_and_never_under_their_members",),
    ),
    Mutant(
        "a copy commits records to a cluster without where they came from",
        "transfer/chunk.py CPY3",
        (
            (
                KAFKA_TARGET,
                "in self._copied.pack(partition, state.start, state.end, runs[partition]):",
                "in list[tuple[bytes, bytes]]():",
            ),
        ),
        (SERVED,),
    ),
    Mutant(
        "a copy from a cluster loses the gaps between offsets",
        "transfer/chunk.py CPY1",
        ((MESSAGES, "record.offset != base + builder.count or builder.used", "builder.used"),),
        (SERVED,),
    ),
    Mutant(
        "a scan and a copy have what librdkafka reads again twice",
        "transfer/chunk.py CPY1",
        ((PARTITION, "records = not_before(records, offset)", "pass"),),
        (
            f"{TESTS.replace('test_copy', 'test_servers')}::test_what_librdkafka_reads_again_is_copied_once",
            f"{ERRORS}::test_what_librdkafka_reads_again_is_handed_out_once[scan]",
        ),
    ),
    Mutant(
        "a partition of a cluster keeps its turn as long as it has records",
        "client/consume/read_engine.py E3",
        (("src/klamm/cluster/cluster_engine.py", "(not chunk or cursor.taken >= CHUNK_RECORDS)", "not chunk"),),
        ("tests/cluster/test_read_engine_contract.py::test_partitions_whose_records_were_received_take_turns[server]",),
    ),
    Mutant(
        "what a consumer of a cluster received with an error of another partition is lost",
        "client/consume/read_engine.py E2",
        (
            (
                "src/klamm/cluster/cluster_engine.py",
                "                cursor.is_stale = True\n            raise\n",
                "            raise\n",
            ),
        ),
        (f"{ERRORS}::test_an_error_of_one_partition_loses_no_record_of_another_that_came_with_it",),
    ),
    Mutant(
        "any SystemError of a producer of a cluster is taken for a fatal error",
        "cluster/record_stream.py: only what librdkafka calls fatal ends a stream",
        (
            (
                "src/klamm/cluster/record_stream.py",
                "if fatal is None:\n                    raise",
                "if False:\n                    raise",
            ),
        ),
        (f"{ERRORS}::test_what_python_complains_of_is_no_fatal_error_unless_librdkafka_has_one",),
    ),
    Mutant(
        "what a transaction has given up is not read again",
        "transfer/chunk.py CPY1",
        (
            (
                COPIER,
                "positions = {partition: max(at, reached.get(partition, at)) for partition, at in begun.items()}",
                "positions = {**positions, **reached}",
            ),
        ),
        (f"{TESTS}::test_what_was_given_up_is_read_again_from_where_it_began",),
    ),
    Mutant(
        "batches without records end the comparison with the source",
        "transfer/copier.py: the last records there must be those of the source",
        ((TARGET, "if records or start == first:", "if True:"),),
        (f"{TESTS}::test_a_source_of_the_same_length_is_told_from_another",),
    ),
]
