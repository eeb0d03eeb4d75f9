"""A client of groups that speaks by hand: joins, commits and fetches, on one connection; and a server to kill."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.server import Server
from klamm.kafka.settings import ServerSettings
from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import HEARTBEAT, JOIN_GROUP, OFFSET_COMMIT, OFFSET_FETCH, SYNC_GROUP
from klamm.kafka.wire.structs import Struct
from tests.kafka.connect import Raw, Served
from tests.procs import PATIENCE, until

__all__ = ["GROUP", "Client", "Joined", "address_in", "every", "hold_writes", "join_as_consumer", "serve_for_ever"]

GROUP = "billing"

Offsets = dict[tuple[str, int], int]


def every(api: Api) -> pytest.MarkDecorator:
    """A test for each version of an API."""
    return pytest.mark.parametrize("version", range(api.min_version, api.max_version + 1))


class Joined(NamedTuple):
    member_id: str
    generation: int


class Client(Raw):
    """Remembers what it has asked, so that answers may be taken later."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "tests", PATIENCE)
        self._asked: list[tuple[int, Api, int]] = []

    def begin(self, api: Api, version: int, **fields: Any) -> None:
        """Ask, and do not wait."""
        self._asked.append((self.send(api, version, **fields), api, version))

    def answer(self) -> Struct:
        """To the oldest that has none."""
        number, api, version = self._asked.pop(0)
        found, response = read_response(api, version, self.receive())
        assert found == number
        return response

    # ---- members

    def begin_join(self, member_id: str = "", group: str = GROUP, version: int = 9, **fields: Any) -> None:
        defaults: dict[str, Any] = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": [JOIN_GROUP.request.Protocol(name="range", metadata=b"topics")],
        }
        self.begin(JOIN_GROUP, version, group_id=group, member_id=member_id, **(defaults | fields))

    def join(self, member_id: str = "", group: str = GROUP, version: int = 9, **fields: Any) -> Struct:
        """The answer; whoever is told its id first joins again."""
        self.begin_join(member_id, group, version, **fields)
        answer = self.answer()
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return self.join(answer.member_id, group, version, **fields)
        return answer

    def become_member(self, group: str = GROUP, **fields: Any) -> Joined:
        """Alone in the group, and assigned `mine`."""
        joined = self.join(group=group, **fields)
        assert joined.error_code == 0, joined
        synced = self.ask(
            SYNC_GROUP,
            4,
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=fields.get("group_instance_id"),
            assignments=[SYNC_GROUP.request.Assignment(member_id=joined.member_id, assignment=b"mine")],
        )
        assert (synced.error_code, synced.assignment) == (0, b"mine")
        return Joined(joined.member_id, joined.generation_id)

    def shorten_session(self, member: Joined) -> int:
        """Join again with a session of half a second, and return the generation. When the server is killed next, its
        successor waits only that long for this member. The server has to allow sessions as short as that.
        """
        joined = self.join(member.member_id, session_timeout_ms=500)
        asked = {"group_id": GROUP, "generation_id": joined.generation_id, "member_id": member.member_id}
        assert joined.error_code == self.ask(SYNC_GROUP, 4, **asked).error_code == 0
        return int(joined.generation_id)

    def heartbeat(self, member: Joined, group: str = GROUP) -> int:
        asked = {"group_id": group, "generation_id": member.generation, "member_id": member.member_id}
        return int(self.ask(HEARTBEAT, 4, **asked).error_code)

    # ---- offsets

    def begin_commit(
        self,
        offsets: Offsets,
        member: Joined | None = None,
        *,
        group: str = GROUP,
        version: int = 9,
        epoch: int = -1,
        metadata: str | None = "",
    ) -> None:
        request = OFFSET_COMMIT.request
        topics: dict[str, list[Struct]] = {}
        for (topic, number), offset in offsets.items():
            topics.setdefault(topic, []).append(
                request.Partition(
                    partition_index=number,
                    committed_offset=offset,
                    committed_leader_epoch=epoch,
                    committed_metadata=metadata,
                )
            )
        self.begin(
            OFFSET_COMMIT,
            version,
            group_id=group,
            member_id="" if member is None else member.member_id,
            generation_id_or_member_epoch=-1 if member is None else member.generation,
            topics=[request.Topic(name=name, partitions=each) for name, each in topics.items()],
        )

    def committed(self) -> list[int]:
        """The errors of a commit that was begun, partition by partition."""
        return [each.error_code for topic in self.answer().topics for each in topic.partitions]

    def commit(self, offsets: Offsets, member: Joined | None = None, **more: Any) -> list[int]:
        self.begin_commit(offsets, member, **more)
        return self.committed()

    def begin_fetch(self, group: str = GROUP) -> None:
        self.begin(OFFSET_FETCH, 9, groups=[OFFSET_FETCH.request.Group(group_id=group, topics=None)])

    def fetched(self) -> Offsets:
        (group,) = self.answer().groups
        assert group.error_code == 0
        assert all(each.error_code == 0 for topic in group.topics for each in topic.partitions)
        return {
            (topic.name, each.partition_index): each.committed_offset
            for topic in group.topics
            for each in topic.partitions
        }

    def offsets(self, group: str = GROUP) -> Offsets:
        """All that a group has."""
        self.begin_fetch(group)
        return self.fetched()


def join_as_consumer(
    client: Client, assigned: Mapping[str, Sequence[int]], *, group: str = GROUP, **fields: Any
) -> Joined:
    """Join as a consumer does that subscribes to these topics, alone, and is assigned these partitions."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    parts = [
        text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers) for topic, numbers in assigned.items()
    ]
    begin, end = struct.pack(">hi", 0, len(assigned)), struct.pack(">i", -1)
    subscription, assignment = (b"".join([begin, *each, end]) for each in (map(text, assigned), parts))
    protocols = [JOIN_GROUP.request.Protocol(name="range", metadata=subscription)]
    joined = client.join(group=group, protocols=protocols, **fields)
    assert joined.error_code == 0, joined
    synced = client.ask(
        SYNC_GROUP,
        4,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=fields.get("group_instance_id"),
        assignments=[SYNC_GROUP.request.Assignment(member_id=joined.member_id, assignment=assignment)],
    )
    assert (synced.error_code, synced.assignment) == (0, assignment)
    return Joined(joined.member_id, joined.generation_id)


def hold_writes(served: Served) -> threading.Event:
    """Keep the thread that writes busy until the event is set."""
    go_on, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    served.call(lambda: served.broker.write(wait) is None)
    assert begun.wait(PATIENCE)
    return go_on


def serve_for_ever(path: Path | str, told: Path, **settings: int) -> None:
    """For a process of its own: serves until it is killed. `told` gets the address."""

    async def run() -> None:
        server = Server(path, ServerSettings.of({"kafka": 0, **settings}))
        await server.start()
        told.with_suffix(".new").write_text(server.address)
        os.replace(told.with_suffix(".new"), told)
        await asyncio.Event().wait()

    asyncio.run(run())


def address_in(told: Path) -> str:
    """As soon as it is there."""
    until(told.exists, f"{told} tells the address")
    address = told.read_text()
    told.unlink()
    return address
