"""The options of writing with format("klamm"), as text in and as values out.

    path              the store's directory, or klamm://host:9092; save(path) says it, too
    server            host:9092, in the place of path; with it how to log in: server/address.py
    transaction.timeout.ms  at a server, how long a task's transaction may be open until the driver decides; 15 minutes
    topic             the topic of all rows; overrides a column `topic`. A table that reads one topic writes to it
    columns           which columns of the DataFrame are written, with commas between them; the others are passed over
    compression       none (default), gzip, snappy, lz4, zstd
    compressionLevel  as the codec counts it
    acks              all (default): on disk, it survives the machine; 1: it survives any process
    includeHeaders    true (default): a column `headers` is written, if there is one; false: it is passed over
    keepTimestamps    true: records have the time in the column `timestamp`, not the time of the write
    txnAppId          a name for the job, and                         both: a write that is repeated is done once;
    txnVersion        the number of its write; numbers only grow      for batch writes, foreachBatch above all
    checkpointLocation  of the query, as Spark needs it; in foreachBatch klamm.spark.write finds it, others may give it:
                      with it, a batch is known by what was planned, not by its records (batches.py)
    onConflict        fail (default) or skip: a write under a number that is in the log, with other records

Names are spelled as Spark's Kafka sink and Delta Lake spell them, and like all of Spark's in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from klamm.client.produce.target import codec_of
from klamm.errors import InvalidSetting
from klamm.spark.option_names import SINK_OPTIONS, SOURCE_OPTIONS, TRANSACTION_TIMEOUT, check_names, is_table
from klamm.spark.options import boolean, choice, store_of, whole_number
from klamm.spark.server.address import ServerAddress
from klamm.store.groups import checked_name

__all__ = ["WriteOptions"]

_TIMEOUT_MS = 900_000  # the longest that servers grant by default


@dataclass(frozen=True)
class WriteOptions:
    """The options of a sink."""

    path: str
    """The store's directory, or how errors call the server."""
    server: ServerAddress | None
    """The server; None: the store's files are written."""
    transaction_timeout_ms: int
    """Of a task's transaction at a server."""
    topic: str | None
    columns: tuple[str, ...] | None
    codec: int
    level: int | None
    durable: bool
    headers: bool
    """Whether a column `headers` is written."""
    keep_timestamps: bool
    app: tuple[str, int] | None
    """Name and number of a write that is to be done once."""
    checkpoint: str | None
    """Of the query that the write belongs to, as it was given."""
    is_insert: bool
    """Whether it is a table of a catalog that is written to."""
    may_differ: bool
    """Whether a batch that is in the log with other records is skipped."""

    @staticmethod
    def parse(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        options = check_names(given, SINK_OPTIONS, other=SOURCE_OPTIONS)
        topic = options.get("topic", _topic_of_table(given))
        if topic is not None and not topic.strip():
            raise InvalidSetting("topic: is empty", hint="name one, or leave the option out and have a column topic")
        level = _level(options)
        path, server = store_of(options)
        timeout_ms = whole_number(options, TRANSACTION_TIMEOUT)
        if server is None and timeout_ms is not None:
            raise InvalidSetting(f"{TRANSACTION_TIMEOUT}: is for a server", hint="leave it out")
        if timeout_ms is not None and timeout_ms >= 1 << 31:
            raise InvalidSetting(
                f"{TRANSACTION_TIMEOUT}: {timeout_ms} is invalid", hint="expected less than 2147483648"
            )
        durable = _durable(options)
        if server is not None and not durable:
            raise InvalidSetting(
                "acks: 1 is for a directory", hint="leave it out: a server syncs whatever it commits of a transaction"
            )
        return WriteOptions(
            path=path,
            server=server,
            transaction_timeout_ms=timeout_ms or _TIMEOUT_MS,
            topic=None if topic is None else topic.strip(),
            columns=_columns(options),
            codec=codec_of(options.get("compression", "none").strip().lower(), level),
            level=level,
            durable=durable,
            headers=boolean(options, "includeHeaders", default=True),
            keep_timestamps=boolean(options, "keepTimestamps", default=False),
            app=_app(options, streaming=streaming),
            checkpoint=options.get("checkpointLocation"),
            is_insert=is_table(given),
            may_differ=choice(options, "onConflict", ("fail", "skip")) == "skip",
        )


def _topic_of_table(given: Mapping[str, str]) -> str | None:
    """Return the one topic that a table reads: that is where its rows go, too."""
    subscribed = {name.lower(): value for name, value in given.items()}.get("subscribe", "")
    return subscribed if is_table(given) and subscribed.strip() and "," not in subscribed else None


def _level(options: Mapping[str, str]) -> int | None:
    text = options.get("compressionLevel")
    try:
        return None if text is None else int(text)
    except ValueError:
        raise InvalidSetting(f"compressionLevel: {text!r} is invalid", hint="expected a whole number") from None


def _columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    text = options.get("columns")
    return None if text is None else tuple(name.strip().lower() for name in text.split(",") if name.strip())


def _durable(options: Mapping[str, str]) -> bool:
    acks = options.get("acks", "all").strip().lower()
    if acks not in ("all", "-1", "1"):
        raise InvalidSetting(
            f"acks: {options['acks']!r} is invalid",
            hint="expected all (it survives the machine) or 1 (it survives any process); Spark waits for a response",
        )
    return acks != "1"


def _app(options: Mapping[str, str], *, streaming: bool) -> tuple[str, int] | None:
    version = whole_number(options, "txnVersion", least=0)
    name = options.get("txnAppId")
    if name is None and version is None:
        return None
    if name is None or version is None:
        raise InvalidSetting("txnAppId and txnVersion belong together", hint="give both, or neither")
    if streaming:
        raise InvalidSetting(
            "txnAppId: is for batch writes only", hint="leave it out: a streaming query writes each batch once anyway"
        )
    return checked_name(name, "txnAppId"), version
