"""Mutants of embedded transactions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STORE_TRANSACTIONS = "src/klamm/store/transactions.py"
RESOLVER = "src/klamm/store/transaction_resolver.py"
TRANSACTION = "src/klamm/client/transaction.py"
STORE_TESTS = "tests/store/test_transactions.py"
KILLED_TRANSACTION_TESTS = "tests/crash/test_killed_transaction.py"
TRANSACTION_POWER_CUT_TESTS = "tests/crash/test_transaction_power_cut.py"
TRANSACTION_TESTS = "tests/client/test_transaction.py"
TRANSACTION_PROGRESS_TESTS = "tests/client/test_transaction_progress.py"

MUTANTS = [
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
                "                    also=self._put_offsets if self._claims else None,",
                "                    also=None,",
            ),
            (
                TRANSACTION,
                "                self._settle_claims()\n        except",
                (
                    "                database = self._core.catalog.database\n"
                    "                with database.gate(), database.transaction() as execute:\n"
                    "                    self._put_offsets(execute)\n"
                    "                self._settle_claims()\n"
                    "        except"
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
        ((RESOLVER, "            return sync_if_possible(self._core, partition, end)\n", "            return True\n"),),
        (
            f"{TRANSACTION_POWER_CUT_TESTS}::test_after_a_power_cut_a_transaction_is_whole_or_not_there",
            "tests/kafka/transactions/test_desk.py::test_transactions_one_after_the_other",
        ),
    ),
    Mutant(
        "resolvers abort what was committed",
        "store/transactions.py T1",
        (("src/klamm/store/markers.py", "commit=row.is_committed,", "commit=False,"),),
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
                "            if rewind:\n                self._rewind(",
                "            if False:\n                self._rewind(",
            ),
        ),
        (f"{TRANSACTION_PROGRESS_TESTS}::test_an_aborted_transaction_gives_the_same_batch_again",),
    ),
    Mutant(
        "a copy notes the ends of logs after it has let go of the gate",
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
