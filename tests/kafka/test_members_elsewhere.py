"""Members of Kafka clients' groups, as processes other than the server see them: `klamm group show`, the console."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka.wire.messages import JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from tests.console.visitor import Visitor
from tests.kafka.connect import served
from tests.kafka.member import GROUP, Client, Joined
from tests.procs import PATIENCE, until

TOPICS = {"orders": (0, 2), "gone": (0,)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with klamm.open(tmp_path / "events") as opened:
        opened.topics.create("orders", partitions=3)
        opened.append("orders", b"x", partition=0)
    return tmp_path / "events"


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def member(client: Client, **fields: Any) -> Joined:
    """Join as a consumer does that subscribes to TOPICS, and is assigned these partitions."""
    subscribed = struct.pack(">hi", 0, len(TOPICS)) + b"".join(map(text, TOPICS)) + struct.pack(">i", -1)
    assigned = [
        text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers) for topic, numbers in TOPICS.items()
    ]
    assignment = struct.pack(">hi", 0, len(TOPICS)) + b"".join(assigned) + struct.pack(">i", -1)
    joined = client.join(protocols=[JOIN_GROUP.request.Protocol(name="range", metadata=subscribed)], **fields)
    assert joined.error_code == 0
    synced = client.ask(
        SYNC_GROUP,
        4,
        group_id=GROUP,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=fields.get("group_instance_id"),
        assignments=[SYNC_GROUP.request.Assignment(member_id=joined.member_id, assignment=assignment)],
    )
    assert synced.error_code == 0
    return Joined(joined.member_id, joined.generation_id)


def shown(path: Path) -> dict[str, Any]:
    """Return what `klamm group show` prints, in a process of its own."""
    command = [sys.executable, "-m", "klamm", "group", "show", GROUP, "--store", str(path), "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=PATIENCE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_another_process_sees_the_members_of_kafka_clients(path: Path) -> None:
    with served(path) as server, Client(server.address) as client:
        joined = member(client)
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
    assert (shown(path)["state"], shown(path)["members"]) == ("empty", [])  # its row is there, for the next server


def test_a_console_shows_the_members_of_kafka_clients(path: Path) -> None:
    with served(path) as server, Client(server.address) as client, klamm.open(path, read_only=True) as opened:
        joined = member(client, group_instance_id="one")
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
        member(client)
        database = opened._acquired().catalog.database
        with database.db_lock(), database.transaction() as execute:
            execute("UPDATE wire_groups SET crc = crc + 1")
        assert (opened.groups[GROUP].state, opened.groups[GROUP].members) == ("active", ())
