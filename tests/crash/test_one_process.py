"""Without forks and signals, so that it runs on Windows, too: a writer in another process, killed at any moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

import klamm
from klamm.disk import _os
from klamm.errors import StoreBusy

WRITER = """
import sys
import klamm
store = klamm.open(sys.argv[1])
if "orders" not in store.topics:
    store.topics.create("orders", settings={"segment.bytes": 4096})
acks = sys.argv[2] if sys.argv[2] == "all" else int(sys.argv[2])
with store.producer(acks=acks) as producer:
    for n in range(1 << 30):
        offset = store.append("orders", b"%d" % n, acks=acks)
        sent = producer.send("orders", b"sent", key=b"sent").result(10)
        print(offset, sent, flush=True)
"""


@contextmanager
def writing(path: Path, acks: str) -> Iterator[IO[str]]:
    """What a writer is told, line by line; killed when the block ends."""
    command = [sys.executable, "-c", WRITER, str(path), acks]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        try:
            yield writer.stdout
        finally:
            writer.kill()


@pytest.mark.parametrize("acks", ["1", "all"])
def test_whatever_a_killed_writer_was_told_is_there(tmp_path: Path, acks: str) -> None:
    path = tmp_path / "events"
    for lines in (1, 7, 150):
        with writing(path, acks) as told:
            last = [told.readline() for _ in range(lines)][-1]
        with klamm.open(path) as store:
            with store.consumer("orders", start="earliest", wait=0) as orders:
                offsets = [record.offset for record in orders]
            assert offsets == list(range(len(offsets))) and len(offsets) > max(map(int, last.split()))
            assert store.check().breaches == []


def test_a_segment_that_is_read_is_compacted_or_stays_as_it_was(tmp_path: Path) -> None:
    """Which of them, on Windows its version decides: Wine 8 does not replace a file in use."""
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("users", settings={"cleanup.policy": "compact"})
        for n in range(30):
            store.append("users", b"%d" % n, key=b"%d" % (n % 3), acks=1)
        with store.consumer("users", start="earliest", wait=0) as users:
            assert users.poll(max_records=1)
            try:
                store["users"].compact(force=True)
            except StoreBusy:
                assert sys.platform == "win32"
                store.maintain()
                with store.consumer("users", start="earliest", wait=0) as others:
                    assert [record.offset for record in others] == list(range(30))
            assert {27, 28, 29} <= {record.offset for record in users}
        store["users"].compact(force=True)
        with store.consumer("users", start="earliest", wait=0) as users:
            assert [record.offset for record in users] == [27, 28, 29]
        assert store.check().breaches == []


if not _os.HAS_BYTE_LOCKS:

    def test_a_second_process_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
        path = tmp_path / "events"
        with writing(path, "1") as told:
            told.readline()
            with pytest.raises(StoreBusy, match="another process"):
                klamm.open(path)
            with klamm.open(path, read_only=True) as store:
                assert list(store.topics) == ["orders"]
        klamm.open(path).close()
