"""Mutants of a log's Python code and of the directory: sync, recovery, reading, retention."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SYNC = "src/klamm/log/_sync.pxi"
PRODUCER_RECOVERY = "src/klamm/log/producer_recovery.py"
INDEX = "src/klamm/log/index.py"
BINDING = "tests/log/test_index_binding.py"
COPIED_INDEXES = "tests/store/test_copied_indexes.py::test_indexes_that_were_removed_are_made_again_in_the_background"
MISSING_TESTS = "tests/crash/test_missing_files.py"
RECOVERY = "src/klamm/log/recovery.py"
READER = "src/klamm/log/reader.py"
SPANS = "src/klamm/log/aborted_spans.py"
SPANS_TESTS = "tests/log/test_aborted_spans.py"
PARTITION = "src/klamm/log/partition.py"
RETENTION = "src/klamm/log/retention.py"
RETENTION_TESTS = "tests/log/test_retention.py"
CLEANUP = "src/klamm/log/cleanup.py"
DIRECTORY = "src/klamm/store/directory.py"
TRANSACTIONS_TESTS = "tests/log/test_transactions.py"
SYNC_TESTS = "tests/log/test_sync.py"
STOPPED_TESTS = "tests/crash/test_stopped_process.py"
KILLED_WRITER_TESTS = "tests/crash/test_killed_writer.py"
POWER_CUT_TESTS = "tests/crash/test_power_cut.py"
LOOKUP_TESTS = "tests/log/test_lookup.py"
RECOVERY_TESTS = "tests/log/test_recovery.py"
DAMAGE_TESTS = "tests/crash/test_damage.py"
AHEAD_TESTS = "tests/log/test_ahead.py"
FAILED_SYNC_TESTS = "tests/crash/test_failed_sync.py"

REPEATED = "src/klamm/log/repeated.py"
REPEATED_TESTS = "tests/log/test_repeated.py"

APPEND = "src/klamm/log/_append.pxi"
MUTANTS = [
    Mutant(
        "a batch under used sequences is taken for a retry, unread",
        "log/repeated.py",
        ((REPEATED, "    if there is None or is_same(there, batch):", "    if True:"),),
        (f"{REPEATED_TESTS}::test_other_records_with_the_sequences_of_a_batch_are_refused_and_that_batch_is_not",),
    ),
    Mutant(
        "a retry under another codec is refused",
        "log/repeated.py",
        ((REPEATED, "_MAY_DIFFER = CODEC_MASK | LOG_APPEND_TIME", "_MAY_DIFFER = LOG_APPEND_TIME"),),
        (f"{REPEATED_TESTS}::test_a_batch_that_comes_again_under_another_codec_is_known",),
    ),
    Mutant(
        "a retry of a batch that was compacted is refused",
        "log/repeated.py",
        ((REPEATED, "    if old.crc == new.crc or is_compacted:", "    if old.crc == new.crc:"),),
        (f"{REPEATED_TESTS}::test_a_batch_that_compaction_took_records_out_of_is_taken_for_the_same",),
    ),
    Mutant(
        "a batch keeps its codec, whatever the topic says",
        "log/batch_rules.py: compression.type",
        (("src/klamm/log/batch_rules.py", "        if self.has_codec(batch):", "        if True:"),),
        ("tests/kafka/test_compression.py::test_the_embedded_door_compresses_too",),
    ),
    Mutant(
        "recovery forgets what is open",
        "a transaction is read whole or not at all",
        ((RECOVERY, "            stable = oldest if oldest >= 0 else end", "            stable = end"),),
        (f"{TRANSACTIONS_TESTS}::test_recovery_finds_again_what_is_open_and_what_was_aborted",),
    ),
    Mutant(
        "recovery forgets what was aborted since the snapshot",
        "log/aborted.py A3",
        ((PRODUCER_RECOVERY, "            aborted.write(directory, base, entries)", "            pass"),),
        (f"{TRANSACTIONS_TESTS}::test_recovery_finds_again_what_is_open_and_what_was_aborted",),
    ),
    Mutant(
        "an aborted transaction is listed as often as its marker was begun",
        "log/aborted.py A2",
        (
            (
                SPANS,
                "        found: set[tuple[int, int]] = set()",
                "        found: list[tuple[int, int]] = []",
            ),
            (SPANS, "                found.add(", "                found.append("),
        ),
        ("tests/log/test_ranges.py",),
    ),
    Mutant(
        "a reader looks beyond the stable offset",
        "a transaction is read whole or not at all",
        ((READER, "            if done and following > limit:", "            if False:"),),
        (f"{TRANSACTIONS_TESTS}::test_what_is_open_is_not_read_and_what_comes_after_it_waits",),
    ),
    Mutant(
        "a failed sync is forgotten",
        "promise 6",
        (
            (
                SYNC,
                "        return error if load64(&w.slot.flushed) == word else -EAGAIN\n",
                "        pass\n",
            ),
        ),
        (f"{SYNC_TESTS}::test_a_sync_that_fails_once_is_made_good_by_writing_the_bytes_again",),
    ),
    Mutant(
        "a syncer that died is taken for one that succeeded",
        "promise 4",
        (
            (
                SYNC,
                "    if load64(&w.slot.flags) & FLAG_SYNC_FAILED or word & FLUSHING:",
                "    if load64(&w.slot.flags) & FLAG_SYNC_FAILED:",
            ),
        ),
        (
            f"{KILLED_WRITER_TESTS}::test_a_syncer_killed_at_any_step_acks_nothing_that_is_not_on_disk_and_blocks_nobody",
        ),
    ),
    Mutant(
        "a syncer that was replaced publishes all the same",
        "H5",
        (
            (
                SYNC,
                "    if not klamm_exchange(&w.slot.flushed, word, <uint64_t>now.next_offset | w.generation):\n",
                "    store64(&w.slot.flushed, <uint64_t>now.next_offset | w.generation)\n    if False:\n",
            ),
        ),
        (f"{STOPPED_TESTS}::test_a_syncer_that_was_replaced_changes_nothing_when_it_goes_on",),
    ),
    Mutant(
        "whoever syncs slowly is replaced",
        "guide/durability.md: a disk that takes long to sync replaces nobody",
        ((SYNC, "        return stopped\n", "        return True\n"),),
        (f"{STOPPED_TESTS}::test_a_process_that_syncs_slowly_but_runs_is_not_replaced",),
    ),
    Mutant(
        "the directory is not synced",
        "promise 4",
        ((SYNC, "    return error or sync_names(w)\n", "    return error\n"),),
        (f"{POWER_CUT_TESTS}::test_no_power_cut_loses_an_ack_or_invents_a_record_or_lets_a_reader_skip_one",),
    ),
    Mutant(
        "recovery starts no new epoch",
        "internals/recovery.md: epochs",
        (
            (
                RECOVERY,
                "epoch = max(boot_count, proof.leader_epoch + 1, epochs[-1][0] + 1 if epochs else 1)",
                "epoch = epochs[-1][0] if epochs else 0",
            ),
        ),
        (f"{LOOKUP_TESTS}::test_each_offset_belongs_to_the_epoch_it_was_appended_in",),
    ),
    Mutant(
        "damage below the recovery point is cut like a tail",
        "promise 7",
        ((RECOVERY, "        if min(scanned.position, scanned.size) < limit:", "        if False:"),),
        (f"{RECOVERY_TESTS}::test_damage_below_the_recovery_point_is_an_error_and_nothing_is_cut",),
    ),
    Mutant(
        "a log that was lost altogether starts again in its old epoch",
        "internals/recovery.md: epochs",
        ((RECOVERY, "    epoch = boot_count\n", "    epoch = 0\n"),),
        (f"{POWER_CUT_TESTS}::test_a_log_that_lost_all_its_files_starts_in_an_epoch_that_it_never_had",),
    ),
    Mutant(
        "nobody misses the first segments of a log without a recovery point",
        "promise 7",
        (
            (
                RECOVERY,
                "and not proof.had_point:\n        return Point(epochs=())",
                "and not proof.had_point:\n        return Point(*found[:1] * 2, epochs=())",
            ),
        ),
        (f"{POWER_CUT_TESTS}::test_a_log_that_was_never_synced_and_lost_its_first_segment_has_no_hole_but_is_empty",),
    ),
    Mutant(
        "a bad batch below flushed_offset is a torn tail",
        "promise 7",
        ((RECOVERY, "    if good.offset < flushed:\n", "    if False:\n"),),
        ("tests/store/test_deletion.py::test_a_flipped_bit_of_what_was_synced_is_damage_and_not_a_tail_after_a_boot",),
    ),
    Mutant(
        "a log without a recovery point may have any leader epoch",
        "internals/recovery.md: epochs",
        (("src/klamm/log/point.py", "    if not epochs and not proof.exists:\n", "    if not epochs:\n"),),
        (f"{RECOVERY_TESTS}::test_an_epoch_that_the_log_never_had_is_damage_without_a_recovery_point_too",),
    ),
    Mutant(
        "a missing recovery point never was",
        "promise 8",
        ((RECOVERY, "proof.exists and not proof.had_point:", "True:"),),
        (f"{MISSING_TESTS}::test_a_log_without_its_recovery_point_and_a_segment_is_not_taken_for_whole",),
    ),
    Mutant(
        "a missing .aborted file never was",
        "log/aborted.py A1",
        ((PRODUCER_RECOVERY, "    if lost is None:\n        return False\n", "    return False\n"),),
        (f"{MISSING_TESTS}::test_each_file_that_is_removed_or_put_back_is_made_again_or_named",),
    ),
    Mutant(
        "a missing .aborted file that no recovery point lists yet never was",
        "log/aborted.py A4",
        (
            (PRODUCER_RECOVERY, "    for base, offsets in markers.items():", "    for base, offsets in ():"),
            (SPANS, "        for base, offsets in unlisted(partition).items():", "        for base, offsets in ():"),
        ),
        (f"{SPANS_TESTS}::test_an_aborted_file_that_no_recovery_point_lists_yet_is_missed_and_made_again",),
    ),
    Mutant(
        "a recovery point does not ask again for the first producer",
        "log/producers.py: a point without a snapshot is before the first producer",
        ((PARTITION, "            if states is None and self.has_producers():\n", "            if False:\n"),),
        ("tests/log/test_producers.py::test_a_recovery_point_without_a_snapshot_is_before_the_first_producer",),
    ),
    Mutant(
        "a snapshot is written before the first record of a log",
        "log/producers.py: a log that is empty needs no snapshot",
        ((PRODUCER_RECOVERY, "    if end and not segment.bases(", "    if not segment.bases("),),
        ("tests/log/test_producers.py::test_the_first_producer_of_an_empty_log_waits_for_no_snapshot",),
    ),
    Mutant(
        "files are made for a marker that is not written",
        "internals/transactions.md: markers",
        ((PARTITION, "            if same_epoch and result in _UNUSED and", "            if False and"),),
        (
            "tests/log/test_transactions.py::test_a_marker_of_the_same_epoch_leaves_no_file_where_no_producer_has_written",
        ),
    ),
    Mutant(
        "a recovery point lists the .aborted files that are left",
        "log/aborted.py A4",
        (
            (
                "src/klamm/log/partition.py",
                "            producer_recovery.rebuild_lost_aborted(self, 0)",
                "            pass",
            ),
        ),
        (f"{SPANS_TESTS}::test_a_recovery_point_lists_no_aborted_file_that_was_lost_before_it",),
    ),
    Mutant(
        "a backup copies the .aborted files that are left",
        "log/aborted.py A4",
        (
            (
                "src/klamm/store/backup.py",
                "        producer_recovery.restore_lost_aborted(partition, 0)",
                "        pass",
            ),
        ),
        ("tests/store/test_backup.py::test_a_backup_has_no_aborted_record_though_a_list_of_them_is_missing",),
    ),
    Mutant(
        "without the recovery point that lists them, all .aborted files are taken to be there",
        "log/aborted.py A1",
        ((RECOVERY, "known, whole=not is_listed)\n            oldest", "known)\n            oldest"),),
        (f"{MISSING_TESTS}::test_what_was_aborted_stays_so_without_the_files_that_tell",),
    ),
    Mutant(
        "the same, of a store that is opened for reading only",
        "log/aborted.py A1",
        ((RECOVERY, "known, whole=not is_listed)\n    if not dry_run", "known)\n    if not dry_run"),),
        (f"{MISSING_TESTS}::test_what_was_aborted_stays_so_without_the_files_that_tell",),
    ),
    Mutant(
        "a table of producers made again knows what a dead writer had not committed",
        "promise 3",
        (
            (PRODUCER_RECOVERY, "            if batch.base_offset >= end:\n", "            if False:\n"),
            (PRODUCER_RECOVERY, "            if batch.next_offset >= end:\n", "            if False:\n"),
        ),
        ("tests/log/test_producer_table.py::test_what_a_dead_writer_had_not_committed_is_not_in_a_table_made_again",),
    ),
    Mutant(
        "without a snapshot there never was a producer",
        "log/producers.py",
        ((PRODUCER_RECOVERY, "    return 0, []\n", "    return end, []\n"),),
        (f"{MISSING_TESTS}::test_each_file_that_is_removed_or_put_back_is_made_again_or_named",),
    ),
    Mutant(
        "a segment of a compacted log may go",
        "promise 8",
        ((PARTITION, "        if gone and not set(gone)", "        if False and not set(gone)"),),
        (f"{MISSING_TESTS}::test_each_file_that_is_removed_or_put_back_is_made_again_or_named",),
    ),
    Mutant(
        "heads that are older than the log are believed",
        "log/head.py H2",
        ((RECOVERY, "    return beyond and log.bookkeeping", "    return False and log.bookkeeping"),),
        (f"{MISSING_TESTS}::test_each_file_that_is_removed_or_put_back_is_made_again_or_named",),
    ),
    Mutant(
        "a torn tail stays",
        "promise 5",
        ((RECOVERY, "            _os.truncate(fd, good.position)\n", ""),),
        (f"{POWER_CUT_TESTS}::test_no_power_cut_loses_an_ack_or_invents_a_record_or_lets_a_reader_skip_one",),
    ),
    Mutant(
        "an ack does not wait for the sync",
        "promise 4",
        (
            (
                PARTITION,
                "            head.sync(self.log, end_offset)\n",
                "            self.log.flushed_offset = max(end_offset, self.log.flushed_offset)\n",
            ),
        ),
        (f"{POWER_CUT_TESTS}::test_no_power_cut_loses_an_ack_or_invents_a_record_or_lets_a_reader_skip_one",),
    ),
    Mutant(
        "a recovery point says more than was synced",
        "promise 5",
        ((PARTITION, "            head.sync(log, now.next_offset)\n", ""),),
        (f"{POWER_CUT_TESTS}::test_no_power_cut_loses_an_ack_or_invents_a_record_or_lets_a_reader_skip_one",),
    ),
    Mutant(
        "only the active segment is synced",
        "promise 5",
        ((SYNC, "if base >= 0 and first <= base <= active_base:", "if base == active_base:"),),
        (f"{POWER_CUT_TESTS}::test_no_power_cut_loses_an_ack_or_invents_a_record_or_lets_a_reader_skip_one",),
    ),
    Mutant(
        "files go before the new start of the log is on disk",
        "promise 8",
        ((RETENTION, "        point.store(directory, known._replace(log_start=offset))\n", ""),),
        (f"{POWER_CUT_TESTS}::test_no_power_cut_loses_an_ack_or_invents_a_record_or_lets_a_reader_skip_one",),
    ),
    Mutant(
        "the directories above a new store are not synced",
        "promise 5",
        ((DIRECTORY, "        files.sync_ancestors(self.path)", "        ..."),),
        (f"{POWER_CUT_TESTS}::test_no_power_cut_loses_an_ack_or_invents_a_record_or_lets_a_reader_skip_one",),
    ),
    Mutant(
        "the catalog is not synced",
        "promise 5",
        (
            (
                "src/klamm/store/database.py",
                'connection.execute("PRAGMA synchronous=FULL")\n                if not self.read_only',
                'connection.execute("PRAGMA synchronous=OFF")\n                if not self.read_only',
            ),
        ),
        (f"{POWER_CUT_TESTS}::test_no_power_cut_loses_an_ack_or_invents_a_record_or_lets_a_reader_skip_one",),
    ),
    Mutant(
        "heads are believed after another boot",
        "promise 5",
        ((DIRECTORY, "        if not self.heads.is_trusted(boot):", "        if False:"),),
        (f"{POWER_CUT_TESTS}::test_no_power_cut_loses_an_ack_or_invents_a_record_or_lets_a_reader_skip_one",),
    ),
    Mutant(
        "an index is valid beside a segment of another size",
        "promise 9",
        ((INDEX, "os.fstat(log_fd).st_size == size > last_position >= 0", "size > last_position >= 0"),),
        (f"{BINDING}::test_an_index_is_valid_beside_its_own_segment_only",),
    ),
    Mutant(
        "an index is valid beside a segment that went on differently",
        "promise 9",
        ((INDEX, " and _header_crc(log_fd, last_position) == last\n", "\n"),),
        (f"{BINDING}::test_an_index_is_valid_beside_its_own_segment_only",),
    ),
    Mutant(
        "an index is valid beside a segment with another first batch",
        "promise 9",
        ((INDEX, "        if first != _header_crc(log_fd, 0):\n", "        if False:\n"),),
        (f"{BINDING}::test_the_index_of_an_active_segment_is_not_valid_beside_another_log",),
    ),
    Mutant(
        "an index of which nobody said what its segment is is valid beside a closed one",
        "promise 9",
        (
            (
                INDEX,
                "        return end_position is not None or (\n",
                "        return end_position is not None or size == 0 or (\n",
            ),
        ),
        (f"{BINDING}::test_an_index_is_valid_beside_its_own_segment_only",),
    ),
    Mutant(
        "index entries beyond the commit are used",
        "promise 9",
        ((INDEX, " and entry.position <= self._end and ", " and "),),
        (f"{BINDING}::test_entries_of_the_active_segment_beyond_the_commit_are_not_used",),
    ),
    Mutant(
        "an index that was made again is written beside a segment that was replaced meanwhile",
        "promise 9",
        (
            (
                "src/klamm/log/index_rebuild.py",
                "            if _identity(path) != identity:\n",
                "            if False:\n",
            ),
        ),
        (f"{BINDING}::test_a_segment_that_is_compacted_while_its_index_is_made_again_keeps_the_new_one",),
    ),
    Mutant(
        "a reader that misses an index tells nobody",
        "log/index.py I3",
        (
            (
                "src/klamm/log/reader.py",
                "        if end_position is None and not index.is_valid:\n",
                "        if False:\n",
            ),
        ),
        (f"{BINDING}::test_a_reader_that_misses_an_index_says_so_and_one_that_does_not_is_silent", COPIED_INDEXES),
    ),
    Mutant(
        "the CRC of index entries is not checked",
        "promise 9",
        (("src/klamm/log/index.py", "if crc == crc32c(data[:-4]) else None", "if crc >= 0 else None"),),
        (f"{DAMAGE_TESTS}::test_damage_to_a_log_or_its_index_is_an_error_or_harmless",),
    ),
    Mutant(
        "retention takes damaged segments away",
        "promise 7",
        ((RETENTION, "_DAMAGED = (1 << 63) - 1", "_DAMAGED = 0"),),
        (f"{DAMAGE_TESTS}::test_damage_to_a_log_or_its_index_is_an_error_or_harmless",),
    ),
    Mutant(
        "records expire by one clock",
        "neither a wrong clock nor a timestamp deletes a young record",
        (
            (
                CLEANUP,
                "        clock_ms = self._heads.expiry_ms()\n        try:",
                "        clock_ms = self._heads.clock_ms()\n        try:",
            ),
        ),
        (f"{RETENTION_TESTS}::test_a_clock_that_was_ahead_at_boot_expires_nothing_young_and_blocks_nothing",),
    ),
    Mutant(
        "a timestamp in the future keeps a segment",
        "neither a wrong clock nor a timestamp keeps old records forever",
        ((RETENTION, "    if 0 <= max_timestamp <= clock_ms + _SLACK_MS or", "    if 0 <= max_timestamp or"),),
        (f"{RETENTION_TESTS}::test_a_record_from_the_future_does_not_switch_retention_off",),
    ),
    Mutant(
        "records that were not synced are lost in silence",
        "internals/recovery.md: what is cut, or lost with the power, is logged",
        ((RECOVERY, "if end < proof.next_offset and not known.repaired:", "if False:"),),
        (f"{DAMAGE_TESTS}::test_damage_above_what_was_synced_is_a_cut_that_is_logged",),
    ),
    Mutant(
        "a torn tail is not set aside",
        "promise 7",
        (
            (
                RECOVERY,
                "        files.replace(path + suffix, files.pieces(path, good.position, good.size))\n",
                "",
            ),
        ),
        (f"{DAMAGE_TESTS}::test_damage_above_what_was_synced_is_a_cut_that_is_logged",),
    ),
    Mutant(
        "healing only syncs again",
        "promise 6",
        ((RECOVERY, "            if base >= first and flushed < ends[base]:", "            if False:"),),
        (f"{FAILED_SYNC_TESTS}::test_another_process_does_not_ack_what_a_failed_sync_has_lost",),
    ),
    Mutant(
        "healing writes in place",
        "promise 6",
        ((RECOVERY, "                _os.truncate(fd, self.position)\n", ""),),
        (f"{FAILED_SYNC_TESTS}::test_another_process_does_not_ack_what_a_failed_sync_has_lost",),
    ),
    Mutant(
        "readers do not wait for a healer",
        "promise 6",
        (
            (
                READER,
                "        if self.partition.log.flags & SYNC_FAILED and",
                "        if self._tries_left:\n            return False\n        if",
            ),
        ),
        (f"{FAILED_SYNC_TESTS}::test_readers_do_not_notice_that_a_log_is_healed",),
    ),
    Mutant(
        "a reader looks beyond the commit",
        "promise 1",
        (
            (
                READER,
                "size = min(max_bytes, now.position - self._position) if active else max_bytes",
                "size = max_bytes",
            ),
            (READER, "            if done and following > limit:", "            if False:"),
        ),
        (f"{KILLED_WRITER_TESTS}::test_a_writer_killed_at_any_step_leaves_committed_batches_and_nothing_else",),
    ),
    Mutant(
        "the recovery point is written under the flush lock",
        "log/head.py: nothing but a sync and a rewrite is done under the flush lock",
        (
            (
                PARTITION,
                (
                    "        with log.point_lock():\n            now = log.snapshot()\n"
                    "            head.sync(log, now.next_offset)\n"
                ),
                (
                    "        from contextlib import ExitStack\n"
                    "        with log.point_lock(), ExitStack() as stack:\n            now = log.snapshot()\n"
                    "            head.sync(log, now.next_offset)\n            stack.enter_context(log.flush_lock())\n"
                ),
            ),
        ),
        (f"{STOPPED_TESTS}::test_a_process_stopped_while_it_writes_a_recovery_point_holds_up_others_in_one_sync_only",),
    ),
    Mutant(
        "zeros that were allocated ahead are kept as a torn tail",
        "log/_ahead.pxi AHD3",
        (
            (
                RECOVERY,
                "        if fault is not None and segment.is_zero(",
                "        if fault is None and segment.is_zero(",
            ),
        ),
        (f"{AHEAD_TESTS}::test_a_rest_of_zeros_was_never_written_and_leaves_no_cut_file",),
    ),
    Mutant(
        "recovery leaves zeros in a closed segment",
        "log/_ahead.pxi AHD2",
        (
            (
                RECOVERY,
                "    for base, position in good.unwritten:\n",
                "    for base, position in good.unwritten[-1:0]:\n",
            ),
        ),
        (f"{AHEAD_TESTS}::test_a_closed_segment_whose_rest_came_back_with_a_power_cut_is_cut",),
    ),
    Mutant(
        "zeros in a compacted log are taken for a gap of compaction",
        "log/_ahead.pxi AHD3",
        ((RECOVERY, "0 if good.is_zero_ended else gaps_below", "gaps_below"),),
        (f"{AHEAD_TESTS}::test_zeros_in_a_compacted_log_are_no_gap_of_compaction",),
    ),
    Mutant(
        "a roll leaves blocks that were allocated ahead in the closed segment",
        "log/_ahead.pxi AHD2",
        ((APPEND, "    cdef int error = give_back(w, now)\n", "    cdef int error = 0\n"),),
        (f"{AHEAD_TESTS}::test_a_closed_segment_ends_with_its_last_batch",),
    ),
    Mutant(
        "blocks ahead are taken for a head that is older than its log",
        "log/_ahead.pxi AHD1",
        ((APPEND, "            if written:\n", "            written = 1\n            if written:\n"),),
        (f"{AHEAD_TESTS}::test_a_process_that_opens_a_log_with_blocks_ahead_goes_on_in_it",),
    ),
    Mutant(
        "what lies behind the commit is taken for blocks ahead, unseen",
        "log/_ahead.pxi AHD1",
        ((APPEND, "            if written:\n", "            if False:\n"),),
        (f"{AHEAD_TESTS}::test_a_head_that_is_older_than_the_log_is_told_from_blocks_ahead",),
    ),
    Mutant(
        "blocks ahead are given back though another process appends",
        "log/owner.h LCK1",
        (
            (
                "src/klamm/log/_ahead.pxi",
                "    if owner_take(&w.slot.owner, &w.life, OWNER_TRY):\n        return\n",
                "    w.slot.owner = w.life.number\n",
            ),
        ),
        (f"{AHEAD_TESTS}::test_what_is_not_used_is_given_back_when_files_are_closed",),
    ),
]
