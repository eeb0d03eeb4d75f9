"""A short tour of Klamm: write, read in another process, query, kill a writer, lose nothing.

    python examples/tour.py

Everything happens in a temporary directory, which is removed at the end. The child processes are this file again, with
the name of their part as the first argument.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

import klamm

MILLION = 1_000_000
KILLS = 5


def say(text: str = "") -> None:
    print(text, flush=True)


def rate(count: int, seconds: float) -> str:
    return f"{count:,} records in {seconds:.2f} s: {count / seconds / 1e6:.2f} million a second"


def child(part: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, part, str(path)], stdout=subprocess.PIPE, text=True)


def write_a_million(store: klamm.Store) -> None:
    say("1. Write a million records to a topic of three partitions.")
    store.topics.create("orders", partitions=3)
    half = MILLION // 2
    users = [b"user-%02d" % n for n in range(100)]

    began = time.perf_counter()
    with store.producer(acks=1) as producer:
        for n in range(half):
            producer.send("orders", b"order %d: one book, one lamp" % n, key=users[n % 100])
    say(f"   producer.send, one call a record:  {rate(half, time.perf_counter() - began)}")

    records = [(users[n % 100], b"order %d: one book, one lamp" % n) for n in range(half, MILLION)]
    began = time.perf_counter()
    store.append_many("orders", records, acks=1)
    say(f"   append_many, one call for all:     {rate(half, time.perf_counter() - began)}")

    began = time.perf_counter()
    store.append("orders", b"the last one", key=b"user-00")
    spent = (time.perf_counter() - began) * 1e3
    say(f"   append with acks='all':            on disk in {spent:.1f} ms, with all before it in its partition")


def read_in_another_process(path: Path) -> None:
    say("2. Read them in another process. It opens the same directory; there is no server.")
    reader = child("read", path)
    answer, _ = reader.communicate()
    assert reader.returncode == 0
    say(answer.rstrip())


def part_read(path: Path) -> None:
    store = klamm.open(path, read_only=True)
    count = 0
    began = time.perf_counter()
    with store.consumer("orders", start="earliest", wait=0) as orders:
        for batch in orders.batches(max_records=10_000):
            count += len(batch)
    say(f"   {f'process {os.getpid()} read':34} {rate(count, time.perf_counter() - began)}")
    assert count == MILLION + 1


def query(store: klamm.Store) -> None:
    say("3. Ask the log in SQL: DuckDB reads it as an Arrow stream, as it lies on disk.")
    orders = store.scan("orders")  # DuckDB finds it by the name of the variable
    duckdb.sql("select count(*) from orders").fetchall()  # the first query loads what DuckDB needs for Arrow
    text = """
        select decode(key) as user, count(*) as orders, sum(octet_length(value)) as bytes
        from orders group by user order by orders desc, user limit 3
    """
    say("   " + "\n   ".join(line.strip() for line in text.strip().splitlines()))
    began = time.perf_counter()
    rows = duckdb.sql(text).fetchall()
    spent = time.perf_counter() - began
    for user, count, size in rows:
        say(f"      {user}  {count:,} orders  {size:,} bytes")
    say(f"   grouped                            {rate(MILLION + 1, spent)}")
    assert rows[0][:2] == ("user-00", MILLION // 100 + 1)
    del orders


def kill_writers(store: klamm.Store, path: Path) -> None:
    say(f"4. Kill a writer with SIGKILL in the middle of its work, {KILLS} times. Each counts on where the last ended.")
    store.topics.create("counts")
    written = 0
    for _ in range(KILLS):
        before = written
        announced = -1
        with child("count", path) as writer:
            assert writer.stdout
            for line in writer.stdout:  # the writer says each number after append() returned
                announced = int(line)
                if announced >= before + 2000 and random.random() < 0.001:
                    break
            writer.kill()
            for line in writer.stdout:  # what was still in the pipe; the last line may be torn
                if line.endswith("\n"):
                    announced = int(line)
        assert writer.returncode == -signal.SIGKILL
        began = time.perf_counter()
        with store.consumer("counts", start="earliest", wait=0, serde="str") as counts:
            numbers = [int(record.value) for record in counts]
        spent = (time.perf_counter() - began) * 1e3
        assert numbers == list(range(len(numbers))), "a number is missing, doubled or out of order"
        assert len(numbers) > announced, "a number that was acknowledged is gone"
        written = len(numbers)
        say(
            f"   writer {writer.pid} killed after {announced - before + 1:,} acknowledged appends; "
            f"read back 0 to {written - 1:,}, none missing, none twice ({spent:.0f} ms)"
        )
    offset = store.append("counts", str(written).encode())
    say(f"   and the next append simply goes on, at offset {offset:,}")
    assert offset == written


def part_count(path: Path) -> None:
    store = klamm.open(path)
    with store.consumer("counts", start="earliest", wait=0) as counts:
        n = sum(len(batch) for batch in counts.batches(max_records=10_000))
    while True:
        store.append("counts", str(n).encode(), acks=1)
        os.write(1, b"%d\n" % n)
        n += 1


def show_files(path: Path) -> None:
    say("5. What is in the directory:")
    for file in sorted(path.rglob("*")):
        if file.is_file():
            name = re.sub("-([0-9a-f]{4})[0-9a-f]{28}/", r"-\1…/", str(file.relative_to(path)))  # ids are long
            say(f"   {file.stat().st_size:>12,}  {name}")


def tour() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="klamm-tour-") as directory:
        path = Path(directory) / "events"
        say(f"A store is a directory: klamm.open({str(path)!r})")
        with klamm.open(path) as store:
            for step in (
                lambda: write_a_million(store),
                lambda: read_in_another_process(path),
                lambda: query(store),
                lambda: kill_writers(store, path),
                lambda: show_files(path),
            ):
                say()
                step()
    say()
    say(f"Done in {time.perf_counter() - began:.1f} s; the directory is gone again. Next: README.md and docs/start.md")


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        part_read(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["count"]:
        part_count(Path(sys.argv[2]))
    else:
        tour()
