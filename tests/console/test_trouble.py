"""The trouble page: what is wrong, what shows it, and the command that helps."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import klamm
from klamm.console.sampler import GroupPoint, Look, group_point
from tests.console.visitor import Visitor
from tests.procs import die_with_parent, until


def found(visitor: Visitor, what: str) -> list[dict[str, Any]]:
    return [row for row in visitor.get("/api/trouble").json["trouble"] if what in row["what"]]


def test_trouble_names_dead_letters_and_groups_that_do_not_catch_up(visitor: Visitor) -> None:
    (letters,) = found(visitor, "dead letters in orders.dlq")
    assert letters["command"] == "klamm dlq list orders.dlq --store events"
    assert found(visitor, "does not catch up") == []
    for n in range(3):
        visitor.sampler.add(Look(n * 1000, {"orders": 60}, {"billing": GroupPoint(n * 1000, 60, 5, 9000)}))
    (group,) = found(visitor, "Group billing does not catch up")
    assert group["evidence"].startswith("5 records,") and "it has no members" in group["evidence"]


def test_trouble_names_a_member_that_stands_still(store: klamm.Store, visitor: Visitor) -> None:
    """Whose handler hangs, or fails at a record again and again: where it stands, and since when."""
    now_ms = time.time_ns() // 1_000_000
    with store.consumer("orders", group="billing", wait=0, member="worker-1") as consumer:
        consumer.poll()
        for time_ms in (now_ms - 61_000, now_ms - 1000, now_ms):
            visitor.sampler.add(Look(time_ms, {}, {"billing": group_point(store.groups.describe("billing"), time_ms)}))
        rows = found(visitor, "Group billing stands still at orders/1")
        assert [(row["see"], row["command"]) for row in rows] == [
            ("/topics/orders/1/15", "klamm tail orders -p 1 --from @15 -c 1 --store events")
        ]
        assert "worker-1 reads orders/1 and has committed nothing for 1 min 1 s" in rows[0]["evidence"]
        assert found(visitor, "stands still at orders/0") == [], "it has read that"
        consumer.commit({("orders", 1): 16})
        visitor.sampler.add(Look(now_ms, {}, {"billing": group_point(store.groups.describe("billing"), now_ms)}))
        assert found(visitor, "stands still") == []


def test_trouble_names_a_stopped_process(store: klamm.Store, visitor: Visitor) -> None:
    code = "import sys, time, klamm; s = klamm.open(sys.argv[1]); print('open', flush=True); time.sleep(99)"
    command = [sys.executable, "-c", code, store.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=die_with_parent) as process:  # noqa: PLW1509
        try:
            assert process.stdout is not None and process.stdout.readline()
            assert found(visitor, "is stopped") == []
            process.send_signal(signal.SIGSTOP)
            until(lambda: found(visitor, f"Process {process.pid} is stopped"), "the process is stopped")
            assert found(visitor, "is stopped")[0]["command"] == f"kill -CONT {process.pid}"
        finally:
            process.kill()


def test_trouble_names_damage(store: klamm.Store, visitor: Visitor) -> None:
    (cut,) = list(Path(store.path).glob("topics/orders-*/0/*.log"))
    cut.with_name(f"{cut.name}.cut-1790000000000").write_bytes(b"x" * 100)
    (row,) = found(visitor, "Recovery cut off 100 B of orders/0")
    assert row["command"] == "klamm salvage events"
    assert "orders/0" in visitor.get("/").words and visitor.get("/api/overview").json["recovery"][0]["size"] == 100


def test_trouble_names_a_disk_that_is_nearly_full(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=100 << 30, free=500 << 20))
    (row,) = found(visitor, "disk is nearly full")
    assert "500.0 MiB of 100.0 GiB are free" in row["evidence"]


def test_trouble_names_a_stuck_transaction(store: klamm.Store, visitor: Visitor) -> None:
    with store.transaction(batch_bytes=1) as tx:
        tx.send("orders", b"x")
        assert found(visitor, "stuck") == []
        tx.abort()
    with store.transaction(batch_bytes=1, timeout=0.001) as tx:
        tx.send("orders", b"x")
        until(lambda: found(visitor, "is stuck"), "the transaction is older than its timeout")
        (row,) = found(visitor, "is stuck")
        assert row["command"].startswith("klamm tx abort ")
        tx.abort()


@pytest.mark.parametrize(
    ("row", "overdue"),
    [
        ({"state": "ongoing", "age_ms": 59, "timeout_ms": 60}, False),
        ({"state": "ongoing", "age_ms": 61, "timeout_ms": 60}, True),
        ({"state": "ongoing", "age_ms": None, "timeout_ms": 60}, True),
        ({"state": "prepared_commit", "age_ms": 99, "timeout_ms": 60}, False),
    ],
)
def test_a_transaction_is_overdue_after_its_timeout(row: dict[str, Any], overdue: bool) -> None:
    from klamm.console.pages.transactions import is_overdue

    assert is_overdue(row) is overdue


def test_the_worst_comes_first_and_the_overview_says_how_much_there_is(store: klamm.Store, visitor: Visitor) -> None:
    assert visitor.get("/api/overview").json["trouble"] == {}
    (cut,) = list(Path(store.path).glob("topics/orders-*/0/*.log"))
    cut.with_name(f"{cut.name}.cut-1790000000000").write_bytes(b"x" * 100)
    with store.transaction(batch_bytes=1, timeout=0.001) as tx:
        tx.send("orders", b"x")
        until(lambda: found(visitor, "is stuck"), "the transaction is older than its timeout")
        kinds = [row["kind"] for row in visitor.get("/api/trouble").json["trouble"]]
        assert kinds == ["bad", "warn", "warn"], "a transaction, then what was cut off and dead letters"
        assert visitor.get("/api/overview").json["trouble"] == {"bad": 1, "warn": 1}
        assert "1 problem and 1 warning: evidence, and what helps" in visitor.get("/").words
        tx.abort()


def test_a_member_that_stands_still_in_several_partitions_is_one_trouble(store: klamm.Store, visitor: Visitor) -> None:
    now_ms = time.time_ns() // 1_000_000
    store.groups.reset("idle", "orders", to="earliest")
    with store.consumer("orders", group="idle", wait=0, member="worker-1") as consumer:
        consumer.poll()
        for time_ms in (now_ms - 61_000, now_ms):
            visitor.sampler.add(Look(time_ms, {}, {"idle": group_point(store.groups.describe("idle"), time_ms)}))
        (row,) = found(visitor, "Group idle stands still at orders/0")
        assert "(orders/1, orders/2 too)" in row["evidence"]
