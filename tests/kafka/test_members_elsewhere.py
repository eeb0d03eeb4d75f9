"""Members of Kafka clients' groups, as processes other than the server see them: `klamm group show`, the console."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka.wire.messages import JOIN_GROUP, LEAVE_GROUP
from tests.console.visitor import Visitor
from tests.kafka.connect import served
from tests.kafka.member import GROUP, Client, join_as_consumer
from tests.procs import PATIENCE, until

TOPICS = {"orders": (0, 2), "gone": (0,)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with klamm.open(tmp_path / "events") as opened:
        opened.topics.create("orders", partitions=3)
        opened.append("orders", b"x", partition=0)
    return tmp_path / "events"


def shown(path: Path) -> dict[str, Any]:
    """Return what `klamm group show` prints, in a process of its own."""
    command = [sys.executable, "-m", "klamm", "group", "show", GROUP, "--store", str(path), "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=PATIENCE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_another_process_sees_the_members_of_kafka_clients(path: Path) -> None:
    with served(path) as server, Client(server.address) as client:
        joined = join_as_consumer(client, TOPICS)
        group = shown(path)
        assert (group["state"], group["door"]) == ("active", "kafka")
        (row,) = group["members"]
        assert row == {
            "member": joined.member_id,
            "client_id": "tests",
            "host": "127.0.0.1",
            "partitions": ["gone/0", "orders/0", "orders/2"],
        }
        assert [(each["partition"], each["lag"]) for each in group["offsets"]] == [(0, 1), (1, 0), (2, 0)]
    with klamm.open(path) as opened:  # the row is there, for the next server
        assert (opened.groups[GROUP].state, opened.groups[GROUP].members) == ("empty", ())


def test_a_console_shows_the_members_of_kafka_clients(path: Path) -> None:
    with served(path) as server, Client(server.address) as client, klamm.open(path, read_only=True) as opened:
        joined = join_as_consumer(client, TOPICS, group_instance_id="one")
        visitor = Visitor(opened)
        (row,) = visitor.get(f"/api/groups/show?group={GROUP}").json["members"]
        assert (row["member"], row["id"], row["client_id"], row["host"]) == (
            "one",
            joined.member_id,
            "tests",
            "127.0.0.1",
        )
        assert row["partitions"] == ["gone/0", "orders/0", "orders/2"]
        words = visitor.get(f"/groups/show?group={GROUP}").words
        assert "client id host partitions one tests 127.0.0.1 gone/0, orders/0, orders/2" in words
        assert "active 1" in visitor.get("/groups").words
        (described,) = opened.groups[GROUP].members
        assert (described.topics, described.joined_ms, described.name) == (("orders",), None, "one")
        leaving = [LEAVE_GROUP.request.Member(member_id=joined.member_id, group_instance_id="one")]
        assert client.ask(LEAVE_GROUP, 5, group_id=GROUP, members=leaving).members[0].error_code == 0
        until(lambda: opened.groups[GROUP].state == "empty", "the member has left")
        assert opened.groups[GROUP].members == ()


def test_members_of_another_protocol_are_shown_without_partitions(path: Path) -> None:
    with served(path) as server, Client(server.address) as client, klamm.open(path, read_only=True) as opened:
        joined = client.become_member(
            protocol_type="connect", protocols=[JOIN_GROUP.request.Protocol(name="eager", metadata=b"?")]
        )
        (described,) = opened.groups[GROUP].members
        assert (described.id, described.topics, described.assignment) == (joined.member_id, (), ())


def test_members_that_have_yet_to_be_assigned_partitions_make_a_group_active(path: Path) -> None:
    with served(path) as server, Client(server.address) as client, klamm.open(path, read_only=True) as opened:
        assert client.join().error_code == 0
        assert (opened.groups[GROUP].state, opened.groups[GROUP].members) == ("active", ())
        words = Visitor(opened).get(f"/groups/show?group={GROUP}").words
        assert "Its members have yet to be assigned partitions." in words


def test_a_damaged_row_hides_the_members_and_nothing_else(path: Path) -> None:
    with served(path) as server, Client(server.address) as client, klamm.open(path) as opened:
        join_as_consumer(client, TOPICS)
        database = opened._acquired().catalog.database
        with database.db_lock(), database.transaction() as execute:
            execute("UPDATE wire_groups SET crc = crc + 1")
        assert (opened.groups[GROUP].state, opened.groups[GROUP].members) == ("active", ())
