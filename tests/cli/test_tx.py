"""`klamm tx`: list and abort."""

from __future__ import annotations

import os
import shutil
import signal
from datetime import datetime
from pathlib import Path

import pytest

import klamm
from klamm.errors import TransactionError
from tests.cli.conftest import Cli
from tests.cli.terminal import terminal
from tests.procs import Flag, children, until


@pytest.fixture
def orders(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders", 2)
    return store


def test_no_transaction_is_no_line(cli: Cli, orders: klamm.Store) -> None:
    assert cli("tx", "list").rows == []


def test_an_open_transaction_is_listed_and_aborted_by_id_or_name(cli: Cli, orders: klamm.Store) -> None:
    for name, which in ((None, "producer_id"), ("loader", "name")):
        transaction = orders.transaction(name, batch_bytes=1)
        transaction.send("orders", b"never read", partition=1)
        (row,) = cli("tx", "list").rows
        assert row["name"] == name and row["state"] == "ongoing" and row["partitions"] == ["orders/1"]
        assert datetime.fromisoformat(row["since"]).tzinfo is not None
        told = cli("tx", "abort", row[which], code=2).err
        assert "would be aborted; it may have appended to: orders/1" in told
        assert len(cli("tx", "list").rows) == 1  # nothing was done
        (done,) = cli("tx", "abort", row[which], "--yes").rows
        assert done == {"producer_id": row["producer_id"], "aborted": True}
        assert cli("tx", "list").rows == []
        with pytest.raises(TransactionError):
            transaction.commit()
    assert cli("tail", "orders").rows == []


def test_what_is_not_open_cannot_be_aborted(cli: Cli, orders: klamm.Store) -> None:
    with orders.transaction("loader", batch_bytes=1) as transaction:
        transaction.send("orders", b"x")
    told = cli("tx", "abort", "99", "-y", code=1).err
    assert "there is no open transaction of '99' (klamm tx list shows those that are open)" in told
    if [row["state"] for row in cli("tx", "list").rows] == ["prepared_commit"]:  # until its end is on disk everywhere
        assert "the transaction of loader is committed" in cli("tx", "abort", "loader", "-y", code=1).err
    assert [row["value"] for row in cli("tail", "orders").rows] == ["x"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_the_transaction_of_a_killed_process_is_listed_until_it_is_aborted(
    cli: Cli, home: Path, tmp_path: Path
) -> None:
    ready = Flag(tmp_path / "ready")

    def work() -> None:
        with klamm.open(home) as store:
            store.topics.create("orders")
            transaction = store.transaction("loader", batch_bytes=1)
            transaction.send("orders", b"never read")
            ready.up()
            signal.pause()

    with children() as start:
        child = start(work)
        ready.wait()
        os.kill(child.pid, signal.SIGKILL)
        until(lambda: not cli("who").rows, "it is gone")
    for _ in range(2):
        assert [row["name"] for row in cli("tx", "list").rows] == ["loader"]
    cli("tx", "abort", "loader", "--yes")
    assert cli("tx", "list").rows == [] and cli("tail", "orders").rows == []


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux: `make tools` installs it")
def test_a_person_is_asked_before_a_transaction_is_aborted(home: Path, orders: klamm.Store) -> None:
    transaction = orders.transaction("loader", batch_bytes=1)
    transaction.send("orders", b"never read", partition=0)
    with terminal(KLAMM_STORE=str(home)) as screen:
        screen.start("klamm tx abort loader")
        screen.shows("Do it?")
        screen.type("n")
        assert screen.code() == 1 and "loader" in screen.run("klamm tx list")
        screen.start("klamm tx abort loader")
        screen.shows("Do it?")
        screen.type("y")
        assert "aborted the transaction of loader" in screen.ended()
        assert "no open transactions" in screen.run("klamm tx list")
    with pytest.raises(TransactionError):
        transaction.commit()
