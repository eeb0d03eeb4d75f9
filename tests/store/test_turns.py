"""Turns: one thread a key, and nobody waits for another key's."""

from __future__ import annotations

import threading

from klamm.store.turns import Turns
from tests.procs import PATIENCE


def elsewhere(turns: Turns, key: str) -> bool:
    """Whether another thread gets the turn at once."""
    found: list[bool] = []

    def attempt() -> None:
        with turns.attempt(key) as has:
            found.append(has)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(PATIENCE)
    return found[0]


def test_a_turn_is_one_threads_and_of_one_key() -> None:
    turns = Turns()
    with turns.wait("a"):
        assert not elsewhere(turns, "a")
        assert elsewhere(turns, "b")
        with turns.attempt("a") as has, turns.wait("a"):
            assert has
            assert not elsewhere(turns, "a")
        assert not elsewhere(turns, "a")
    assert elsewhere(turns, "a")
    assert len(turns) == 0


def test_those_who_wait_for_a_turn_have_it_one_after_the_other() -> None:
    turns = Turns()
    there, most, left = 0, 0, 40

    def work() -> None:
        nonlocal there, most, left
        with turns.wait("a"):
            there += 1
            most = max(most, there)
            threading.Event().wait(0.0005)
            there -= 1
            left -= 1

    threads = [threading.Thread(target=work) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (most, left, len(turns)) == (1, 0, 0)


def test_a_turn_is_free_after_an_error() -> None:
    turns = Turns()
    try:
        with turns.wait("a"):
            raise ValueError
    except ValueError:
        pass
    assert elsewhere(turns, "a")
    assert len(turns) == 0
