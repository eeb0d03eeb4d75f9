"""Read, in a task, a range of a log as Arrow record batches, straight from the segment files.

The store is opened for reading only: no lock is taken and nothing written. A Python worker of Spark's runs many tasks,
so it keeps the store open that it read last, or the connection to its server. Which store and topic it is was planned
by id (planner.py, PLN2), and is checked here; a log that does not reach as far as was planned is an error, never a
shorter result.

Arrow's types are exactly those that Spark expects: times in microseconds; headers are null if a record has none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.arrow.scan import Scan
from klamm.arrow.schema import pyarrow, schema_of
from klamm.errors import KlammError, NotAStore, OffsetOutOfRange, UnknownTopic
from klamm.spark.planner import Range, beyond_end_error, deleted_error
from klamm.spark.server.remote_store import ServerStore
from klamm.store.directory import Core, acquire, release

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.choices import Isolation
    from klamm.log.partition import Partition
    from klamm.spark.server.address import ServerAddress
    from klamm.store.directory import OpenTopic

__all__ = ["Task", "forget_store", "read", "schema_for"]

BATCH_ROWS = 16_384
BATCH_BYTES = 8 << 20

_log = logging.getLogger("klamm.spark")


class Task(NamedTuple):
    """The input of a task."""

    path: str
    store_id: str
    range: Range
    isolation: Isolation
    fail_on_data_loss: bool
    server: ServerAddress | None = None
    """None: the task reads the store's files."""


_kept: tuple[tuple[str, int, int, int], Core] | None = None  # path, process, device and inode of the store read last
_server: tuple[ServerAddress, int, ServerStore] | None = None  # address, process and store of the server asked last


def _connected(server: ServerAddress, task: Task) -> Any:
    """Return the store behind a server, which answers what is asked of a Core here."""
    global _server
    if _server is None or _server[:2] != (server, os.getpid()) or _server[2].closed:
        forget_store()
        _server = server, os.getpid(), ServerStore(server)
    if _server[2].catalog.store_id != task.store_id:
        forget_store()
        raise NotAStore(
            f"{task.path}: serves another store than the one that was planned for",
            hint="every worker has to reach the same server at that address",
        )
    return _server[2]


def _open_core(task: Task, *, force_reload: bool = False) -> Core:
    global _kept
    if task.server is not None:
        core: Core = _connected(task.server, task)
        return core
    try:
        status = os.stat(task.path)
    except OSError as error:
        raise NotAStore(
            f"{task.path}: cannot be read here: {error.strerror}", hint="every worker has to see the store's files"
        ) from None
    key = task.path, os.getpid(), status.st_dev, status.st_ino
    if _kept is not None and (force_reload or _kept[0] != key or _kept[1].closed or not _kept[1].is_in_place()):
        forget_store()
    if _kept is None:
        _kept = key, acquire(task.path, read_only=True, create=False, force_filesystem=False)
    core = _kept[1]
    if core.catalog.store_id != task.store_id:
        raise NotAStore(
            f"{task.path}: is another store than the one that was planned for",
            hint="every worker has to see the same files at that path",
        )
    return core


def forget_store() -> None:
    """Close the store that was read last: for a process that goes on with other things."""
    global _kept, _server
    if _kept is not None:
        old, _kept = _kept, None
        if old[0][1] == os.getpid():
            release(old[1])
    if _server is not None:
        connected, _server = _server, None
        connected[2].close()


def _topic(core: Core, task: Task) -> OpenTopic:
    tp = task.range.tp
    opened = core.topic(tp.topic)
    if opened.topic.id != tp.topic_id:
        raise UnknownTopic(f"{tp.topic}: the topic was deleted and re-created")
    return opened


def _partition(task: Task) -> tuple[OpenTopic, Partition]:
    """Return the log, at least as far as was planned."""
    number = task.range.tp.partition
    opened = _topic(_open_core(task), task)
    if _reach(task, opened.partition(number)) < task.range.end:  # opened before a recovery, perhaps
        opened = _topic(_open_core(task, force_reload=True), task)
    partition = opened.partition(number)
    if _reach(task, partition) < task.range.end:
        raise beyond_end_error(task.range.tp, task.range.end, partition.ends())
    return opened, partition


def _reach(task: Task, partition: Partition) -> int:
    ends = partition.ends()
    return ends.stable if task.isolation == "read_committed" else ends.end


def schema_for(columns: Iterable[str]) -> pa.Schema:
    """Return the schema of these columns as Spark would have it, for `read` without Spark."""
    arrow = pyarrow()
    kinds = {each.name: each.type for each in schema_of(columns)}
    if "timestamp" in kinds:
        kinds["timestamp"] = arrow.timestamp("us", tz="UTC")
    found: pa.Schema = arrow.schema(kinds)
    return found


def read(task: Task, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range in batches of that schema; none is empty."""
    position = task.range.start
    while position < task.range.end:
        partition: Partition | None = None
        try:
            opened, partition = _partition(task)
            for batch in _scan(task, opened, position, schema):
                position = batch.column("offset")[-1].as_py() + 1
                yield _fitted(task, batch, schema)
            return
        except OffsetOutOfRange:
            if partition is None:
                raise  # the log is too short
            ends = partition.ends()
            if ends.start <= position:
                raise
            lost: KlammError = deleted_error(task.range.tp, position, ends)
            position = ends.start
        except UnknownTopic as error:
            lost = UnknownTopic(
                f"data loss: {task.range.tp}: offsets {position} to {task.range.end - 1} are gone; {error.message}",
                hint="failOnDataLoss=false goes on with what is there",
            )
            position = task.range.end
        if task.fail_on_data_loss:
            raise lost
        _log.warning("%s; going on, as failOnDataLoss is false", lost.message)


def _scan(task: Task, opened: OpenTopic, start: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Scan with the column `offset`, whatever the schema says: it shows how far the scan is."""
    number = task.range.tp.partition
    columns: Any = [*schema.names, *(["offset"] if "offset" not in schema.names else [])]
    scan = Scan(
        lambda: opened,
        partitions=number,
        start={number: start},
        end={number: task.range.end},
        columns=columns,
        isolation=task.isolation,
        batch_rows=BATCH_ROWS,
        batch_bytes=BATCH_BYTES,
    )
    return scan.batches()


def _fitted(task: Task, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrow = pyarrow()
    arrays: list[Any] = []
    for field in schema:
        array: Any = batch.column(field.name)
        if field.name == "timestamp":
            try:
                array = array.cast(field.type)
            except arrow.ArrowInvalid:
                raise KlammError(
                    f"{task.range.tp}: a record's timestamp is beyond what Spark can hold",
                    hint="leave the column out, with the option columns",
                ) from None
        elif field.name == "headers":
            array = _headers(array, field.type)
        arrays.append(array)
    made: pa.RecordBatch = arrow.RecordBatch.from_arrays(arrays, schema=schema)
    return made


def _headers(array: Any, kind: Any) -> Any:
    """Return headers, null where a record has none, as Spark's Kafka source has it."""
    from pyarrow import ListArray, StructArray, compute

    functions: Any = compute
    none = functions.equal(functions.list_value_length(array), 0)
    pairs = array.values
    fields = [kind.value_type.field(0), kind.value_type.field(1)]
    made: Any = StructArray.from_arrays([pairs.field(0), pairs.field(1)], fields=fields)
    return ListArray.from_arrays(array.offsets, made, type=kind, mask=none)
