"""How long from an append in one process until another process has the record?

A writer appends a record that holds the time, every half millisecond; a reader in another process notes how old it
is when the record is in its hands. p50 of each round, in microseconds: from before the append until after the read,
in Python.

    spinning   the reader asks again and again, with no time limit to wait; so does LMDB's
    blocking   the reader sleeps in poll(); beside it a bare futex: two C processes, a store, a wake, and nothing else;
               and a pipe: two Python processes, os.write and a sleeping os.read

Where the two processes of a blocking pair run decides as much as what they run: on one core a wake-up is a switch from
one process to the other; on two, an interrupt, which takes several times as long on a virtual machine. Left alone, the
scheduler mostly has a pair of small C programs on one core, and a pair of Python programs now here, now there. So all
pairs are bound to the same cores, and each line says to which (`cores`):

    2   "blocking": the writer has one core, the reader another. The goal is for this one: both sides pay for the same
        hand-over from core to core, and the ratio is what Klamm adds to it.
    1   "blocking, on one core": shown beside, without a goal. There nothing is handed over while the writer works: the
        reader runs when the writer has gone to sleep, so that everything the writer still has to do counts, too, and
        the ratio compares how much code of Python runs with how much of C, not how a sleeping reader is reached.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import time
from typing import NamedTuple, TypeAlias

import _harness as harness
import _peers as peers
import klamm
from _processes import together

INTERVAL = 0.0005
STAMP = struct.Struct("<q")
END = -1
Cpus: TypeAlias = tuple[int | None, int | None]


def stamps(start, count: int, append) -> None:
    start()
    time.sleep(0.05)
    for _ in range(count):
        time.sleep(INTERVAL)
        append(STAMP.pack(time.perf_counter_ns()))
    time.sleep(0.01)
    append(STAMP.pack(END))


def ages(start, poll) -> list[float]:
    """Microseconds; `poll` gives what is new, or nothing."""
    found: list[float] = []
    start()
    while True:
        values = poll()
        now = time.perf_counter_ns()
        for value in values:
            (stamp,) = STAMP.unpack(value)
            if stamp == END:
                return found
            found.append((now - stamp) / 1000)


# ---- where they run


def stay_on(cpu: int | None) -> None:
    """Bind this process to a core; None: leave that to the scheduler."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})


class Placement(NamedTuple):
    """On which cores writer and reader run, and what the ratio to a bare futex there is to be."""

    cpus: Cpus
    want: harness.Want | None

    @property
    def cores(self) -> int:
        return len(set(self.cpus))


def placements() -> dict[str, Placement]:
    """By what a placement is called in a question."""
    cpus = sorted(os.sched_getaffinity(0))
    two = {"blocking": Placement((cpus[0], cpus[-1]), harness.at_most(3))} if len(cpus) > 1 else {}
    return {**two, "blocking, on one core": Placement((cpus[-1], cpus[-1]), None)}


# ---- Klamm


def klamm_writer(start, path: str, count: int, cpu: int | None) -> None:
    stay_on(cpu)
    with klamm.open(path) as store:
        store.append("bench", STAMP.pack(time.perf_counter_ns()), acks=1)
        stamps(start, count, lambda value: store.append("bench", value, acks=1))


def klamm_reader(start, path: str, timeout: float, cpu: int | None) -> list[float]:
    stay_on(cpu)
    with klamm.open(path) as store, store.consumer("bench", start="earliest", form="values") as consumer:
        poll = consumer.poll
        return ages(start, lambda: poll(500, timeout=timeout))


def klamm_round(count: int, timeout: float, cpus: Cpus = (None, None)) -> list[float]:
    with harness.folder() as path:
        with klamm.open(path + "/store") as store:
            store.topics.create("bench", partitions=1)
        writer_cpu, reader_cpu = cpus
        jobs = [
            (klamm_reader, (path + "/store", timeout, reader_cpu)),
            (klamm_writer, (path + "/store", count, writer_cpu)),
        ]
        return together(jobs)[0][1:]


# ---- LMDB


def lmdb_writer(start, path: str, count: int, writemap: bool) -> None:
    with peers.open_lmdb(path, writemap=writemap) as env:
        number = 0

        def append(value: bytes) -> None:
            nonlocal number
            with env.begin(write=True) as txn:
                txn.put(number.to_bytes(8, "big"), value, append=True)
            number += 1

        stamps(start, count, append)


