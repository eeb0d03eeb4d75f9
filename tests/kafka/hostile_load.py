"""All attacks at once beside four honest clients, and what became of the server and of them.

The server has a core of its own; attackers and honest clients share the others. A baseline has the same generators,
aimed at a port that accepts, reads and never responds: so the difference is the server's.
"""

from __future__ import annotations

import os
import random
import selectors
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import klamm
from tests.kafka import attacks
from tests.kafka.attacks import ATTACKS, Attack, Sizes
from tests.kafka.connect import ConnectionEnded
from tests.kafka.honest import CLIENTS, TOPIC, Seen
from tests.procs import PATIENCE, children
from tests.serving import Serving, serving
from tests.store.open_transactions import log_of

__all__ = ["BOUND_BYTES", "Outcome", "accepting", "cores", "prepared_store", "run"]

MIB = 1 << 20
OPEN_FILES = 4096
# What the server may hold, in settings that a test can reach in seconds.
LIMITS = {
    "socket.request.max.bytes": 64 * MIB,
    "queued.max.request.bytes": 64 * MIB,
    "queued.max.response.bytes": 64 * MIB,
    "groups.max.bytes": 32 * MIB,
    "decompression.max.bytes": 8 * MIB,
    "log.cleaner.backoff.ms": 1000,
}
# Beyond what it has when it starts: these limits, the one request that may always be read, a batch in each of the two
# codec threads, and decoded requests, freed memory that malloc keeps, the catalog of all topics that come and go.
BOUND_BYTES = (64 + 64 + 64 + 32 + 2 * 8 + 128) * MIB


@dataclass
class Outcome:
    seen: dict[str, Seen]
    """Of each honest client."""
    rounds: dict[str, int]
    """Of each attack: how many were completed, with an error or without."""
    base_bytes: int
    peak_bytes: int
    """Memory of the server: before, and the most it ever had."""
    cpu_s: float
    loop_waited_s: float
    """How long the loop of the server was ready to run and did not, for another thread or process had its core: much
    more than the CPU of the server means that others used the machine, and that the times say little."""

    def p99_s(self, client: str) -> float:
        latencies = sorted(self.seen[client].latencies_s)
        return latencies[len(latencies) * 99 // 100]

    def summary(self) -> str:
        times = []
        for name, seen in self.seen.items():
            ordered = [f"{latency * 1e3:.2f}" for latency in sorted(seen.latencies_s)]
            p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
            times.append(f"{name} {len(ordered)} requests, p50 {p50} ms, p99 {p99} ms, max {ordered[-1]} ms")
        memory = f"memory {self.base_bytes / MIB:.0f} MiB, at most {self.peak_bytes / MIB:.0f} MiB"
        cpu = f"{self.cpu_s:.1f} s CPU of the server, whose loop waited {self.loop_waited_s:.1f} s for its core"
        return f"{', '.join(times)}; {memory}; {cpu}; rounds {self.rounds}"


def prepared_store(path: Path, sizes: Sizes) -> Path:
    """Return a store with all that is attacked, which is a plain copy: other inodes, the same bytes. Its partitions are
    recovered, once, as those of any copy; what that costs a server is not what is measured.
    """
    original = path.with_name(f"{path.name}-original")
    with klamm.open(original) as store:
        store.topics.create(TOPIC, 2)
        attacks.prepare(store, sizes)
    shutil.copytree(original, path)
    shutil.rmtree(original)
    with klamm.open(path) as store:
        for topic in store.topics:
            for number in range(len(store.topics.describe(topic).partitions)):
                log_of(store, number, topic).snapshot()
    return path


def cores() -> tuple[set[int], set[int]]:
    """Cores for the server and for the load; the same ones if there is only one."""
    first, *others = sorted(os.sched_getaffinity(0))
    return {first}, set(others) or {first}


def name_of(client: Callable[..., object]) -> str:
    """Return the name of a function, or of that in a partial."""
    return str(getattr(client, "func", client).__name__)


@contextmanager
def _on(chosen: set[int]) -> Iterator[None]:
    """Processes that start in this block run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def accept_only(listener: socket.socket) -> None:
    """Accept connections and read from them, until killed."""
    selector = selectors.DefaultSelector()
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    buffer = bytearray(1 << 20)
    while True:
        for key, _ in selector.select():
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            if ready is listener:
                connection, _ = listener.accept()
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
                continue
            try:
                size = ready.recv_into(buffer)
            except OSError:
                size = 0
            if not size:
                selector.unregister(ready)
                ready.close()


@contextmanager
def accepting() -> Iterator[str]:
    """The address of a port that only accepts."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener, children() as start, _on(cores()[1]):
        start(lambda: accept_only(listener))
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def attack(address: str, end: float, sizes: Sizes, seed: int, recipes: Sequence[Attack] = ATTACKS) -> dict[str, int]:
    """Run all attacks, a thread each, until `end`; return how many rounds each has done."""
    rounds: dict[str, int] = {}
    broken: list[BaseException] = []

    def repeat(one: Attack, chance: random.Random) -> None:
        count = 0
        try:
            while time.monotonic() < end:
                try:
                    one.run(address, chance, sizes)
                except (OSError, ConnectionEnded):
                    pass  # it was closed, or waited for longer than an attacker likes
                count += 1
                time.sleep(min(one.pause_s * chance.uniform(0.5, 1.5), max(0.0, end - time.monotonic())))
        except BaseException as error:
            broken.append(error)
        rounds[name_of(one.run)] = count

    threads = [
        threading.Thread(target=repeat, args=(one, random.Random(seed + number)), name=name_of(one.run))
        for number, one in enumerate(recipes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]
    return rounds


def _memory(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def _cpu_s(pid: int) -> float:
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def _loop_waited_s(pid: int) -> float:
    """The loop runs in the main thread."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


@contextmanager
def limited_server(
    store: Path, *more: str, settings: Mapping[str, object] | None = None, open_files: int = OPEN_FILES
) -> Iterator[Serving]:
    """A server with LIMITS and these settings; `more` are words of its command line."""
    merged = {**LIMITS, **(settings or {})}
    options = [word for name, value in merged.items() for word in ("--set", f"{name}={value}")]
    with _on(cores()[0]), serving(store, *more, *options, open_files=open_files) as server:
        server.ready()
        yield server


def run(
    server: Serving,
    sizes: Sizes,
    *,
    seconds: float,
    seed: int,
    target: str | None = None,
    address: str = "",
    clients: Sequence[Callable[[str, float], Seen]] = CLIENTS,
    recipes: Sequence[Attack] = ATTACKS,
) -> Outcome:
    """Let honest clients use the server for so long, beside attacks on `target`, which is the server by default."""
    address = address or server.address
    base_bytes, cpu_s, waited_s = _memory(server.pid, "VmRSS"), _cpu_s(server.pid), _loop_waited_s(server.pid)
    with _on(cores()[1]), children() as start:
        end = time.monotonic() + seconds
        honest = {name_of(client): start(partial(client, address, end)) for client in clients}
        hostile = start(lambda: attack(target or address, end, sizes, seed, recipes))
        wait_s = seconds + PATIENCE
        seen = {name: child.answer(wait_s) for name, child in honest.items()}
        rounds = hostile.answer(wait_s)
    assert server.process.poll() is None, server.stderr[-8000:]
    return Outcome(
        seen,
        rounds,
        base_bytes,
        _memory(server.pid, "VmHWM"),
        _cpu_s(server.pid) - cpu_s,
        _loop_waited_s(server.pid) - waited_s,
    )
