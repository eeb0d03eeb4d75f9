"""`klamm dlq`: list, redrive, purge."""

from __future__ import annotations

import pytest

import klamm
from tests.cli.conftest import Cli


@pytest.fixture
def letters(store: klamm.Store) -> klamm.Store:
    """Four orders, of which two were no numbers and one divided by zero."""
    store.topics.create("orders")
    store.append_many("orders", [(b"a", b"1"), (b"\xff", b"one"), (b"c", b"0"), (b"d", b"\xfe")])
    with store.consumer("orders", group="g", wait=0) as consumer:
        consumer.run(lambda record: 1 // int(record.value), workers=1, retries=0, on_error="dead-letter")
    return store


def test_the_list_of_dead_letters_gives_the_error_of_each(cli: Cli, letters: klamm.Store) -> None:
    rows = cli("dlq", "list", "orders.dlq").rows
    assert [(row["origin"], row["error"], row["attempts"]) for row in rows] == [
        ("orders/0/1", "ValueError", 1),
        ("orders/0/2", "ZeroDivisionError", 1),
        ("orders/0/3", "ValueError", 1),
    ]
    assert "invalid literal" in rows[0]["reason"] and "by zero" in rows[1]["reason"]
    assert [row["key"] for row in rows] == [{"base64": "/w=="}, "c", "d"]
    assert [row["value"] for row in rows] == ["one", "0", {"base64": "/g=="}]
    assert "did you mean 'orders'" in cli("dlq", "list", "order", code=1).err
    assert len(cli("dlq", "list", "orders.dlq", "--limit", 2).rows) == 2
    told = cli("dlq", "list", "orders", code=2).err
    assert "orders: not a dead-letter topic" in told and "did you mean 'orders.dlq'?" in told


def test_redrive_sends_back_once_and_asks_first(cli: Cli, letters: klamm.Store) -> None:
    told = cli("dlq", "redrive", "orders.dlq", code=2).err
    assert "3 dead letters of orders.dlq would go back to where they came from" in told
    assert letters.topics.describe("orders").count == 4
    assert cli("dlq", "redrive", "orders.dlq", "--limit", 1, "--yes").rows == [{"topic": "orders.dlq", "redriven": 1}]
    assert len(cli("dlq", "list", "orders.dlq").rows) == 2
    assert cli("dlq", "redrive", "orders.dlq", "-y").rows == [{"topic": "orders.dlq", "redriven": 2}]
    nothing = cli("dlq", "redrive", "orders.dlq", "-y")
    assert nothing.err == "no dead letters in orders.dlq\n" and nothing.rows == [{"topic": "orders.dlq", "redriven": 0}]
    assert cli("dlq", "redrive", "orders.dlq", "-y", "-o", "table").out == b""
    assert cli("dlq", "redrive", "orders.dlq", "--dry-run").rows == []
    values = [row["value"] for row in cli("tail", "orders", "--from", 4).rows]
    assert values[:2] == ["one", "0"] and len(values) == 3


def test_a_dry_run_prints_where_letters_would_go(cli: Cli, letters: klamm.Store) -> None:
    assert cli("dlq", "redrive", "orders.dlq", "--dry-run").rows == [{"topic": "orders", "letters": 3}]
    rows = cli("dlq", "redrive", "orders.dlq", "--dry-run", "--error", "ValueError", "--limit", 1).rows
    assert rows == [{"topic": "orders", "letters": 1}]
    assert (
        "Topic 'nowhere' does not exist"
        in cli("dlq", "redrive", "orders.dlq", "--dry-run", "--to", "nowhere", code=1).err
    )
    assert len(cli("dlq", "list", "orders.dlq").rows) == 3 and letters["orders"].info().count == 4


def test_one_letter_goes_back_with_another_value(cli: Cli, letters: klamm.Store) -> None:
    row = cli("dlq", "list", "orders.dlq").rows[0]
    name = f"{row['partition']}/{row['offset']}"
    redrive = ("dlq", "redrive", "orders.dlq", "-y", "--rate", 100)
    assert "--value needs one --letter" in cli(*redrive, "--value", "1", code=2).err
    assert "'first' is invalid" in cli(*redrive, "--letter", "first", code=2).err
    assert cli(*redrive, "--letter", name, "--value", "1").rows == [{"topic": "orders.dlq", "redriven": 1}]
    assert [row["value"] for row in cli("tail", "orders", "--from", 4).rows] == ["1"]
    assert name not in [f"{row['partition']}/{row['offset']}" for row in cli("dlq", "list", "orders.dlq").rows]


def test_redrive_of_one_kind_of_error_to_another_topic(cli: Cli, letters: klamm.Store) -> None:
    letters.topics.create("zeros")
    told = cli("dlq", "redrive", "orders.dlq", "--to", "zeros", "--error", "ZeroDivisionError", code=2).err
    assert "1 dead letter of orders.dlq would go back to zeros" in told
    rows = cli("dlq", "redrive", "orders.dlq", "--to", "zeros", "--error", "ZeroDivisionError", "-y").rows
    assert rows == [{"topic": "orders.dlq", "redriven": 1}]
    assert [row["value"] for row in cli("tail", "zeros").rows] == ["0"]
    assert {row["error"] for row in cli("dlq", "list", "orders.dlq").rows} == {"ValueError"}
    told = cli("dlq", "redrive", "orders.dlq", "--error", "KeyError", "-y").err
    assert told == "no dead letters in orders.dlq died of KeyError\n"


def test_purge_asks_first_and_removes_what_was_sent_back(cli: Cli, letters: klamm.Store) -> None:
    cli("dlq", "redrive", "orders.dlq", "--limit", 2, "-y")
    assert "what was sent back of orders.dlq would be removed" in cli("dlq", "purge", "orders.dlq", code=2).err
    assert letters.topics.describe("orders.dlq").partitions[0].start == 0
    assert cli("dlq", "purge", "orders.dlq", "--yes").rows == [{"topic": "orders.dlq", "purged": 2}]
    assert [row["offset"] for row in cli("dlq", "list", "orders.dlq").rows] == [2]
    assert "not a dead-letter topic" in cli("dlq", "purge", "orders", "-y", code=2).err


def test_what_are_no_dead_letters_is_not_sent_anywhere(cli: Cli, letters: klamm.Store) -> None:
    told = cli("dlq", "redrive", "orders", "--to", "orders", "-y", code=2).err
    assert "orders: not a dead-letter topic" in told and "did you mean 'orders.dlq'?" in told
    assert letters.topics.describe("orders").count == 4
