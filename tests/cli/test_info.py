"""`klamm info`: a store at a glance, also while a process is stopped, and when it is damaged."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import klamm
from klamm.disk import _os
from klamm.store.directory import OPENING
from tests.cli.conftest import Cli
from tests.cli.terminal import terminal
from tests.procs import Flag, children
from tests.serving import KLAMM


def test_a_new_store_has_nothing_in_it(cli: Cli, home: Path, store: klamm.Store) -> None:
    (shown,) = cli("info").rows
    assert shown["store"] == str(home) and shown["id"] == store.store_id
    assert shown["size"] == 0 and shown["free"] > 0
    for section in ("topics", "groups", "transactions", "recovery"):
        assert shown[section] == []


def test_topics_have_sizes_and_rates_by_the_time_of_their_records(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    store.topics.create("old")
    now_ms = time.time_ns() // 1_000_000
    store.append_many("orders", [(None, b"x", [], now_ms - 1_800_000)] * 300, partition=0)
    store.append_many("orders", [(None, b"x", [], now_ms)] * 120, partition=0)
    store.append_many("orders", [(None, b"x", [], now_ms)] * 60, partition=1)
    store.append_many("old", [(None, b"x", [], now_ms - 7_200_000)] * 10)
    (shown,) = cli("info").rows
    old, orders = shown["topics"]
    assert orders == {
        "topic": "orders",
        "partitions": 2,
        "offsets": 480,
        "size": store.topics.describe("orders").size,
        "per_s_1m": 3.0,
        "per_s_1h": round(480 / 3600, 3),
    }
    assert (old["offsets"], old["per_s_1m"], old["per_s_1h"]) == (10, 0, 0)
    assert shown["size"] == orders["size"] + old["size"]


def test_groups_transactions_and_processes_are_in_it(cli: Cli, home: Path, store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append_many("orders", [b"x"] * 5)
    with (
        store.consumer("orders", group="bills", member="m1", wait=0) as consumer,
        store.transaction("loader", batch_bytes=1) as transaction,
    ):
        consumer.poll(timeout=0)
        transaction.send("orders", b"y")
        (shown,) = cli("info", home).rows
    (group,) = shown["groups"]
    assert (group["group"], group["state"], group["members"], group["lag"]) == ("bills", "active", 1, 6)
    assert [row["name"] for row in shown["transactions"]] == ["loader"]
    if _os.HAS_BYTE_LOCKS:
        (process,) = [row for row in shown["processes"] if row["pid"] == os.getpid()]
        assert process["command"] and process["since"] and process["stopped"] is False and process["waits"] == []
        assert "member of group bills: m1" in process["as"] and "transactional producer loader" in process["as"]
    store.close()
    assert cli("info").rows[0]["processes"] == []


def test_what_recovery_cut_off_and_repair_set_aside_is_in_it(cli: Cli, home: Path, store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append_many("orders", [b"value 1"] * 10)
    store.append_many("orders", [b"value 2"] * 10)
    store.close()
    (segment,) = home.glob("topics/orders-*/0/*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"value 1")] ^= 1
    segment.write_bytes(data)
    assert cli("check", "--repair", "--yes").rows[-1]["ok"]
    (cut,) = cli("info").rows[0]["recovery"]
    assert (cut["what"], cut["of"]) == ("cut off", "orders/0") and cut["size"] > 0
    assert cut["time"].endswith("Z") and (home / cut["path"]).exists()
    for beside in home.glob("klamm.db-*"):
        beside.unlink()
    (home / "klamm.db").write_bytes(b"no database at all" * 100)
    cli("check", "--repair", "--yes")
    told = cli("info").rows[0]["recovery"]
    assert sorted(row["what"] for row in told) == ["cut off", "set aside"]
    assert any(row["path"].startswith("klamm.db.damaged-") for row in told)


def test_a_damaged_topic_does_not_hide_the_others(cli: Cli, home: Path, store: klamm.Store) -> None:
    for name in ("bad", "good"):
        store.topics.create(name)
        store.append_many(name, [b"value"] * 10)
    store.close()
    (segment,) = home.glob("topics/bad-*/0/*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"value")] ^= 1
    segment.write_bytes(data)
    bad, good = cli("info").rows[0]["topics"]
    assert (bad["offsets"], bad["per_s_1h"]) == (10, None) and "CRC" in bad["problem"]
    assert good["offsets"] == 10 and good["per_s_1h"] > 0 and good["problem"] is None


@pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="one process at a time")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_stopped_process_does_not_hold_it_up(home: Path, tmp_path: Path) -> None:
    """Stopped while it holds the write lock of klamm.db and the one for opening, and has a transaction open."""
    ready = Flag(tmp_path / "ready")

    def work() -> None:
        with klamm.open(home) as store:
            store.topics.create("orders")
            transaction = store.transaction("loader", batch_bytes=1)
            transaction.send("orders", b"x")
            core = store._acquired()
            assert core.lock is not None
            with core.catalog.database.db_lock(), core.lock.hold(OPENING):
                ready.up()
                os.kill(os.getpid(), signal.SIGSTOP)

    with children() as start:
        child = start(work)
        ready.wait()
        for command in (["info"], ["tx", "list"]):
            done = subprocess.run([KLAMM, *command, "-o", "json"], capture_output=True, text=True, timeout=20)
            assert done.returncode == 0 and '"loader"' in done.stdout, done.stderr
        assert child.pid > 0


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux: `make tools` installs it")
def test_a_person_sees_a_table_for_each_part(home: Path, store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append_many("orders", [b"x"] * 5)
    store.groups.reset("billing", ["orders"], to=2)
    with terminal(KLAMM_STORE=str(home)) as screen:
        shown = screen.run("klamm info")
    assert "topics\n" in shown and "groups\n" in shown and "transactions" not in shown
    assert "billing" in shown and "orders" in shown and f" {os.getpid()} " in shown
