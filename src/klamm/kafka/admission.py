"""The checks before a request is handled: whether it is supported, what it repeats, what it has to wait for.

ordinary       what handles it without the steps below, if it is as most are
look_up        the row of the dispatch table, or UnsupportedVersion
decode_now     like decode, for the loop; None if that would take long
decode         the request, each thing in it once (repeats.py); or MalformedMessage
needs_catalog  whether changes of the catalog have to be read first
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.kafka.wire.decoder import MAX_ELEMENTS
from klamm.kafka.wire.errors import MalformedMessage, UnsupportedVersion
from klamm.kafka.wire.frames import RequestHeader, read_request_header
from klamm.kafka.wire.structs import Struct

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.call import OrdinaryHandler, SupportedApi
    from klamm.kafka.session import Session

__all__ = ["LOOP_ELEMENTS", "Admission"]

LOOP_ELEMENTS = 4096
"""Elements of arrays of a request that is decoded on the loop: a few milliseconds."""


class Admission:
    """The checks of one server, on its loop."""

    def __init__(
        self, broker: Broker, table: dict[int, SupportedApi], supported_versions: Callable[[], Struct]
    ) -> None:
        self._broker = broker
        self.table = dict(table)  # the server's own
        self.supported_versions = supported_versions
        """Return the response to ApiVersions of an unknown version."""
        self._ordinary = {row.api.key: row.ordinary for row in table.values() if row.ordinary is not None}

    def ordinary(self, session: Session, frame: memoryview) -> OrdinaryHandler | None:
        """Return what handles requests of that API as most are; None: `look_up` and `decode` them. It handles a request
        whose client may do what it asks for, and leaves others to the handler.
        """
        if len(frame) < 2 or frame[0]:
            return None
        return self._ordinary.get(frame[1])

    def look_up(self, frame: memoryview) -> tuple[RequestHeader, SupportedApi]:
        """Return the header of a request, and its row of the dispatch table."""
        header = read_request_header(frame)
        row = self.table.get(header.api.key)
        if row is None or not row.min_version <= header.version <= row.max_version:
            raise UnsupportedVersion(
                f"{header.api.name} v{header.version} is not supported",
                key=header.api.key,
                version=header.version,
                correlation_id=header.correlation_id,
            )
        return header, row

    @staticmethod
    def decode_now(header: RequestHeader, row: SupportedApi, frame: memoryview) -> Struct | None:
        """Like `decode`; None if the request may have more than LOOP_ELEMENTS elements: a thread decodes it."""
        if len(frame) <= LOOP_ELEMENTS:  # an element has a byte at least
            return Admission.decode(header, row, frame)
        try:
            return Admission.decode(header, row, frame, LOOP_ELEMENTS)
        except MalformedMessage:
            return None  # or it is malformed, which the thread will find

    @staticmethod
    def decode(header: RequestHeader, row: SupportedApi, frame: memoryview, max_elements: int = MAX_ELEMENTS) -> Struct:
        """Return the request. It refers to the bytes of the frame."""
        request = header.api.request.decode(frame, header.version, header.position, max_elements)
        if row.merge is not None:
            row.merge(request)
        return request

    def needs_catalog(self, row: SupportedApi, version: int, request: Struct) -> bool:
        """Return whether the request has to wait until the catalog has been read."""
        topics = self._broker.topics
        if topics.is_fresh:
            return False
        if self._broker.authorizer is not None:  # what has changed may be the rights of this client
            return True
        needs = row.needs_catalog
        if needs if isinstance(needs, bool) else needs(self._broker, version, request):
            return True
        topics.refresh_soon()
        return False
