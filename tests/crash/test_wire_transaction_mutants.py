"""Break transactions over the wire in known ways: each break must fail a test. See test_mutants.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.test_mutants import Mutant
from tests.crash.test_mutants import test_a_broken_promise_fails_a_test as notice

WIRE = "src/klamm/store/wire_transactions.py"
STORE_TRANSACTIONS = "src/klamm/store/transactions.py"
DESK = "src/klamm/kafka/transaction_desk.py"
NOTICED = ("tests/kafka/transactions/test_desk.py", "tests/kafka/transactions/test_desk_failures.py")


def mutant(name: str, path: str, text: str, broken: str) -> Mutant:
    return Mutant(name, path, ((text, broken),), NOTICED)


MUTANTS = [
    mutant(
        "a resolver marks what may be the next transaction of the same epoch",
        STORE_TRANSACTIONS,
        "            if producer_id in over_wire:\n",
        "            if False:\n",
    ),
    mutant(
        "a resolver marks though a server lives",
        WIRE,
        "        if members is None or not members.try_hold(SERVER):\n",
        "        if members is None or (members.try_hold(SERVER) and False):\n",
    ),
    mutant(
        "a transaction is complete before its markers are on disk",
        WIRE,
        "            return sync_if_possible(self._core, partition, end)\n",
        "            return True\n",
    ),
    mutant(
        "an aborted transaction moves its groups",
        WIRE,
        "        if row.state in (COMMIT, COMPLETE_COMMIT):\n            by",
        "        if True:\n            by",
    ),
    mutant(
        "whoever is fenced keeps the epoch",
        WIRE,
        "next_epoch=self.epoch + 1, last_epoch=last_epoch)",
        "next_epoch=self.epoch, last_epoch=last_epoch)",
    ),
    mutant(
        "a transaction outlives the boot",
        WIRE,
        "return row.boot_id != self._boot_id or _os",
        "return _os",
    ),
    mutant(
        "a transaction is committed though its records are not on disk",
        DESK,
        "                if not self._wire.sync(synced):\n",
        "                if False:\n",
    ),
    mutant(
        "the next transaction begins before the last one is marked",
        DESK,
        "                raise _Refused(ErrorCode.CONCURRENT_TRANSACTIONS)\n            if row.is_ongoing and places",
        "                pass\n            if row.is_ongoing and places",
    ),
    mutant(
        "a call that comes again is not known",
        DESK,
        "    return rotated or (client[1] >= 0 and client == (row.producer_id, row.last_epoch))",
        "    return rotated",
    ),
    mutant(
        "the last epoch is followed by another",
        DESK,
        "        if ended.epoch <= MAX_EPOCH:\n",
        "        if True:\n",
    ),
]


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_broken_promise_of_the_wire_fails_a_test(mutant: Mutant, tmp_path: Path) -> None:
    notice(mutant, tmp_path)
