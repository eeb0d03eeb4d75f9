"""A consumer with a fetch session, by hand: what Java's FetchSessionHandler does, and checks.

It names a partition when it wants another offset of it, and forgets what it does not want any more. On an error of the
session it begins a new one, with a full request.
"""

from __future__ import annotations

from typing import Any

from klamm.batch import parse
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import FETCH
from klamm.kafka.wire.structs import Struct
from tests.interop.raw import Raw
from tests.kafka.requests import FetchFrom, batches_of, fetching

__all__ = ["SESSION_ERRORS", "SessionClient"]

VERSION = 12
SESSION_ERRORS = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}
Where = tuple[str, int]


class SessionClient:
    """On one connection. `wanted` may be changed between two polls."""

    def __init__(self, raw: Raw, wanted: dict[Where, FetchFrom | int], **options: Any) -> None:
        self.raw = raw
        self.wanted = dict(wanted)
        self.options = options
        self.known: dict[Where, Struct] = {}
        """The last that was told of each partition."""
        self.session_id = self.epoch = 0
        self._sent: dict[Where, FetchFrom | int] = {}

    @property
    def is_full(self) -> bool:
        """Whether the next request names all partitions."""
        return self.epoch == 0

    def poll(self, **options: Any) -> dict[Where, Struct]:
        """Return the partitions of one response, by where they are. An error of the session: none."""
        self.send(**options)
        return self.receive()

    def send(self, **options: Any) -> None:
        wanted = self.wanted
        named = wanted if self.is_full else {each: at for each, at in wanted.items() if self._sent.get(each) != at}
        forgotten: dict[str, list[int]] = {}
        for topic, index in [] if self.is_full else [each for each in self._sent if each not in wanted]:
            forgotten.setdefault(topic, []).append(index)
        fields = fetching(named, **{**self.options, **options})
        data = [FETCH.request.ForgottenTopic(topic=name, partitions=each) for name, each in forgotten.items()]
        ids = {"session_id": self.session_id, "session_epoch": self.epoch}
        self.raw.send(FETCH, VERSION, **fields, **ids, forgotten_topics_data=data)
        self._sent = dict(wanted)

    def receive(self) -> dict[Where, Struct]:
        response = read_response(FETCH, VERSION, self.raw.receive())[1]
        if response.error_code:
            assert response.error_code in SESSION_ERRORS, ErrorCode(response.error_code)
            assert not response.responses
            self.session_id = self.epoch = 0
            return {}
        found = {(topic.topic, each.partition_index): each for topic in response.responses for each in topic.partitions}
        if self.is_full:
            assert set(found) == set(self._sent), "a full response has each partition"
            self.known = {}
        assert set(found) <= set(self._sent), "no partition that was not asked for"
        self.known = {each: was for each, was in self.known.items() if each in self._sent} | found
        if response.session_id == 0:
            self.epoch = 0
        elif self.is_full:
            self.session_id, self.epoch = response.session_id, 1
        else:
            assert response.session_id == self.session_id
            self.epoch += 1
        return found

    def read(self, **options: Any) -> dict[Where, list[bytes]]:
        """Return the batches of one response, and go on behind them."""
        batches = {}
        for where, each in self.poll(**options).items():
            if each.error_code == 0 and len(each.records):
                batches[where] = batches_of(each.records)
                self.wanted[where] = parse(batches[where][-1]).next_offset
        return batches
