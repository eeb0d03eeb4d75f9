"""The group of a query that reads from a server (option groupId): it stands where the query does."""

from __future__ import annotations

import logging

from klamm.errors import GroupBusy, KlammError
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import DESCRIBE_GROUPS, FIND_COORDINATOR, OFFSET_COMMIT
from klamm.spark.offsets import StreamOffsets
from klamm.spark.server.client import Client
from klamm.spark.server.errors import check

__all__ = ["ServerProgress"]

_log = logging.getLogger("klamm.spark")
_BY_NAME = 9  # the last version of OffsetCommit that names topics, not ids
_GROUP_KEY = 0  # the type of a key of FindCoordinator
_ONE_KEY = 3  # its last version with one key


class ServerProgress:
    """The group of one query, for one thread."""

    def __init__(self, client: Client, group: str) -> None:
        """Prepare. Raise GroupBusy if the group has members: two would move it, each to its own position."""
        self._client = client
        self._group = group
        self._recorded: StreamOffsets | None = None
        client.patiently(self._check_no_members)

    def note(self, offsets: StreamOffsets) -> None:
        """Move the group there. What cannot be stored now is stored with the next micro-batch; the query goes on."""
        if offsets == self._recorded:
            return
        try:
            self._client.patiently(lambda: self._commit(offsets))
        except KlammError as error:
            _log.warning("groupId: group %r does not follow the query: %s", self._group, error)
        else:
            self._recorded = offsets

    def _coordinator(self) -> int:
        request = FIND_COORDINATOR.request(key=self._group, key_type=_GROUP_KEY)
        response = self._client.ask(FIND_COORDINATOR, request, at_least=1, at_most=_ONE_KEY)
        check(self._where, response.error_code, response.error_message)
        return int(response.node_id)

    @property
    def _where(self) -> str:
        return f"{self._client.address}: group {self._group!r}"

    def _check_no_members(self) -> None:
        request = DESCRIBE_GROUPS.request(groups=[self._group])
        for group in self._client.ask(DESCRIBE_GROUPS, request, broker=self._coordinator()).groups:
            if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                check(self._where, group.error_code)
            if group.members:
                raise GroupBusy(
                    f"{self._where} has {len(group.members)} members", hint="give the query a group of its own"
                )

    def _commit(self, offsets: StreamOffsets) -> None:
        kind = OFFSET_COMMIT.request
        topics: dict[str, list[object]] = {}
        for tp, offset in offsets:
            committed = kind.Partition(
                partition_index=tp.partition, committed_offset=offset, committed_leader_epoch=offsets.epoch(tp)
            )
            topics.setdefault(tp.topic, []).append(committed)
        request = kind(
            group_id=self._group, topics=[kind.Topic(name=name, partitions=each) for name, each in topics.items()]
        )
        response = self._client.ask(OFFSET_COMMIT, request, broker=self._coordinator(), at_most=_BY_NAME)
        for topic in response.topics:
            for each in topic.partitions:
                check(f"{self._where}: {topic.name}/{each.partition_index}", each.error_code)
