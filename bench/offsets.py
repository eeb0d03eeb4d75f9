"""How many offsets a second do the members of a group commit, and how long does the unluckiest wait?

One process, eight, and 64, each with a partition of its own, commit one offset after the other for some seconds. Beside
them, the same number of processes write the same row into a plain SQLite database (WAL, synchronous=NORMAL, a busy
time-out of 30 s): SQLite's own locks are polled with growing sleeps, and the process that sleeps longest waits longest.
"""

from __future__ import annotations

import sqlite3
import time

import _harness as harness
import klamm
from _processes import together


def timed(commit, seconds: float) -> tuple[float, float, float]:
    """Commits a second, and the p99 and the longest of one in milliseconds."""
    clock = time.perf_counter_ns
    times = []
    before = begin = clock()
    end = begin + int(seconds * 1e9)
    while before < end:
        commit(len(times))
        now = clock()
        times.append(now - before)
        before = now
    return len(times) / ((before - begin) / 1e9), harness.percentile(times, 99) / 1e6, max(times) / 1e6


def member(start, path: str, number: int, seconds: float) -> tuple[float, float, float]:
    with klamm.open(path) as store, store.consumer("bench", group="bench") as consumer:
        while len(consumer.assignment()) != 1:
            consumer.poll(timeout=0.01)
        start()
        ((topic, partition),) = consumer.assignment()
        return timed(lambda offset: consumer.commit({(topic, partition): offset}), seconds)


def writer(start, path: str, number: int, seconds: float) -> tuple[float, float, float]:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("PRAGMA synchronous=NORMAL")
    start()

    def commit(offset: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT OR REPLACE INTO offsets VALUES ('bench', ?, ?, 0, '')", (number, offset))
        connection.execute("COMMIT")

    return timed(commit, seconds)


def klamm_side(processes: int, seconds: float) -> tuple[float, float, float]:
    with harness.folder() as path:
        with klamm.open(path + "/store") as store:
            store.topics.create("bench", partitions=processes)
            for number in range(processes):
                store.append_many("bench", [b"x"] * 10, partition=number, acks=1)
        return summed(together([(member, (path + "/store", number, seconds)) for number in range(processes)]))


def sqlite_side(processes: int, seconds: float) -> tuple[float, float, float]:
    with harness.folder() as path:
        connection = sqlite3.connect(path + "/offsets.db")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE offsets (name TEXT, number INT, place INT, epoch INT, note TEXT, PRIMARY KEY (name, number))"
        )
        connection.close()
        return summed(together([(writer, (path + "/offsets.db", number, seconds)) for number in range(processes)]))


def summed(found: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    """What all did together, the worst process's p99, and the longest wait of all."""
    return sum(rate for rate, _, _ in found), max(p99 for _, p99, _ in found), max(most for _, _, most in found)


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=3, seconds=(3.0, "of committing, a round"))
    seconds = 0.1 if options.quick else options.seconds
    for processes in (1, 2) if options.quick else (1, 8, 64):
        question = f"offset commits, {processes} processes"
        if options.only not in question:
            continue
        found = harness.interleave(
            {
                "klamm": lambda processes=processes: klamm_side(processes, seconds),
                "sqlite": lambda processes=processes: sqlite_side(processes, seconds),
            },
            options.rounds,
            warm=False,
        )
        most = {1: None, 64: 0.1}.get(processes, 1)  # of SQLite's p99; with 64, single processes wait for seconds there
        peer = "plain SQLite, synchronous=NORMAL"
        rates, waits, longest = ([[each[n] for each in found[side]] for side in ("klamm", "sqlite")] for n in range(3))
        harness.answer(question, rates[0], peer, rates[1], harness.at_least(0.6), unit="commits/s")
        harness.answer(
            f"{question}: p99 of the worst",
            waits[0],
            peer,
            waits[1],
            None if most is None else harness.at_most(most),
            unit="ms",
            longest_ms=harness.digits(harness.median(longest[0])),
            peer_longest_ms=harness.digits(harness.median(longest[1])),
        )


if __name__ == "__main__":
    main()
