from typing import Any

from typing_extensions import Buffer

from klamm.kafka.wire.structs import Struct

__all__ = ["OrdinaryFetch", "encode", "encode_nothing", "read"]

class OrdinaryFetch:
    version: int
    correlation_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    @property
    def names(self) -> bytes: ...
    def __len__(self) -> int: ...
    def partition(self, number: int) -> tuple[str | bytes, int]: ...
    def wants(self, number: int) -> tuple[int, int, int, int]: ...

def read(frame: Buffer) -> OrdinaryFetch | None: ...
def encode_nothing(version: int, correlation_id: int, session_id: int) -> list[Any]: ...
def encode(version: int, correlation_id: int, response: Struct) -> list[Any] | None: ...
