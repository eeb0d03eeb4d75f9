"""The image of a group that outlives the server: a stable generation, its members and assignments, as bytes.

JSON, for it is small, seldom written, and read by people who look for a mistake; what clients sent as bytes is base64.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["GroupImage", "MemberImage", "Persist", "decoded", "encoded"]

_FORMAT = 1


class MemberImage(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class GroupImage(NamedTuple):
    group_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[MemberImage, ...]  # none: the group is empty, and nothing is to be kept of it

    @property
    def size(self) -> int:
        """About how many bytes clients make us keep."""
        return sum(
            len(member.assignment) + sum(len(name) + len(metadata) for name, metadata in member.protocols) + 200
            for member in self.members
        )


Persist = Callable[[GroupImage, int], None]
"""Called with an image to be kept and the number of this request, which the answer has to name."""


def encoded(image: GroupImage) -> bytes:
    members = [
        {
            **member._asdict(),
            "protocols": [[name, b64encode(metadata).decode()] for name, metadata in member.protocols],
            "assignment": b64encode(member.assignment).decode(),
        }
        for member in image.members
    ]
    data: dict[str, Any] = {"format": _FORMAT, **image._asdict(), "members": members}
    del data["group_id"]  # the row knows, and a name is said once
    return json.dumps(data).encode()


def decoded(group_id: str, state: bytes) -> GroupImage:
    """Decode the bytes that `encoded` made. Raise ValueError for others."""
    try:
        data = json.loads(state)
        if data.pop("format") != _FORMAT:
            raise ValueError("a newer Klamm wrote it")
        members = tuple(_member(each) for each in data.pop("members"))
        image = GroupImage(group_id=group_id, members=members, **data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the state of a group: {error!r}") from None
    ids = {member.member_id for member in members}
    if len(ids) != len(members) or image.leader not in ids:
        raise ValueError("its members contradict each other")
    return image


def _member(data: dict[str, Any]) -> MemberImage:
    protocols = tuple((str(name), b64decode(metadata)) for name, metadata in data.pop("protocols"))
    return MemberImage(protocols=protocols, assignment=b64decode(data.pop("assignment")), **data)
