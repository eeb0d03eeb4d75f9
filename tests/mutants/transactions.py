"""Mutants of embedded transactions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STORE_TRANSACTIONS = "src/klamm/store/transactions.py"
TRANSACTION = "src/klamm/client/transaction.py"
RESOLVED = (
    "tests/store/test_transactions.py",
    "tests/client/test_transaction.py",
    "tests/client/test_transaction_progress.py",
    "tests/crash/test_killed_transaction.py",
    "tests/crash/test_transaction_power_cut.py",
)

MUTANTS = [
    Mutant(
        "a late commit is not refused",
        "store/transactions.py T3",
        (
            (
                STORE_TRANSACTIONS,
                "            if row is None or row.state != ONGOING:\n                raise",
                "            if False:\n                raise",
            ),
        ),
        RESOLVED,
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
        RESOLVED,
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
        RESOLVED,
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
        RESOLVED,
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
        RESOLVED,
    ),
    Mutant(
        "a row is forgotten by a resolver before its markers are on disk",
        "store/transactions.py T2",
        (
            (
                STORE_TRANSACTIONS,
                "            partition.sync(_mark(partition, row.",
                "            (_mark(partition, row.",
            ),
        ),
        RESOLVED,
    ),
    Mutant(
        "resolvers abort what was committed",
        "store/transactions.py T1",
        ((STORE_TRANSACTIONS, "row.epoch, commit=row.state == COMMIT))", "row.epoch, commit=False))"),),
        RESOLVED,
    ),
    Mutant(
        "of a producer id, the younger transaction is resolved first",
        "store/transactions.py T5",
        ((STORE_TRANSACTIONS, "sorted(over + prepared, key=lambda row: row.key)", "over + prepared"),),
        RESOLVED,
    ),
    Mutant(
        "a living process's transaction counts as abandoned",
        "store/transactions.py T4",
        (
            (
                STORE_TRANSACTIONS,
                "        return members is not None and bool(members.held(",
                "        return members is None and bool(members.held(",
            ),
        ),
        RESOLVED,
    ),
    Mutant(
        "a resolver does not look again what is still going on",
        "store/transactions.py T1",
        (
            (
                STORE_TRANSACTIONS,
                (
                    'FROM transactions WHERE producer_id = ? AND epoch = ? AND state = ?"\n'
                    "        values = execute(query, (*row.key, ONGOING)).fetchone()"
                ),
                (
                    'FROM transactions WHERE producer_id = ? AND epoch = ?"\n'
                    "        values = execute(query, row.key).fetchone()"
                ),
            ),
        ),
        RESOLVED,
    ),
    Mutant(
        "a name that was taken over may still commit",
        "store/transactions.py T6",
        (
            (
                STORE_TRANSACTIONS,
                "        if mine.name is not None and _holder(execute, mine.name) != mine.producer_id:",
                "        if False:",
            ),
        ),
        RESOLVED,
    ),
    Mutant(
        "a producer id is used again though a marker is missing",
        "store/transactions.py T5",
        ((TRANSACTION, "        identity.spoiled = error is not None or", "        identity.spoiled ="),),
        RESOLVED,
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
        RESOLVED,
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
        RESOLVED,
    ),
]
