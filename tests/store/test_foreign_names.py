"""Names of files and directories that are no numbers, or numbers that no partition and no segment can have."""

from __future__ import annotations

from pathlib import Path

from klamm.store.check import check
from tests.store.logs import opened
from tests.store.test_check import WHOLE, files_of, read, repaired, store

__all__ = ["store"]  # a fixture

NOT_NUMBERS = ["\u00b2", "\u0663", "9" * 20, "00", "007", str(2**63)]


def test_names_that_are_no_numbers_of_partitions_are_set_aside(store: Path) -> None:
    for name in NOT_NUMBERS:
        (files_of(store).parent / name).mkdir()
    for digit in ("\u00b2", "\u0663", "9"):
        (files_of(store) / f"{digit * 20}.log").touch()
    (files_of(store) / f"{0:020}\u00b2.log").touch()
    breaches = check(store).breaches
    assert len(breaches) == len(NOT_NUMBERS) and {each.message for each in breaches} == {
        "no partition has this directory"
    }
    repaired(store)
    assert read(store) == WHOLE


def test_a_topic_is_put_back_without_directories_that_cannot_be_its_partitions(store: Path) -> None:
    for name in [*NOT_NUMBERS, "10000", "999999999"]:
        (files_of(store).parent / name).mkdir()
    for name in ("klamm.db", "klamm.db-wal", "klamm.db-shm"):
        (store / name).unlink(missing_ok=True)
    assert check(store, repair=True).ok
    with opened(store) as core:
        assert core.topic("orders").count == 1
    assert read(store) == WHOLE
