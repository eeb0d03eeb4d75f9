"""Tests that ask for what Klamm does not promise on Windows, and why. conftest.py skips them there.

(Those that fork or stop processes skip themselves: Python has no `os.fork` there.)
"""

from __future__ import annotations

ONE_PROCESS = "two openers of one store: on Windows the second is refused"
MEMORY = "looks into mapped files: on Windows they are memory"
RECOVERED = "heads are recovered at every open: what lies whole in the files is there"
SNAPSHOT = "on Windows a read-only store stays as it was when it was opened"
OPEN_FILES = "wants names of open files to go, or to be replaced, at once; old Windows and Wine wait for the last close"
SYNCED_NAMES = "counts syncs of directories"
PROC = "reads /proc"
SIGINT = "sends SIGINT to a process; Windows knows that only for its whole console"
FORKS = "its child forks"
NAMES = "names that Windows does not allow"
RIGHTS = "takes away rights with chmod"
CLOCK = "Python's clock has steps of 16 ms there"
TEXT = "compares paths, or what a child printed or ended with, as text"

SKIPPED = {
    "disk/test_bell.py::test_a_wait_ends_when_its_time_is_up": CLOCK,
    "disk/test_bell.py::test_a_wait_longer_than_one_nap": CLOCK,
    "disk/test_files.py::test_a_link_is_judged": PROC,
    "disk/test_files.py::test_a_real_tmpfs": PROC,
    "disk/test_files.py::test_a_replacement_that_fails_at_any_step": SYNCED_NAMES,
    "disk/test_files.py::test_network_and_unknown": PROC,
    "disk/test_files.py::test_the_innermost_and_latest_mount": PROC,
    "disk/test_locks.py::": ONE_PROCESS,
    "disk/test_os.py::test_a_trapped_step_fails_once_with_its_errno_and_does_nothing[UNLINK]": OPEN_FILES,
    "batch/test_lane.py::test_bytes_and_oldest_follow_the_open_batches": CLOCK,
    "log/test_cleaning.py::test_records_before_an_offset_go_and_all_others_stay[0]": OPEN_FILES,
    "log/test_compaction.py::test_a_reader_in_the_middle_of_a_segment_that_is_replaced_again_and_again_misses_nothing[o": OPEN_FILES,  # noqa: E501
    "log/test_compaction.py::test_a_reader_that_was_open_before_the_first_compaction": OPEN_FILES,
    "log/test_compaction.py::test_damage_stops_it": TEXT,
    "log/test_head.py::test_a_thread_that_waits_for_the_append_lock": ONE_PROCESS,
    "log/test_head.py::test_an_append_that_waits_while_the_log_is_closed": ONE_PROCESS,
    "log/test_head.py::test_whoever_only_tries": ONE_PROCESS,
    "log/test_index.py::test_an_index_written_anew": OPEN_FILES,
    "log/test_partition.py::test_without_a_lock_file": MEMORY,
    "log/test_producers.py::test_any_history": OPEN_FILES,
    "log/test_producers.py::test_more_producers_than_a_chunk": MEMORY,
    "log/test_producers.py::test_recovery_knows": OPEN_FILES,
    "log/test_reader.py::test_a_closed_segment_that_was_cut_is_an_error": TEXT,
    "log/test_reader.py::test_a_missing_segment_is_an_error": OPEN_FILES,
    "log/test_reader.py::test_a_reader_of_a_deleted_topic": OPEN_FILES,
    "log/test_reader.py::test_a_reader_whose_records_were_deleted": OPEN_FILES,
    "log/test_reader.py::test_a_reader_within_a_removed_segment": OPEN_FILES,
    "log/test_reader.py::test_everything_before_a_damaged_batch": TEXT,
    "log/test_recovery.py::test_a_batch_larger_than": OPEN_FILES,
    "log/test_recovery.py::test_a_dry_recovery": MEMORY,
    "log/test_recovery.py::test_a_log_that_is_whole": OPEN_FILES,
    "log/test_recovery.py::test_a_recovery_that_fails_at_any_step": OPEN_FILES,
    "log/test_recovery.py::test_any_history_of_appends": OPEN_FILES,
    "log/test_recovery.py::test_damage_below_the_recovery_point_is_an_error_and_nothing_is_cut[missing]": OPEN_FILES,
    "log/test_recovery.py::test_epochs_are_known": OPEN_FILES,
    "log/test_recovery.py::test_everything_after_the_first_bad_batch": OPEN_FILES,
    "log/test_recovery.py::test_processes_that_have_it_open": ONE_PROCESS,
    "log/test_recovery.py::test_recovery_after_a_clean_close": PROC,
    "log/test_recovery.py::test_rubbish_behind_the_last_batch": OPEN_FILES,
    "log/test_recovery.py::test_the_index_is_made_to_agree": OPEN_FILES,
    "log/test_sync.py::test_a_failed_sync_of_a_directory": SYNCED_NAMES,
    "log/test_sync.py::test_a_sync_covers_everything": SYNCED_NAMES,
    "log/test_sync.py::test_the_first_sync_after_a_roll": SYNCED_NAMES,
    "store/test_backup.py::test_a_backup_that_was_killed": TEXT,
    "store/test_backup.py::test_bytes_beyond_the_commit": RECOVERED,
    "store/test_backup.py::test_damage_is_not_copied": TEXT,
    "store/test_catalog.py::TestTwoProcesses": OPEN_FILES,
    "store/test_check.py::test_a_damaged_head": MEMORY,
    "store/test_check.py::test_a_flipped_bit_anywhere": TEXT,
    "store/test_check.py::test_a_log_is_not_mended": ONE_PROCESS,
    "store/test_check.py::test_a_missing_segment_is_found_and_the_others_stay[3]": RECOVERED,
    "store/test_check.py::test_a_reader_goes_on_after_a_repair": OPEN_FILES,
    "store/test_check.py::test_a_repair_killed_anywhere": TEXT,
    "store/test_check.py::test_a_segment_cut_at_any_length_keeps_what_is_before_and_after[3]": RECOVERED,
    "store/test_check.py::test_a_stray_segment": RECOVERED,
    "store/test_check.py::test_a_writer_that_died": TEXT,
    "store/test_check.py::test_all_segments_gone": RECOVERED,
    "store/test_check.py::test_an_index_that_lies": TEXT,
    "store/test_check.py::test_bytes_beyond_the_commit": RECOVERED,
    "store/test_check.py::test_damage_beside_the_log": TEXT,
    "store/test_check.py::test_what_was_never_committed": RECOVERED,
    "store/test_database.py::test_a_creator_killed": FORKS,
    "store/test_database.py::test_a_directory_that_cannot_be_written": RIGHTS,
    "store/test_database.py::test_a_path_of_odd_characters": NAMES,
    "store/test_database.py::test_forks": FORKS,
    "client/test_consumer.py::test_a_damaged_batch_is_told": TEXT,
    "client/test_groups.py::test_a_store_opened_for_reading_only_has_no_members": SNAPSHOT,
    "client/test_waiting.py::test_a_consumer_of_a_read_only_store_sees_what_comes": SNAPSHOT,
    "client/test_waiting.py::test_a_handler_of_ones_own": SIGINT,
    "client/test_waiting.py::test_a_second_ctrl_c": SIGINT,
    "client/test_waiting.py::test_ctrl_c": SIGINT,
    "client/test_worker_signals.py::": SIGINT,
    "client/test_workers.py::test_workers_of_a_killed_reader_end": ONE_PROCESS,
}
