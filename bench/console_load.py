"""What does a console cost the log it looks at: append latency, its CPU, its memory with many visitors?

A writer, a process of its own, appends 100,000 records a second, a hundred at a time, and measures each append. Once it
is alone; once a console looks at the store, and a browser follows the topic by server-sent events.

    append p99     with a console and a follower, beside the writer alone
    console CPU    of one core, while it does that
    memory         of the console with 50 visitors: each follows the topic, and opens the overview again and again;
                   `--minutes 60` says whether it stays flat
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import _harness as harness
import klamm

AT_ONCE = 100
PER_SECOND = 100_000
VALUE = b"x" * 100


def write(path: str, seconds: float) -> None:
    """Append at the pace, and print the 99th percentile in microseconds, and the records a second that it came to."""
    took = []
    records = [(None, VALUE)] * AT_ONCE
    with klamm.open(path) as store:
        topic = store["t"]
        began = time.perf_counter()
        due = began
        while due < began + seconds:
            if (wait := due - time.perf_counter()) > 0:
                time.sleep(wait)
            start = time.perf_counter()
            topic.append_many(records, acks=1)
            took.append((time.perf_counter() - start) * 1e6)
            due += AT_ONCE / PER_SECOND
        lasted = time.perf_counter() - began
    print(json.dumps([harness.percentile(took, 99), len(took) * AT_ONCE / lasted]))


def writer(path: str, seconds: float) -> tuple[float, float]:
    command = [sys.executable, __file__, "--writer", path, str(seconds)]
    p99, rate = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return p99, rate


class Console:
    """`klamm console`, and what it uses."""

    def __init__(self, path: str) -> None:
        command = [sys.executable, "-m", "klamm", "console", path, "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().strip().rstrip("/").rpartition(":")[2])

    @property
    def cpu_s(self) -> float:
        with open(f"/proc/{self._process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory_mb(self) -> float:
        with open(f"/proc/{self._process.pid}/status") as file:
            line = next(line for line in file if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1000

    def get(self, path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        connection.getresponse().read()
        connection.close()

    @contextmanager
    def followers(self, count: int) -> Iterator[None]:
        """Browsers that follow the topic, and read what comes."""
        connections = [http.client.HTTPConnection("127.0.0.1", self.port, timeout=60) for _ in range(count)]
        threads = [threading.Thread(target=self._follow, args=(each,), daemon=True) for each in connections]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for connection in connections:
                if connection.sock is not None:
                    connection.sock.shutdown(2)
                connection.close()

    @staticmethod
    def _follow(connection: http.client.HTTPConnection) -> None:
        try:
            connection.request("GET", "/events/topics/t/tail")
            response = connection.getresponse()
            while response.readline():
                pass
        except (OSError, http.client.HTTPException, ValueError, AttributeError):  # it was closed
            pass

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def latency(options: argparse.Namespace, seconds: float) -> None:
    cpu: list[float] = []
    rates: list[float] = []

    def alone() -> float:
        with harness.folder() as path:
            make(f"{path}/s")
            return writer(f"{path}/s", seconds)[0]

    def watched() -> float:
        with harness.folder() as path:
            make(f"{path}/s")
            console = Console(f"{path}/s")
            try:
                with console.followers(1):
                    time.sleep(1)
                    before, began = console.cpu_s, time.monotonic()
                    p99, rate = writer(f"{path}/s", seconds)
                    cpu.append((console.cpu_s - before) / (time.monotonic() - began) * 100)
                    rates.append(rate)
            finally:
                console.close()
            return p99

    found = harness.interleave({"watched": watched, "alone": alone}, options.rounds)
    rate = harness.digits(harness.median(rates))
    harness.answer(
        "append p99 while a browser follows the topic",
        found["watched"],
        "without a console",
        found["alone"],
        harness.at_most(1.1),
        unit="us",
        records_per_s=rate,
    )
    harness.answer(
        "console CPU while a browser follows the topic",
        cpu[-options.rounds :],
        want=harness.at_most(15, "figure"),
        unit="% of a core",
        records_per_s=rate,
    )


def memory(options: argparse.Namespace, minutes: float) -> None:
    with harness.folder() as path:
        make(f"{path}/s")
        console = Console(f"{path}/s")
        samples = []
        try:
            with console.followers(50):
                until = time.monotonic() + minutes * 60
                while time.monotonic() < until or len(samples) < 2:
                    writer(f"{path}/s", 0.2)
                    for _ in range(10):
                        console.get("/")
                        console.get("/topics/t")
                    samples.append(console.memory_mb)
        finally:
            console.close()
    half = len(samples) // 2
    harness.answer(
        "console memory with 50 visitors",
        [max(samples)],
        want=harness.at_most(100, "figure"),
        unit="MB",
        minutes=minutes,
        first_half_mb=harness.digits(max(samples[:half])),
        second_half_mb=harness.digits(max(samples[half:])),
    )


def make(path: str) -> None:
    with klamm.open(path) as store:
        store.topics.create("t", settings={"retention.bytes": 1 << 30})


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0], rounds=5, seconds=(10.0, "of each writer"), minutes=(1.0, "that memory is watched")
    )
    if options.only in "latency":
        latency(options, 0.5 if options.quick else options.seconds)
    if options.only in "memory":
        memory(options, 0.02 if options.quick else options.minutes)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--writer"]:
        write(sys.argv[2], float(sys.argv[3]))
    else:
        main()
