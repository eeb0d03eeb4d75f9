"""APIs and their messages: what is written in `tables`, and functions that are compiled from it.

    FETCH.request.decode(data, version, position)     a struct, with the fields of all versions
    FETCH.response.encode(struct, version)            parts: bytes, and records as they came
    FETCH.response(responses=[FETCH.response.Topic(topic="orders")])

Each version of a message is compiled when it is first used, in about a millisecond. A message that is never used
costs nothing but its text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from klamm.kafka.wire.decoder import MAX_ELEMENTS, make_decoder
from klamm.kafka.wire.encoder import Encoder, StepEncoder, make_encoder, make_step_encoder
from klamm.kafka.wire.errors import UnsupportedVersion
from klamm.kafka.wire.notation import Head, Shape, parse, parse_head
from klamm.kafka.wire.structs import Struct, make

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from klamm.kafka.wire.decoder import Decoder

__all__ = ["Api", "Message"]


class Api:
    """A request and its response, in the versions that we can read and write (not: that a server should offer)."""

    def __init__(self, table: str) -> None:
        head = parse_head(table)
        self.key = head.key
        self.name = head.name
        self.min_version = head.min_version
        self.max_version = head.max_version
        self._flexible_from = head.flexible_from
        self.request = Message(self, "request", head)
        self.response = Message(self, "response", head)

    def knows(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        """Return whether the version has compact lengths and tagged fields (KIP-482)."""
        return version >= self._flexible_from

    def __repr__(self) -> str:
        return f"<Api {self.key} {self.name} {self.min_version}-{self.max_version}>"


class Message:
    """One direction of an API. Its structs are attributes: `METADATA.response.Broker`."""

    def __init__(self, api: Api, kind: str, head: Head) -> None:
        self.api = api
        self.name = f"{api.name} {kind}"
        self._root = f"{api.name}{kind.capitalize()}"
        self._lines = head.request if kind == "request" else head.response
        self._shapes: dict[str, Shape] = {}
        self._classes: dict[str, type[Struct]] = {}
        self._decoders: dict[int, Decoder] = {}
        self._encoders: dict[int, Encoder] = {}
        self._step_encoders: dict[int, StepEncoder] = {}

    def __call__(self, **fields: Any) -> Struct:
        return self.classes[self._root](**fields)

    def __getattr__(self, name: str) -> type[Struct]:
        if name[0].isupper() and name in self.classes:
            return self.classes[name]
        raise AttributeError(f"{self.name} has no {name}")

    @property
    def shape(self) -> Shape:
        """What the table says."""
        if not self._shapes:
            self._shapes = parse(self._root, self._lines)
        return self._shapes[self._root]

    @property
    def classes(self) -> dict[str, type[Struct]]:
        """Its structs by name."""
        if not self._classes:
            assert self.shape
            self._classes = {name: make(shape, self._root) for name, shape in self._shapes.items()}
        return self._classes

    def decode(self, data: Buffer, version: int, position: int = 0, max_elements: int = MAX_ELEMENTS) -> Struct:
        """Decode the message that begins at `position` and ends with the data. Its records are views of the data."""
        decode = self._decoders.get(version) or self.decoder(version)
        return decode(data, position, MAX_ELEMENTS - max_elements)  # type: ignore[no-any-return]

    def encode(self, message: Struct, version: int) -> list[Any]:
        """Encode the message and return its bytes in parts; records are parts of their own, as they were given."""
        return (self._encoders.get(version) or self.encoder(version))(message)

    def encode_in_steps(self, message: Struct, version: int) -> Iterator[list[Any]]:
        """Encode a message, a struct of an array at a time. Yield a list of what is encoded and was not cleared, with
        records as they were given: the user of this clears it as often as it likes.
        """
        if version not in self._step_encoders:
            self._step_encoders[version] = self._made(make_step_encoder, version)
        return self._step_encoders[version](message)

    def decoder(self, version: int) -> Decoder:
        """Return the function behind `decode`."""
        if version not in self._decoders:
            self._decoders[version] = self._made(make_decoder, version)
        return self._decoders[version]

    def encoder(self, version: int) -> Encoder:
        """Return the function behind `encode`."""
        if version not in self._encoders:
            self._encoders[version] = self._made(make_encoder, version)
        return self._encoders[version]

    def _made(self, make_function: Any, version: int) -> Any:
        if not self.api.knows(version):
            raise UnsupportedVersion(f"{self.name} v{version} is unknown", key=self.api.key, version=version)
        label = f"{self.name} v{version}"
        return make_function(label, self.shape, version, self.api.is_flexible(version), self.classes)
