"""`klamm quota`: quotas of a store."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli


def test_quotas_are_set_listed_and_removed(cli: Cli, home: Path) -> None:
    cli("quota", "set", "--create", "--user", "alice", "producer_byte_rate=1000", "request_percentage=12.5")
    cli("quota", "set", "--default-user", "--client-id", "app", "consumer_byte_rate=5e6")
    cli("quota", "set", "--default-ip", "connection_creation_rate=7")
    rows = cli("quota", "list").rows
    assert [(row["user"], row["client-id"], row["ip"], row["quota"], row["value"]) for row in rows] == [
        ("<default>", "app", None, "consumer_byte_rate", 5e6),
        (None, None, "<default>", "connection_creation_rate", 7),
        ("alice", None, None, "producer_byte_rate", 1000),
        ("alice", None, None, "request_percentage", 12.5),
    ]
    cli("quota", "remove", "--user", "alice", "producer_byte_rate")
    cli("quota", "remove", "--default-ip")
    assert [row["quota"] for row in cli("quota", "list").rows] == ["consumer_byte_rate", "request_percentage"]


def test_a_quota_that_cannot_be_is_refused(cli: Cli, home: Path) -> None:
    cli("quota", "set", "--create", "--user", "alice", "producer_byte_rate=1000")
    said = {
        "no user, client id or address is named": ("set", "producer_byte_rate=1"),
        "is invalid": ("set", "--user", "bob", "producer_byte_rate"),
        "greater than 0": ("set", "--user", "bob", "producer_byte_rate=0"),
        "fractional": ("set", "--user", "bob", "producer_byte_rate=1.5"),
        "Invalid configuration key": ("set", "--ip", "127.0.0.1", "producer_byte_rate=1"),
        "not a valid IP": ("set", "--ip", "nowhere", "connection_creation_rate=1"),
        "should not be combined": ("set", "--ip", "127.0.0.1", "--user", "bob", "connection_creation_rate=1"),
        "exclude each other": ("set", "--user", "bob", "--default-user", "producer_byte_rate=1"),
        "there is no such quota": ("remove", "--user", "bob"),
        "there is no such quota: request_percentage": ("remove", "--user", "alice", "request_percentage"),
    }
    for words, arguments in said.items():
        assert words in cli("quota", *arguments, code=2).err
    assert len(cli("quota", "list").rows) == 1
