"""Mutants of retention, compaction, groups, backup, repair and maintenance."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

GROUPS = "src/klamm/store/groups.py"
BACKUP = "src/klamm/store/backup.py"
REPAIR = "src/klamm/store/repair.py"
SLOTS = "src/klamm/store/slots.py"
SLOT_TESTS = "tests/store/test_slots.py"
UPGRADE_TESTS = "tests/store/test_upgrade.py"
SMALLER_TESTS = "tests/store/test_smaller_heads.py"
REPLACED_TESTS = "tests/store/test_replaced_store.py"
MISSING = "tests/crash/test_missing_files.py::test_each_file_that_is_removed_or_put_back_is_made_again_or_named"

OLDER = (
    "tests/crash/test_missing_files.py::test_a_klamm_db_without_the_last_durable_write_is_refused_until_it_is_accepted"
)

APPEND = "src/klamm/log/_append.pxi"

MUTANTS = [
    Mutant(
        "a process appends forever to a store that is gone",
        "docs/guide/durability.md",
        ((APPEND, "    if is_replaced(w.store_path):\n        return R_REPLACED\n", ""),),
        (f"{REPLACED_TESTS}::test_what_a_process_does_to_its_store_never_reaches_the_one_at_its_path",),
    ),
    Mutant(
        "files that were put into the directory of an open store are written by its old head",
        "docs/guide/durability.md",
        ((APPEND, "    if look_at(w.store_path):\n        errno = ESTALE\n        return -1\n", ""),),
        (f"{REPLACED_TESTS}::test_an_append_opens_no_file_that_was_put_into_its_directory",),
    ),
    Mutant(
        "files of a store are reached by its path, which may be another store's",
        "disk/roots.py",
        (
            (
                "src/klamm/disk/roots.py",
                "                    self.files = name\n",
                "                    self.files = path\n",
            ),
        ),
        (f"{REPLACED_TESTS}::test_what_a_process_does_to_its_store_never_reaches_the_one_at_its_path",),
    ),
    Mutant(
        "a store that is closed leaves its directory open as long as a partition of it is referred to",
        "disk/roots.py",
        (
            (
                "src/klamm/log/partition.py",
                "            self.directory, self._root = readable(self.directory), None\n",
                "",
            ),
        ),
        (f"{REPLACED_TESTS}::test_a_closed_store_leaves_nothing_open_and_its_partitions_name_the_path",),
    ),
    Mutant(
        "files that were put into the directory of an open store are read by its old head",
        "docs/guide/durability.md",
        (
            (
                "src/klamm/log/reader.py",
                "            self.partition.heads.check_place(now=True)  ",
                "            pass  ",
            ),
        ),
        (f"{REPLACED_TESTS}::test_what_a_process_does_to_its_store_never_reaches_the_one_at_its_path",),
    ),
    Mutant(
        "a consumer waits forever for records of a store that is gone",
        "docs/guide/durability.md",
        (("src/klamm/client/consume/log_engine.py", "        self._core.heads.check_place()\n", ""),),
        (f"{REPLACED_TESTS}::test_what_a_process_does_to_its_store_never_reaches_the_one_at_its_path",),
    ),
    Mutant(
        "a server serves on what is not at its path any more",
        "docs/guide/durability.md",
        (
            (
                "src/klamm/kafka/server.py",
                "            except NotAStore as error:\n                return error\n",
                "            except NotAStore:\n                continue\n",
            ),
        ),
        (f"{REPLACED_TESTS}::test_a_server_ends_when_its_store_is_replaced_and_leaves_the_other_alone",),
    ),
    Mutant(
        "check looks at no link of the table of producers",
        "docs/internals/promises.md",
        (
            (
                "src/klamm/log/producers.py",
                "_wrong_links(links, used, buckets, key, ends) if is_at_rest else None",
                "None",
            ),
        ),
        ("tests/store/test_check.py::test_a_table_of_producers_whose_links_are_wrong_is_found_and_made_again",),
    ),
    Mutant(
        "a store without klamm.db is a new store",
        "store/directory.py: a catalog is not made where topics are",
        (
            (
                "src/klamm/store/directory.py",
                '        if os.listdir(f"{self.files}/topics") and',
                "        if False and",
            ),
            ("src/klamm/store/directory.py", "    if not rebuild and not os.path", "    if False and not os.path"),
            ("src/klamm/store/found_catalog.py", "    if changes < known and", "    if False and"),
        ),
        (MISSING,),
    ),
    Mutant(
        "repair leaves a damaged klamm.db where it is",
        "store/found_catalog.py: a damaged klamm.db is set aside",
        (("src/klamm/store/found_catalog.py", "catalog.check() if rebuild else []", "[]"),),
        ("tests/store/test_deletion.py::test_a_damaged_klamm_db_is_set_aside_by_repair_and_made_again",),
    ),
    Mutant(
        "repair sets klamm.db aside under a process that uses it",
        "store/found_catalog.py",
        (
            (
                "src/klamm/store/found_catalog.py",
                '    core.presence.be_alone("klamm.db is damaged")\n',
                "    pass\n",
            ),
        ),
        ("tests/store/test_deletion.py::test_a_damaged_klamm_db_is_not_set_aside_under_a_process_that_uses_it",),
    ),
    Mutant(
        "only some of the durable writes of klamm.db are counted",
        "store/catalog.py CAT8",
        (
            (
                "src/klamm/store/catalog.py",
                "            self.database.count_write = self._count_change\n",
                "",
            ),
        ),
        (OLDER,),
    ),
    Mutant(
        "another klamm.db than before is as good",
        "store/catalog.py CAT8",
        (("src/klamm/store/found_catalog.py", "(core, database) and is_in_place\n", "(core, database) and False\n"),),
        (OLDER,),
    ),
    Mutant(
        "klamm.db may be older than the logs",
        "store/catalog.py CAT8",
        (("src/klamm/store/found_catalog.py", "    if changes < known and", "    if False and"),),
        (MISSING,),
    ),
    Mutant(
        "maintenance removes what klamm.db does not know",
        "store/deletion.py: nothing goes without a tombstone",
        (
            (
                "src/klamm/store/deletion.py",
                "        core.unknown_directories |= unknown\n",
                "        for name in unknown:\n            _remove(core, name, name[-32:])\n",
            ),
        ),
        (
            "tests/store/test_deletion.py::test_a_directory_that_klamm_db_does_not_know_is_left_alone_and_can_be_put_back",
        ),
    ),
    Mutant(
        "another lock file is as good",
        "store/presence.py",
        (
            (
                "src/klamm/store/presence.py",
                "        if known == ours:\n            return True\n",
                "        return True\n",
            ),
        ),
        (MISSING,),
    ),
    Mutant(
        "retention.bytes takes one segment too many",
        "promise 8",
        (
            (
                "src/klamm/log/retention.py",
                "        too_much = 0 <= retention_bytes <= total - sizes[base]\n",
                "        too_much = 0 <= retention_bytes <= total\n",
            ),
        ),
        (
            "tests/log/test_retention.py::test_the_oldest_segments_go_while_the_rest_is_still_as_large_as_retention_bytes",
        ),
    ),
    Mutant(
        "compaction goes beyond the stable offset",
        "log/compaction.py X1",
        (("src/klamm/log/compaction.py", "[now.active_base, now.stable_offset, ", "[now.active_base, "),),
        ("tests/log/test_compaction.py::test_nothing_goes_from_where_a_transaction_is_open_and_what_was_aborted_goes",),
    ),
    Mutant(
        "the first damaged partition ends maintenance",
        "store/maintenance.py: the other partitions are maintained, too",
        (
            (
                "src/klamm/store/maintenance.py",
                "        except KlammError as error:  # do the other",
                "        except KeyError as error:  # do the other",
            ),
        ),
        ("tests/store/test_maintenance.py::test_a_damaged_partition_is_reported_and_the_others_are_maintained",),
    ),
    Mutant(
        "a server takes a group over from processes that are members",
        "store/groups.py G4",
        ((GROUPS, '        if door == "kafka" and self.live_member_indexes(group.number):\n', "        if False:\n"),),
        ("tests/store/test_groups.py::test_a_door_is_claimed_when_nobody_sits_at_the_other",),
    ),
    Mutant(
        "processes take a group over from clients of a server",
        "store/groups.py G4",
        ((GROUPS, '        if door == "klamm" and self.has_members_at_server(group):\n', "        if False:\n"),),
        ("tests/store/test_groups.py::test_a_door_is_claimed_when_nobody_sits_at_the_other",),
    ),
    Mutant(
        "a backup does not notice that a compaction has overtaken it",
        "a backup is one moment of the store",
        (
            (
                BACKUP,
                "    if now.active_base < cleaner_checkpoint.load(source).gaps_below < cleaner_checkpoint.EVERYWHERE:\n",  # noqa: E501
                "    if False:\n",
            ),
        ),
        ("tests/store/test_maintenance.py::test_a_copy_that_a_compaction_overtakes_starts_over",),
    ),
    Mutant(
        "repair starts a log without a segment at offset 0 again",
        "promise 8",
        (
            (
                REPAIR,
                "last_offset, log_start = max(self.proof.next_offset, self.proof.flushed_offset), self.proof.log_start",
                "pass",
            ),
        ),
        (
            "tests/crash/test_missing_files.py::test_a_log_without_segment_and_recovery_point_goes_on_where_its_head_says",
        ),
    ),
    Mutant(
        "repair does not keep what it cuts out",
        "store/repair.py: what is taken away is kept beside the log",
        (
            (
                REPAIR,
                "        if found and any(each.stop > each.position for each, _ in found):\n",
                "        if False:\n",
            ),
        ),
        ("tests/store/test_check.py::test_offsets_after_damage_stay_what_they_were",),
    ),
    Mutant(
        "repair removes a segment that is out of line",
        "store/repair.py: what is taken away is kept beside the log",
        (
            (
                REPAIR,
                "_os.rename(path, path + self.suffix)\n                if os.stat(path + self.suffix).st_size:",
                "files.remove(path)\n                if True:",
            ),
        ),
        ("tests/store/test_check.py::test_a_stray_segment_after_the_active_one_is_moved_aside",),
    ),
    Mutant(
        "a slot is used again while a lock of it is held",
        "internals/format.md: to use a slot again takes all four of its locks",
        (
            (SLOTS, "if slot >= size or slot in held:", "if slot >= size:"),
            (SLOTS, "if not log.is_locked_elsewhere:", "if True:"),
            (
                SLOTS,
                "with lock.hold(head.clean_byte(slot)), log.point_lock(), log.append_lock(), log.flush_lock():",
                "if True:",
            ),
        ),
        (f"{SLOT_TESTS}::test_a_slot_whose_lock_a_stopped_process_holds_is_not_used_again_before_it_is_free",),
    ),
    Mutant(
        "slots of a deleted topic are free at once",
        "store/catalog.py CAT2",
        (
            (
                "src/klamm/store/catalog.py",
                "                row = topic.id, ",
                "                free_slots.give(execute, topic.partitions)\n                row = topic.id, ",
            ),
        ),
        ("tests/store/test_catalog.py",),
    ),
    Mutant(
        "a slot that another partition had is believed when heads is put back",
        "internals/format.md: a log is opened only if the slot has its identity",
        (("src/klamm/store/directory.py", "            slots.lay_out_replaced(", "            len  # ("),),
        (f"{SLOT_TESTS}::test_heads_from_a_backup_knows_no_partition_that_came_after_it",),
    ),
    Mutant(
        "heads is cut under a reader that has it mapped",
        "internals/format.md: heads gets smaller",
        ((SLOTS, "        if is_sole:\n", "        if True:\n"),),
        (f"{SMALLER_TESTS}::test_no_slot_goes_while_another_process_has_the_file_mapped",),
    ),
    Mutant(
        "heads is cut though klamm.db may not know all of its slots",
        "internals/format.md: heads gets smaller",
        (
            (
                "src/klamm/store/catalog.py",
                "return end if free_slots.count_from(execute, end) == next_slot - end else max(end, next_slot)",
                "return end",
            ),
        ),
        (f"{SMALLER_TESTS}::test_slots_that_klamm_db_does_not_know_any_more_stay",),
    ),
    Mutant(
        "slots of topics that can be put back are given to others",
        "internals/format.md: slots that were lost are free, too",
        ((SLOTS, "if identity is None or identity[0] not in topics]", "if slot or identity is None or topics]"),),
        (f"{SMALLER_TESTS}::test_slots_that_klamm_db_does_not_know_any_more_stay",),
    ),
    Mutant(
        "slots of a format without free ones stay lost",
        "internals/format.md: slots that were lost are free, too",
        (
            (
                SLOTS,
                "            if lost := _without_directory(heads, unused):\n",
                "            if lost := list(unused)[:0]:\n",
            ),
        ),
        (f"{UPGRADE_TESTS}::test_slots_of_topics_that_were_deleted_before_an_upgrade_are_used_again",),
    ),
    Mutant(
        "pages of heads are sparse after it was lost",
        "store/slots.py: no page of heads is sparse",
        ((SLOTS, "        _fill_up(heads, fresh.start)\n", ""),),
        (f"{SMALLER_TESTS}::test_heads_is_never_sparse_though_free_slots_were_lost_with_it",),
    ),
    Mutant(
        "an upgrade leaves the old name of what compaction did",
        "internals/format.md: upgrade",
        (("src/klamm/store/upgrade.py", '"cleaned": "cleaner-checkpoint", ', ""),),
        (f"{UPGRADE_TESTS}::test_an_upgrade_killed_at_any_step_is_finished_by_the_next_one",),
    ),
    Mutant(
        "owner words of an older format are not cleared",
        "log/owner.h LCK6",
        (("src/klamm/store/upgrade.py", "        heads.forget_lives()\n", ""),),
        (f"{UPGRADE_TESTS}::test_no_owner_of_an_older_format_is_left_with_klamm_db_or_without_it",),
    ),
    Mutant(
        "heads keeps its old format where klamm.db is made anew",
        "internals/format.md: upgrade",
        (
            (
                "src/klamm/store/directory.py",
                "        files.sync_directory(self.files)\n        upgrade.finish(self.heads)\n",
                "        files.sync_directory(self.files)\n",
            ),
        ),
        (f"{UPGRADE_TESTS}::test_no_owner_of_an_older_format_is_left_with_klamm_db_or_without_it",),
    ),
    Mutant(
        "an upgrade does not have to be alone",
        "internals/format.md: upgrade",
        (
            ("src/klamm/store/directory.py", "            self.presence.be_alone(upgrade.WHY)\n", "            pass\n"),
            ("src/klamm/store/catalog.py", "        before()\n", ""),
        ),
        (f"{UPGRADE_TESTS}::test_an_upgrade_waits_until_every_process_has_closed_the_store",),
    ),
    Mutant(
        "features that are not known are ignored",
        "internals/format.md: features",
        (("src/klamm/store/features.py", "        if unknown:\n", "        if False:\n"),),
        (f"{UPGRADE_TESTS}::test_a_feature_that_is_not_known_is_refused_as_its_kind_says",),
    ),
    Mutant(
        "a process whose open was interrupted keeps the store open",
        "store/directory.py: a lease",
        (("src/klamm/api/store.py", "            lease.release()\n            raise\n", "            raise\n"),),
        ("tests/crash/test_opening.py::test_a_process_whose_open_or_close_was_interrupted_has_the_store_open_no_more",),
    ),
    Mutant(
        "a process whose close was interrupted keeps the store open",
        "store/directory.py: a lease",
        (("src/klamm/store/directory.py", "            if is_ours:\n", "            if False:\n"),),
        ("tests/crash/test_opening.py::test_a_process_whose_open_or_close_was_interrupted_has_the_store_open_no_more",),
    ),
    Mutant(
        "a thread that read the topics earlier puts older settings back",
        "store/directory.py: what is known of a topic never gets older",
        (
            (
                "src/klamm/store/directory.py",
                "        if known is not None and (version < known.version or",
                "        if known is not None and (",
            ),
        ),
        ("tests/crash/test_opening.py::test_a_thread_that_read_the_topics_earlier_puts_no_older_settings_back",),
    ),
]
