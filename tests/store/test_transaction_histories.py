"""Transactions go as they went when embedded ones, those over the wire and Spark's had machines of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.cases import memory_directory, seed_of
from tests.store.transaction_histories import KINDS, history, recorded, script

SOME = 40  # of each kind, in `make test`


@pytest.mark.parametrize("kind", KINDS)
def test_transactions_go_as_they_were_recorded(kind: str, tmp_path: Path) -> None:
    known = recorded(kind)
    assert len(known) == KINDS[kind]
    first = seed_of()
    _compare(kind, [(first + n) % len(known) for n in range(SOME)], known, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_transactions_go_as_they_were_recorded_in_every_history(kind: str, tmp_path: Path) -> None:
    known = recorded(kind)
    _compare(kind, list(range(len(known))), known, tmp_path)


def _compare(kind: str, seeds: list[int], known: list[list[str]], fallback: Path) -> None:
    with memory_directory(fallback) as directory:
        for seed in seeds:
            words = script(kind, seed)
            outcomes = history(directory / f"{kind}-{seed}", words, kind)
            for number, (word, outcome, was) in enumerate(zip(words, outcomes, known[seed], strict=True)):
                assert outcome == was, f"{kind} {seed}: step {number}: {word}; before: {words[:number]}"
