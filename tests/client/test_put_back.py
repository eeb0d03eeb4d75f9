"""An older copy of a store is put back: whoever had read further, and remembers that elsewhere, notices."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import klamm
from klamm.store import directory


def append(path: Path, life: str, count: int) -> None:
    """Append records that say in which life of the store they were written."""
    with klamm.open(path) as store:
        first = store.topics.describe("orders").partitions[0].end
        store.append_many(
            "orders", [(b"%d" % (n % 7), b"%s %d" % (life.encode(), n)) for n in range(first, first + count)]
        )


@pytest.fixture(params=[0, 2])
def put_back(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Make a store of 100 records; 50 more, `read`; the copy of 100 in its place, and `new` other records."""

    def make(read: Callable[[Path], None], new: int, *, stays: str | None = None) -> Path:
        path = tmp_path / "events"
        with klamm.open(path) as store:
            store.topics.create("orders")
        append(path, "both", 100)
        with klamm.open(path) as store:
            store.backup(tmp_path / "backup")
        for reboot in range(request.param):
            boot_id = b"%16d" % reboot
            monkeypatch.setattr(directory, "boot_id", lambda boot_id=boot_id: boot_id)
            with klamm.open(path) as store:
                assert store.topics.describe("orders").partitions[0].end == 100
        append(path, "lost", 50)
        read(path)
        path.rename(tmp_path / "lost")
        (tmp_path / "backup").rename(path)
        later = time.time() + 60
        monkeypatch.setattr(time, "time", lambda: later)  # lives of a store differ by when they began
        if stays is not None:
            shutil.copytree(tmp_path / "lost" / stays, path / stays)
        append(path, "new", new)
        return path

    return make


@pytest.mark.parametrize("new", [60, 50, 20])
def test_a_consumer_with_offsets_in_a_database_reads_what_the_log_has_now(
    put_back: Callable[..., Path], tmp_path: Path, new: int
) -> None:
    with closing(sqlite3.connect(tmp_path / "results.db", isolation_level=None)) as connection:

        def read(path: Path) -> list[bytes | None]:
            found: list[bytes | None] = []
            with klamm.open(path) as store:
                offsets = klamm.SqlOffsets(connection, "billing")
                with store.consumer("orders", offsets=offsets, start="earliest", wait=0) as consumer:
                    while batch := consumer.poll(max_records=40):
                        connection.execute("BEGIN")
                        consumer.commit(batch)
                        connection.execute("COMMIT")
                        found += [record.value for record in batch]
            return found

        path = put_back(lambda path: len(read(path)) == 150 or pytest.fail("some are missing"), new)
        assert read(path) == [b"new %d" % n for n in range(100, 100 + new)]
        assert read(path) == []


@pytest.mark.parametrize("new", [60, 50, 20])
def test_a_table_that_stayed_from_the_newer_store_is_made_again(put_back: Callable[..., Path], new: int) -> None:
    def read(path: Path) -> dict[bytes, bytes]:
        with klamm.open(path) as store, store.table("orders") as table:
            return dict(table)

    path = put_back(lambda path: read(path)[b"0"] == b"lost 147" or pytest.fail("not applied"), new, stays="tables")
    expected = {b"%d" % (n % 7): b"both %d" % n for n in range(100)}
    expected |= {b"%d" % (n % 7): b"new %d" % n for n in range(100, 100 + new)}
    assert read(path) == expected
