"""Mutants of embedded transactions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STORE_TRANSACTIONS = "src/klamm/store/transactions.py"
RESOLVER = "src/klamm/store/transaction_resolver.py"
PARTICIPANTS = "src/klamm/client/participants.py"
TRANSACTION = "src/klamm/client/transaction.py"
LINEAGE = "src/klamm/store/lineage.py"
LINEAGE_TESTS = "tests/client/test_lineage.py"
ONCE = "src/klamm/store/once.py"
ONCE_TESTS = "tests/client/test_once.py"
STORE_TESTS = "tests/store/test_transactions.py"
KILLED_TRANSACTION_TESTS = "tests/crash/test_killed_transaction.py"
TRANSACTION_POWER_CUT_TESTS = "tests/crash/test_transaction_power_cut.py"
TRANSACTION_TESTS = "tests/client/test_transaction.py"
TRANSACTION_PROGRESS_TESTS = "tests/client/test_transaction_progress.py"
GIVEN = "        for session in [each for each, claim in self._claims.items() if not claim.is_empty]:\n"

MUTANTS = [
    Mutant(
        "an abort is logged under the write lock of klamm.db",
        "internals/commit.md: waiting",
        (
            (
                RESOLVER,
                "    aborted.append(done.row)\n",
                '    aborted.append(done.row)\n                    _log.info("Aborting")\n',
            ),
        ),
        ("tests/store/test_slow_log.py::test_an_abort_is_logged_when_the_write_lock_is_released",),
    ),
    Mutant(
        "a consumer leaves a transaction behind that was not ended",
        "client/participants.py",
        ((PARTICIPANTS, "        if session.transaction is not None:", "        if False:"),),
        (f"{TRANSACTION_PROGRESS_TESTS}::test_a_transaction_that_was_forgotten_is_aborted",),
    ),
    Mutant(
        "a late commit is not refused",
        "store/transactions.py T3",
        (
            (
                STORE_TRANSACTIONS,
                "        if row is None or not row.is_ongoing:\n            raise _ended(mine)\n        return row",
                "        return row",
            ),
        ),
        (f"{STORE_TESTS}::test_a_person_can_abort_any_transaction",),
    ),
    Mutant(
        "a partition is registered after it was appended to",
        "store/transactions.py T1",
        (
            (
                TRANSACTION,
                ("                self._core.transactions.register(self._identity, fresh, self._timeout_ms)\n"),
                "",
            ),
            (
                TRANSACTION,
                "                self._append_first()\n",
                (
                    "                self._append_first()\n"
                    "            if fresh:\n"
                    "                self._core.transactions.register(self._identity, fresh, self._timeout_ms)\n"
                ),
            ),
        ),
        (f"{KILLED_TRANSACTION_TESTS}::test_killed_at_any_step_it_is_there_whole_or_not_at_all",),
    ),
    Mutant(
        "a transaction is decided before its records are on disk",
        "store/transactions.py T2",
        (
            (
                TRANSACTION,
                "                partition.sync(end)\n            with self._members",
                "                pass\n            with self._members",
            ),
        ),
        (f"{TRANSACTION_POWER_CUT_TESTS}::test_after_a_power_cut_a_transaction_is_whole_or_not_there",),
    ),
    Mutant(
        "offsets are committed apart from the decision",
        "store/transactions.py T1",
        (
            (
                TRANSACTION,
                "                    also=self._put_also if self._once or self._moves() else None,",
                "                    also=None,",
            ),
            (
                TRANSACTION,
                "                self._complete_commits()\n        except AlreadyCommitted",
                (
                    "                database = self._core.catalog.database\n"
                    "                with database.db_lock(), database.transaction() as execute:\n"
                    "                    self._put_also(execute)\n"
                    "                self._complete_commits()\n"
                    "        except AlreadyCommitted"
                ),
            ),
        ),
        (f"{TRANSACTION_PROGRESS_TESTS}::test_whoever_commits_in_between_makes_the_transaction_fail",),
    ),
    Mutant(
        "a row goes before its markers are on disk",
        "store/transactions.py T2",
        (
            (
                STORE_TRANSACTIONS,
                "        return all(partition.log.flushed_offset >= end or",
                "        return all(True or",
            ),
        ),
        (f"{STORE_TESTS}::test_a_committed_transaction_is_seen_and_its_row_goes_with_a_later_registration",),
    ),
    Mutant(
        "a row is complete, or gone, before its markers are on disk",
        "store/transactions.py T2",
        (
            (
                RESOLVER,
                "            return is_synced([end]) or sync_if_possible(self._core, *end)\n",
                "            return True\n",
            ),
            (
                RESOLVER,
                "        if len(ends) > 1:\n            self.sync_now",
                "        if False:\n            self.sync_now",
            ),
        ),
        (
            f"{TRANSACTION_POWER_CUT_TESTS}::test_after_a_power_cut_a_transaction_is_whole_or_not_there",
            "tests/kafka/transactions/test_transaction_coordinator.py::test_transactions_one_after_the_other",
        ),
    ),
    Mutant(
        "resolvers abort what was committed",
        "store/transactions.py T1",
        (
            (
                "src/klamm/store/markers.py",
                "append_marker(\n        row.producer_id, row.next_epoch, commit=row.is_committed,",
                "append_marker(\n        row.producer_id, row.next_epoch, commit=False,",
            ),
        ),
        (f"{STORE_TESTS}::test_the_transaction_of_a_killed_process_is_ended_as_it_was_decided",),
    ),
    Mutant(
        "of a producer id, the younger transaction is resolved first",
        "store/transactions.py T5",
        (
            (
                RESOLVER,
                "sorted((row for row in rows if row.is_prepared), key=lambda row: row.key)",
                "[row for row in rows if row.is_prepared]",
            ),
        ),
        (f"{TRANSACTION_POWER_CUT_TESTS}::test_after_a_power_cut_a_transaction_is_whole_or_not_there",),
    ),
    Mutant(
        "a living process's transaction counts as abandoned",
        "store/transactions.py T4",
        (
            (
                RESOLVER,
                "members is not None and bool(members.held(",
                "members is None and bool(members.held(",
            ),
        ),
        (f"{STORE_TESTS}::test_a_store_that_is_opened_ends_what_killed_processes_left",),
    ),
    Mutant(
        "a resolver does not look again what is still going on",
        "store/transactions.py T1",
        (
            (
                RESOLVER,
                "                row = table.find(execute, key)  # again",
                "                row = looked_at[key]  # again",
            ),
        ),
        (f"{STORE_TESTS}::test_a_resolver_that_read_a_row_before_its_commit_does_not_undo_it",),
    ),
    Mutant(
        "a name that was taken over may still commit",
        "store/transactions.py T6",
        (
            (
                STORE_TRANSACTIONS,
                "        if mine.name is not None and table.holder(execute, mine.name) != mine.producer_id:",
                "        if False:",
            ),
        ),
        (f"{STORE_TESTS}::test_a_newer_one_of_a_name_ends_the_older",),
    ),
    Mutant(
        "a producer id is used again though a marker is missing",
        "store/transactions.py T5",
        ((TRANSACTION, "        identity.spoiled = error is not None or", "        identity.spoiled ="),),
        (f"{TRANSACTION_TESTS}::test_a_marker_that_cannot_be_written_is_written_by_the_next_one",),
    ),
    Mutant(
        "an aborted transaction leaves its consumers where they are",
        "client/transaction.py: abort seeks the consumers back",
        (
            (
                TRANSACTION,
                "                if rewind and self._state",
                "                if False and self._state",
            ),
        ),
        (f"{TRANSACTION_PROGRESS_TESTS}::test_an_aborted_transaction_gives_the_same_batch_again",),
    ),
    Mutant(
        "a consumer goes back only if its offsets were given",
        "client/transaction.py CTX3",
        (
            (
                TRANSACTION,
                "        for session in self._pending_commits:\n            try:\n",
                f"{GIVEN}            try:\n",
            ),
        ),
        (
            f"{TRANSACTION_PROGRESS_TESTS}::test_others_end_a_transaction_before_it_commits_offsets_and_no_record_is_lost",
        ),
    ),
    Mutant(
        "a consumer takes part from its commit_offsets on",
        "client/transaction.py CTX3",
        (
            (
                TRANSACTION,
                "        pending_commit = self._pending_commits.get(session)\n",
                "        pending_commit = self._pending_commits.setdefault(session, session.commits.pending_commit())\n",  # noqa: E501
            ),
        ),
        (f"{TRANSACTION_PROGRESS_TESTS}::test_offsets_of_a_consumer_that_does_not_take_part_are_refused",),
    ),
    Mutant(
        "a consumer that could not go back reads on",
        "client/transaction.py CTX3",
        (
            (
                "src/klamm/client/consume/session.py",
                "            if self._rewind_due is not None:\n",
                "            if False:\n",
            ),
        ),
        (f"{TRANSACTION_PROGRESS_TESTS}::test_a_consumer_that_cannot_go_back_at_once_does_so_before_it_reads_on",),
    ),
    Mutant(
        "a loop over records goes on after its consumer went back",
        "client/consume/read_engine.py E2",
        (("src/klamm/client/consume/cursor.py", "        before.end_iteration()\n", ""),),
        (f"{TRANSACTION_PROGRESS_TESTS}::test_a_loop_over_records_goes_back_too",),
    ),
    Mutant(
        "two jobs commit one number twice",
        "store/once.py ONC1",
        ((ONCE, "    if is_committed(execute, once):\n        raise", "    if False:\n        raise"),),
        (f"{ONCE_TESTS}::test_of_two_that_race_for_a_number_one_is_skipped",),
    ),
    Mutant(
        "a number is skipped whatever it stands for",
        "store/once.py ONC2",
        ((ONCE, " and once.fingerprint == there.fingerprint:", ":"),),
        (f"{ONCE_TESTS}::test_another_fingerprint_and_an_earlier_number_are_errors",),
    ),
    Mutant(
        "a number below the last one is skipped",
        "store/once.py ONC2",
        ((ONCE, "    if once.number == there.number and", "    if once.number < there.number or"),),
        (f"{ONCE_TESTS}::test_another_fingerprint_and_an_earlier_number_are_errors",),
    ),
    Mutant(
        "a store with few writers forgets one",
        "store/once.py ONC3",
        ((ONCE, "ORDER BY committed_ms DESC LIMIT ?2)", "ORDER BY committed_ms DESC LIMIT ?2 * 0)"),),
        (f"{ONCE_TESTS}::test_a_row_is_forgotten_when_its_writer_is_silent_and_many_others_are_not",),
    ),
    Mutant(
        "a number is stored apart from its records",
        "client/transaction.py CTX4",
        (
            (TRANSACTION, "            once.put(execute, self._once)\n", "            pass\n"),
            (
                TRANSACTION,
                "        self._mark(None, commit=True)\n",
                (
                    "        if self._once is not None:\n"
                    "            database = self._core.catalog.database\n"
                    "            with database.db_lock(), database.transaction() as execute:\n"
                    "                once.put(execute, self._once)\n"
                    "        self._mark(None, commit=True)\n"
                ),
            ),
        ),
        (f"{TRANSACTION_POWER_CUT_TESTS}::test_after_a_power_cut_a_transaction_is_whole_or_not_there",),
    ),
    Mutant(
        "what is to be skipped is appended",
        "client/transaction.py CTX4",
        (
            (
                TRANSACTION,
                "                    if self._is_repeated:\n                        self._dropped",
                "                    if False:\n                        self._dropped",
            ),
        ),
        (f"{ONCE_TESTS}::test_a_skipped_transaction_leaves_nothing_behind",),
    ),
    Mutant(
        "a record leads to a transaction of others",
        "store/lineage.py LIN1",
        ((LINEAGE, "WHERE producer_id = ? ORDER", "WHERE producer_id = ? OR producer_id >= 0 ORDER"),),
        (f"{LINEAGE_TESTS}::test_records_of_others_in_between_belong_to_others",),
    ),
    Mutant(
        "a number is committed before the transactions that it goes with",
        "store/transactions.py T1",
        (
            (
                STORE_TRANSACTIONS,
                "        with database.db_lock(), database.transaction() as execute:\n            if commit:\n",
                (
                    "        if commit and also is not None:\n"
                    "            with database.db_lock(), database.transaction() as execute:\n"
                    "                inputs = also(execute)\n"
                    "            also = None\n"
                    "        with database.db_lock(), database.transaction() as execute:\n            if commit:\n"
                ),
            ),
        ),
        ("tests/store/test_decided_together.py",),
    ),
    Mutant(
        "a redrive commits though another one was faster",
        "client/work/dead_letters.py: each letter goes back once",
        (
            (
                "src/klamm/client/work/dead_letters.py",
                "transaction.once(_WRITER, number, target=notes.topic, fingerprint=os.urandom(16).hex())",
                "pass",
            ),
        ),
        ("tests/client/test_dead_letters.py",),
    ),
    Mutant(
        "a redrive counts on notes that an open transaction hides",
        "client/work/dead_letters.py: each letter goes back once",
        (
            (
                "src/klamm/client/work/dead_letters.py",
                "        await_stable(self._core, self._core.topic(self.topic).partitions())",
                "        pass",
            ),
        ),
        ("tests/client/test_dead_letters.py",),
    ),
    Mutant(
        "lineage grows without end",
        "store/lineage.py LIN2",
        ((LINEAGE, "(last - KEPT,)", "(-1,)"),),
        (f"{LINEAGE_TESTS}::test_old_rows_go_and_there_are_never_too_many",),
    ),
    Mutant(
        "lineage is kept of what is aborted",
        "store/lineage.py LIN1",
        (
            (
                STORE_TRANSACTIONS,
                "        if commit and self.lineage.retention_ms:\n",
                "        if self.lineage.retention_ms:\n",
            ),
        ),
        (f"{LINEAGE_TESTS}::test_what_is_aborted_or_skipped_is_not_told",),
    ),
    Mutant(
        "a copy notes the ends of logs after it has let go of the klamm.db lock",
        "a backup is one moment of the store",
        (
            (
                "src/klamm/store/backup.py",
                ("                partitions = [(topic, opened[topic.id, number]) for topic, number in wanted]\n"),
                (
                    "                break\n"
                    "        # fmt: skip\n"
                    "    if True:\n"
                    "        if True:\n"
                    "            if True:\n"
                    "                partitions = [(topic, opened[topic.id, number]) for topic, number in wanted]\n"
                ),
            ),
        ),
        (f"{STORE_TESTS}::test_a_copy_is_one_moment_of_all_logs_and_of_the_database",),
    ),
]
