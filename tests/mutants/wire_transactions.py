"""Mutants of transactions over Kafka's protocol."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STATE = "src/klamm/store/transaction_state.py"
TABLE = "src/klamm/store/transaction_table.py"
RESOLVER = "src/klamm/store/transaction_resolver.py"
COORDINATOR = "src/klamm/kafka/transaction_coordinator.py"
COORDINATOR_FAILURES_TESTS = "tests/kafka/transactions/test_transaction_coordinator_failures.py"
TOGETHER_TESTS = "tests/store/test_decided_together.py"
COORDINATOR_TESTS = "tests/kafka/transactions/test_transaction_coordinator.py"

MUTANTS = [
    Mutant(
        "all transactional ids are read whenever another process has written",
        "store/server_rows.py: a write of another process costs a comparison of bytes",
        (("src/klamm/store/server_rows.py", "*_changed(self._rows, rows)", '*_changed("", rows)'),),
        (f"{COORDINATOR_TESTS}::test_a_tick_reads_what_others_have_changed_and_nothing_else",),
    ),
    Mutant(
        "a server remembers as many transactional ids as clients like",
        "guide/serving.md: max.transactional.ids",
        ((COORDINATOR, "len(self._names) >= self._settings.max_transactional_ids", "False"),),
        (f"{COORDINATOR_TESTS}::test_a_server_remembers_so_many_names",),
    ),
    Mutant(
        "a resolver marks what may be the next transaction of the same epoch",
        "store/transactions.py T3",
        ((RESOLVER, "            if producer_id in server_ids:\n", "            if False:\n"),),
        (
            f"{COORDINATOR_FAILURES_TESTS}::test_what_came_late_is_left_to_the_server_whatever_epoch_its_client_has_by_now",
        ),
    ),
    Mutant(
        "a resolver marks though a server lives",
        "store/transactions.py WTX4",
        (
            (
                RESOLVER,
                "            if self._core.members is None or not held.take(locks.SERVER, locks.SERVER):\n",
                "            if self._core.members is None or (held.take(locks.SERVER, locks.SERVER) and False):\n",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_a_person_can_abort_a_clients_transaction",),
    ),
    Mutant(
        "an aborted transaction moves its groups",
        "store/transactions.py WTX2",
        (
            (
                TABLE,
                "    if row.is_committed:\n        by",
                "    if True:\n        by",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_offsets_become_the_groups_with_the_commit",),
    ),
    Mutant(
        "whoever is fenced keeps the epoch",
        "kafka/transaction_coordinator.py TCO2",
        ((STATE, "_ended(row, False, row.epoch + 1, last_epoch)", "_ended(row, False, row.epoch, last_epoch)"),),
        (f"{COORDINATOR_TESTS}::test_what_was_left_open_is_aborted_when_its_client_comes_again",),
    ),
    Mutant(
        "a transaction outlives the boot",
        "store/transactions.py T4",
        ((STATE, "            return self.owner != PROCESS\n", "            return False\n"),),
        (f"{COORDINATOR_TESTS}::test_a_transaction_from_before_the_boot_is_over_when_the_server_starts",),
    ),
    Mutant(
        "a transaction is committed though its records are not on disk",
        "store/transactions.py T2",
        ((COORDINATOR, "                if not self._transactions.sync(synced):\n", "                if False:\n"),),
        (f"{COORDINATOR_FAILURES_TESTS}::test_a_process_that_syncs_for_ever_makes_a_commit_be_tried_again",),
    ),
    Mutant(
        "the next transaction begins before the last one is marked",
        "store/transactions.py T5",
        (
            (
                STATE,
                "    if row.is_prepared:\n        return Step(Outcome.CONCURRENT, row)\n    if isinstance(event, Add)",
                "    if isinstance(event, Add)",
            ),
        ),
        (f"{COORDINATOR_FAILURES_TESTS}::test_a_stopped_writer_keeps_nobody_waiting",),
    ),
    Mutant(
        "a call that comes again is not known",
        "kafka/transaction_coordinator.py TCO3",
        (
            (
                STATE,
                "    return is_rotated or client == (row.producer_id, row.last_epoch)",
                "    return is_rotated",
            ),
        ),
        (f"{COORDINATOR_TESTS}::test_ending_twice_is_ending_once_in_the_newer_kind",),
    ),
    Mutant(
        "the last epoch is followed by another",
        "store/transactions.py T5",
        ((STATE, "    if ended.next_epoch <= MAX_EPOCH or row.owner != SERVER:\n", "    if True:\n"),),
        (f"{COORDINATOR_TESTS}::test_the_last_epoch_of_a_producer_id_ends_with_another",),
    ),
    Mutant(
        "what a dead coordinator has left is never aborted",
        "store/transaction_state.py: owners",
        ((STATE, "(abandoned or row.is_late(now))", "(abandoned or (row.owner != COORDINATOR and row.is_late(now)))"),),
        (f"{TOGETHER_TESTS}::test_what_a_dead_coordinator_has_left_is_aborted_when_its_time_is_over",),
    ),
    Mutant(
        "what was left to a coordinator ends with the process that wrote it",
        "store/transaction_state.py: owners",
        ((STATE, "abandoned = row.owner == PROCESS and", "abandoned ="),),
        (f"{TOGETHER_TESTS}::test_transactions_of_several_processes_have_one_end",),
    ),
    Mutant(
        "of several rows, those that are still ongoing are committed",
        "store/transactions.py T1",
        (
            (
                "src/klamm/store/transactions.py",
                "self._check_ongoing(execute, identity) for identity in mine}",
                "table.find(execute, identity.key) for identity in mine}",
            ),
        ),
        (f"{TOGETHER_TESTS}::test_one_that_was_aborted_keeps_all_from_being_committed",),
    ),
    Mutant(
        "what was decided may be undone",
        "store/transaction_state.py TXN1",
        ((STATE, "row.is_ongoing or (event.with_empty", "True or (event.with_empty"),),
        ("tests/store/test_transaction_state.py",),
    ),
    Mutant(
        "a zombie of the last producer id is given the new one",
        "store/transaction_state.py TXN2",
        ((STATE, "client[0] == row.previous_id and client[1] >= MAX_EPOCH", "client[0] == row.previous_id"),),
        (f"{COORDINATOR_TESTS}::test_after_the_last_epoch_comes_another_producer_id",),
    ),
    Mutant(
        "an upgrade takes a decided transaction for one that goes on",
        "store/transaction_table.py: upgrade",
        ((TABLE, "next_epoch = epoch if state == ONGOING else epoch + 1", "next_epoch = epoch"),),
        ("tests/store/test_database.py::test_a_store_of_format_4_keeps_its_transactions",),
    ),
]
