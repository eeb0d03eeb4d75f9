"""Mutants of transactions over Kafka's protocol."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WIRE = "src/klamm/store/wire_transactions.py"
STORE_TRANSACTIONS = "src/klamm/store/transactions.py"
DESK = "src/klamm/kafka/transaction_desk.py"
DESK_FAILURES_TESTS = "tests/kafka/transactions/test_desk_failures.py"
DESK_TESTS = "tests/kafka/transactions/test_desk.py"

MUTANTS = [
    Mutant(
        "a resolver marks what may be the next transaction of the same epoch",
        "store/transactions.py T3",
        ((STORE_TRANSACTIONS, "            if producer_id in over_wire:\n", "            if False:\n"),),
        (f"{DESK_FAILURES_TESTS}::test_without_a_server_programs_end_what_is_decided_and_what_is_late",),
    ),
    Mutant(
        "a resolver marks though a server lives",
        "store/wire_transactions.py W4",
        (
            (
                WIRE,
                "            if self._core.members is None or not held.take(SERVER, SERVER):\n",
                "            if self._core.members is None or (held.take(SERVER, SERVER) and False):\n",
            ),
        ),
        (f"{DESK_TESTS}::test_a_person_can_abort_a_clients_transaction",),
    ),
    Mutant(
        "a transaction is complete before its markers are on disk",
        "store/wire_transactions.py W4",
        ((WIRE, "            return sync_if_possible(self._core, partition, end)\n", "            return True\n"),),
        (f"{DESK_TESTS}::test_transactions_one_after_the_other",),
    ),
    Mutant(
        "an aborted transaction moves its groups",
        "store/wire_transactions.py W2",
        (
            (
                WIRE,
                "        if row.state in (COMMIT, COMPLETE_COMMIT):\n            by",
                "        if True:\n            by",
            ),
        ),
        (f"{DESK_TESTS}::test_offsets_become_the_groups_with_the_commit",),
    ),
    Mutant(
        "whoever is fenced keeps the epoch",
        "kafka/transaction_desk.py D2",
        ((WIRE, "next_epoch=self.epoch + 1, last_epoch=last_epoch)", "next_epoch=self.epoch, last_epoch=last_epoch)"),),
        (f"{DESK_TESTS}::test_what_was_left_open_is_aborted_when_its_client_comes_again",),
    ),
    Mutant(
        "a transaction outlives the boot",
        "store/transactions.py T4",
        ((WIRE, "        return row.boot_id != self._boot_id or self._core", "        return self._core"),),
        (f"{DESK_TESTS}::test_a_transaction_from_before_the_boot_is_over_when_the_server_starts",),
    ),
    Mutant(
        "a transaction is committed though its records are not on disk",
        "store/transactions.py T2",
        ((DESK, "                if not self._wire.sync(synced):\n", "                if False:\n"),),
        (f"{DESK_FAILURES_TESTS}::test_a_process_that_syncs_for_ever_makes_a_commit_be_tried_again",),
    ),
    Mutant(
        "the next transaction begins before the last one is marked",
        "store/transactions.py T5",
        (
            (
                DESK,
                (
                    "                raise _Refused(ErrorCode.CONCURRENT_TRANSACTIONS)\n"
                    "            if row.is_ongoing and places"
                ),
                "                pass\n            if row.is_ongoing and places",
            ),
        ),
        (f"{DESK_FAILURES_TESTS}::test_a_stopped_writer_keeps_nobody_waiting",),
    ),
    Mutant(
        "a call that comes again is not known",
        "kafka/transaction_desk.py D3",
        (
            (
                DESK,
                "    return rotated or (client[1] >= 0 and client == (row.producer_id, row.last_epoch))",
                "    return rotated",
            ),
        ),
        (f"{DESK_TESTS}::test_ending_twice_is_ending_once_in_the_newer_kind",),
    ),
    Mutant(
        "the last epoch is followed by another",
        "store/transactions.py T5",
        ((DESK, "        if ended.epoch <= MAX_EPOCH:\n", "        if True:\n"),),
        (f"{DESK_TESTS}::test_the_last_epoch_of_a_producer_id_ends_with_another",),
    ),
]
