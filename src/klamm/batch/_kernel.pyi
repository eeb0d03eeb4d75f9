# Types of the native part of batch/; its docstrings are in the .pyx and .pxi files.

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, overload

from typing_extensions import Buffer

from klamm.batch.header import Header
from klamm.batch.partitioner import Partitioner

Headers: TypeAlias = Iterable[tuple[str, Buffer | None]]

RECORDS: Final = 0
TUPLES: Final = 1
VALUES: Final = 2

def crc32c(data: Buffer, value: int = 0) -> int: ...
def crc32c_software(data: Buffer, value: int = 0) -> int: ...
def murmur2(key: Buffer) -> int: ...
def partition_for(key: Buffer, count: int) -> int: ...
def checked_partition(chosen: object, count: int) -> int: ...

class Builder:
    def __init__(self, limit: int) -> None: ...
    @property
    def limit(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    def add(
        self, key: Buffer | None, value: Buffer | None, headers: Headers | None = None, timestamp: int = -1
    ) -> int: ...
    def extend(self, records: Sequence[Sequence[Any]], start: int = 0, timestamp: int = -1) -> int: ...
    def extend_values(self, values: Sequence[Buffer | None], start: int = 0, timestamp: int = -1) -> int: ...
    def seal(
        self,
        codec: int = 0,
        level: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        attributes: int = 0,
    ) -> memoryview: ...
    def clear(self) -> None: ...

def encode_one(
    buffer: bytearray, key: Buffer | None, value: Buffer | None, headers: Headers | None = None, timestamp: int = -1
) -> int: ...

class Record:
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        key: Any,
        value: Any,
        headers: Iterable[tuple[str, bytes | None]] = (),
        leader_epoch: int = -1,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...
    @property
    def leader_epoch(self) -> int: ...

def walk(data: Buffer, position: int = 0) -> list[Header]: ...
def verify(data: Buffer, expected_offset: int, contiguous: bool) -> tuple[int, int]: ...

Load: TypeAlias = Callable[[bytes], Any] | None

@overload
def decode(
    data: Buffer,
    *,
    form: Literal[0] = 0,
    from_offset: int = 0,
    upto: int = ...,
    topic: str = "",
    partition: int = 0,
    key_of: Load = None,
    value_of: Load = None,
) -> list[Record]: ...
@overload
def decode(
    data: Buffer,
    *,
    form: int,
    from_offset: int = 0,
    upto: int = ...,
    topic: str = "",
    partition: int = 0,
    key_of: Load = None,
    value_of: Load = None,
) -> list[Any]: ...

COLUMNS: frozenset[str]

Strings: TypeAlias = tuple[int, Memory | None, Memory, Memory]

class Memory:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Columns:
    def __init__(self, columns: Iterable[str] = ..., *, max_rows: int = ..., max_bytes: int = ...) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def full(self) -> bool: ...
    @property
    def next_offset(self) -> int: ...
    def add(self, data: Buffer, from_offset: int = 0, upto: int = ...) -> int: ...
    def finish(self) -> tuple[int, dict[str, Any]]: ...

class BinaryColumn:
    def __init__(
        self,
        rows: int,
        validity: Buffer | None,
        offsets: Buffer,
        data: Buffer | None,
        *,
        start: int = 0,
        large: bool = False,
    ) -> None: ...
    @property
    def rows(self) -> int: ...

class NumberColumn:
    def __init__(self, rows: int, validity: Buffer | None, values: Buffer, *, start: int = 0) -> None: ...
    @property
    def rows(self) -> int: ...

class HeadersColumn:
    def __init__(
        self,
        rows: int,
        validity: Buffer | None,
        starts: Buffer,
        names: BinaryColumn,
        values: BinaryColumn,
        *,
        start: int = 0,
        large: bool = False,
    ) -> None: ...
    @property
    def rows(self) -> int: ...

def encode_columns(
    builder: Builder,
    start: int,
    stop: int,
    value: BinaryColumn,
    key: BinaryColumn | None = None,
    timestamps: NumberColumn | None = None,
    headers: HeadersColumn | None = None,
    selection: Buffer | None = None,
    timestamp: int = -1,
) -> int: ...
def too_large(
    value: BinaryColumn, key: BinaryColumn | None = None, headers: HeadersColumn | None = None, *, limit: int
) -> int: ...
def partition_rows(
    start: int, stop: int, key: BinaryColumn | None, given: NumberColumn | None, count: int, keyless: int
) -> tuple[memoryview, list[int]]: ...
def partition_records(records: Sequence[Sequence[Any]], count: int, keyless: int) -> list[list[Any]]: ...

class BatchDelivery:
    def __init__(self, topic: str, partition: int) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def done(self) -> bool: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def log_append_time(self) -> int: ...
    @property
    def error(self) -> BaseException | None: ...
    def resolve(self, base_offset: int, log_append_time: int = -1) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...

class Delivery:
    def __init__(self, batch: BatchDelivery, index: int, timestamp: int = -1) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> BaseException | None: ...
    @property
    def offset(self) -> int | None: ...
    def result(self, timeout: float | None = None) -> int | None: ...
    def add_done_callback(self, call: Callable[[Delivery], object]) -> None: ...

class Sending:
    _lanes: dict[str, Lane]
    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Any = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> Delivery: ...

class Lane:
    def __init__(
        self,
        topic: str,
        partitions: int,
        batch_bytes: int,
        limit: int,
        partitioner: Partitioner | None = None,
        key_serializer: Callable[[Any], bytes | None] | None = None,
        value_serializer: Callable[[Any], bytes | None] | None = None,
        *,
        first: int = 0,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def batch_bytes(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def full(self) -> list[tuple[int, Builder, BatchDelivery]]: ...
    @property
    def oldest(self) -> float: ...
    def add(
        self,
        key: Any,
        value: Any,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Delivery: ...
    def drain(self, before: float = ...) -> None: ...
    def take_full(self) -> list[tuple[int, Builder, BatchDelivery]]: ...
    def recycle(self, builder: Builder) -> None: ...