def lmdb_reader(start, path: str) -> list[float]:
    with peers.open_lmdb(path) as env:
        number, key = 0, bytes(8)

        def poll() -> list[bytes]:
            nonlocal number, key
            with env.begin() as txn:
                value = txn.get(key)
            if value is None:
                return []
            number += 1
            key = number.to_bytes(8, "big")
            return [value]

        return ages(start, poll)


def lmdb_round(count: int, writemap: bool) -> list[float]:
    with harness.folder() as path:
        peers.open_lmdb(path).close()
        return together([(lmdb_reader, (path,)), (lmdb_writer, (path, count, writemap))])[0]


# ---- JSON lines


def json_writer(start, path: str, count: int) -> None:
    fd = peers.json_open(path)
    stamps(start, count, lambda value: os.write(fd, json.dumps({"id": 0, "value": value.hex()}).encode() + b"\n"))


def json_reader(start, path: str) -> list[float]:
    fd = os.open(path, os.O_RDONLY | os.O_CREAT)
    rest = b""

    def poll() -> list[bytes]:
        """A reader may see half of a line, though it was written by one call."""
        nonlocal rest
        *lines, rest = (rest + os.read(fd, 1 << 16)).split(b"\n")
        return [bytes.fromhex(json.loads(line)["value"]) for line in lines]

    return ages(start, poll)


def json_round(count: int) -> list[float]:
    with harness.folder() as path:
        return together([(json_reader, (path + "/log",)), (json_writer, (path + "/log", count))])[0]


# ---- a bare futex, and a pipe


def compile_futex(path: str) -> str:
    source = harness.ROOT / "bench" / "_futex.c"
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", path + "/futex", str(source)], check=True)
    return path + "/futex"


def futex_round(program: str, count: int, cpus: Cpus) -> list[float]:
    command = [program, str(count), str(int(INTERVAL * 1e6)), *map(str, cpus)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(line) / 1000 for line in run.stdout.split()]


def pipe_writer(start, path: str, count: int, cpu: int | None) -> None:
    stay_on(cpu)
    fd = os.open(path, os.O_WRONLY)
    stamps(start, count, lambda value: os.write(fd, value))


def pipe_reader(start, path: str, cpu: int | None) -> list[float]:
    stay_on(cpu)
    fd = os.open(path, os.O_RDONLY)
    return ages(start, lambda: [os.read(fd, STAMP.size)])


def pipe_round(count: int, cpus: Cpus) -> list[float]:
    with harness.folder() as path:
        os.mkfifo(path + "/pipe")
        writer_cpu, reader_cpu = cpus
        jobs = [(pipe_reader, (path + "/pipe", reader_cpu)), (pipe_writer, (path + "/pipe", count, writer_cpu))]
        return together(jobs)[0]


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], count=(2000, "records a round"))
    count = 50 if options.quick else options.count
    with harness.folder() as tools:
        program = compile_futex(tools)
        sides = {
            "spin": lambda: klamm_round(count, 0),
            "lmdb": lambda: lmdb_round(count, False),
            "lmdb, writemap": lambda: lmdb_round(count, True),
            "json": lambda: json_round(count),
        }
        for how, (cpus, _) in placements().items():
            sides[how] = lambda cpus=cpus: klamm_round(count, 1, cpus)
            sides[how + ", futex"] = lambda cpus=cpus: futex_round(program, count, cpus)
            sides[how + ", pipe"] = lambda cpus=cpus: pipe_round(count, cpus)
        found = harness.interleave(sides, options.rounds, warm=False)
    p50 = {side: [harness.percentile(each, 50) for each in runs] for side, runs in found.items()}
    p99 = {
        side: harness.digits(harness.median([harness.percentile(each, 99) for each in runs]))
        for side, runs in found.items()
    }

    def answer(how: str, side: str, peer: str, other: str, want: harness.Want | None, **more: float) -> None:
        question = f"latency across processes, {how}"
        more |= {"p99": p99[side], "peer_p99": p99[other], "count": count}
        harness.answer(question, p50[side], peer, p50[other], want, unit="µs p50", **more)

    lmdb = f"LMDB {peers.LMDB_VERSION}, no sync, reader spinning"
    answer("spinning", "spin", lmdb, "lmdb", harness.at_most(1))
    answer("spinning", "spin", lmdb + ", writemap", "lmdb, writemap", None)
    answer("spinning", "spin", "JSON lines, reader spinning", "json", None)
    for how, place in placements().items():
        answer(how, how, "a bare futex, in C", how + ", futex", place.want, cores=place.cores)
        answer(how, how, "a pipe, in Python", how + ", pipe", None, cores=place.cores)


if __name__ == "__main__":
    main()
