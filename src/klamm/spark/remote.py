"""The same DataFrame from a directory, from a server, and from a cluster.

    read(spark, "events/", subscribe="orders")              format("klamm"): the files, no server
    read(spark, "klamm://host:9092", subscribe="orders")    format("klamm"): klamm serve, for workers that do not see
                                                            the files
    read(spark, "kafka://host:9092", subscribe="orders")    format("kafka"): klamm serve, or Apache Kafka, by Spark's
                                                            own connector, which session(kafka=True) brings

How to log in may stand behind klamm://host:9092, as ?security.protocol=…, or among the options.

Options, schema and contents are the same; an option that one of them cannot have is refused there. What differs is what
writing promises: a directory takes each micro-batch once, all or nothing; Spark's Kafka sink may repeat records after a
failure.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from klamm.cluster.address import split_options
from klamm.errors import InvalidSetting, KlammError
from klamm.spark.checkpoint import check_id
from klamm.spark.internals import checkpoint_of_batch
from klamm.spark.server.address import SERVER
from klamm.spark.session import PATH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["read", "read_stream", "write", "write_stream"]

_CLUSTER = re.compile(r"kafka://(?P<hosts>[^/]+)/?")
_OURS = "klamm://"
_LEVELS = ("gzip", "lz4", "zstd")  # codecs that have levels

Path = str | os.PathLike[str] | None


def read(spark: SparkSession, store: Path = None, **options: Any) -> DataFrame:
    """Return the records of topics, as they are now. Options: docs/reference/spark.md, such as subscribe="orders"."""
    return _load(spark, spark.read, store, options, streaming=False)


def read_stream(spark: SparkSession, store: Path = None, **options: Any) -> DataFrame:
    """Return the records of topics, and new ones."""
    return _load(spark, spark.readStream, store, options, streaming=True)


def write(df: DataFrame, store: Path = None, **options: Any) -> None:
    """Append the rows: to a directory all of them or none."""
    wanted, plan = _writing(df, store, options, streaming=False)
    names = {name.lower() for name in plan.options}
    if plan.hosts is None and "txnappid" in names and "checkpointlocation" not in names:
        location = checkpoint_of_batch(df)
        plan.options |= {} if location is None else {"checkpointLocation": location}
    with _explained(plan):
        df.select(*wanted).write.format(plan.format).options(**plan.options).mode("append").save()


def write_stream(df: DataFrame, store: Path = None, **options: Any) -> DataStreamWriter:
    """Return a query that appends the rows; `.start()` starts it. It needs checkpointLocation="…"."""
    wanted, plan = _writing(df, store, options, streaming=True)
    location = {name.lower(): value for name, value in plan.given.items()}.get("checkpointlocation")
    if location is not None:
        check_id(location)
    return df.select(*wanted).writeStream.format(plan.format).options(**plan.options)


class _Destination:
    def __init__(self, spark: Any, store: Path, options: Mapping[str, Any]) -> None:
        self.given = {name: _text(value) for name, value in options.items()}
        server = next((name for name in self.given if name.lower() == SERVER), None)
        if store is None and server is not None:
            store = f"{_OURS}{self.given.pop(server)}"
        found = spark.conf.get(PATH, None) if store is None else os.fspath(store)
        if found is None:
            raise InvalidSetting(
                "no store is named", hint="name it, as in read(spark, 'events/', …), or session('events/')"
            )
        if found.startswith(_OURS):
            found, login = split_options(found)
            self.given = {**login, **self.given}
        self.store: str = found
        cluster = _CLUSTER.fullmatch(found)
        if cluster is None and found.startswith("kafka:"):
            raise InvalidSetting(f"{found}: not an address", hint="expected kafka://host:9092, or several with commas")
        self.hosts = cluster and cluster["hosts"]
        self.format = "kafka" if self.hosts else "klamm"
        self.options: dict[str, str] = {}

    def for_directory(self) -> None:
        self.options = {"path": self.store, **self.given}

    def for_cluster(
        self, known: tuple[str, ...], renamed: Mapping[str, str], refused: Mapping[str, str]
    ) -> dict[str, str]:
        """Set the options as Spark's Kafka connector has them. Return those of ours, for a check as of a directory."""
        from klamm.spark.option_names import check_names

        assert self.hosts is not None
        of_clients = {name: value for name, value in self.given.items() if name.lower().startswith("kafka.")}
        ours = check_names({name: self.given[name] for name in self.given.keys() - of_clients.keys()}, known)
        for name in ours:
            if name in refused:
                raise InvalidSetting(f"{name}: {self.store} cannot do that", hint=refused[name])
        self.options = {renamed.get(name, name): value for name, value in ours.items()}
        self.options |= {"kafka.bootstrap.servers": self.hosts, **of_clients}
        return {"path": "/", **ours}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict | list | tuple) else str(value)


@contextmanager
def _explained(plan: _Destination) -> Iterator[None]:
    """Turn Spark's error for a missing connector into one that says what to do."""
    try:
        yield
    except Exception as error:
        if plan.hosts is None or not re.search(r"data source:? .?kafka\b", str(error), re.IGNORECASE):
            raise
        raise KlammError(
            "this session has no Kafka connector of Spark's", hint="make it with klamm.spark.session(kafka=True)"
        ) from None


def _load(spark: Any, reader: Any, store: Path, options: Mapping[str, Any], *, streaming: bool) -> DataFrame:
    from klamm.spark.option_names import SOURCE_OPTIONS
    from klamm.spark.options import ReadOptions

    plan = _Destination(spark, store, options)
    columns: tuple[str, ...] = ()
    if plan.hosts is None:
        plan.for_directory()
        ReadOptions.parse(plan.options, streaming=streaming)
    else:
        ours = plan.for_cluster(
            SOURCE_OPTIONS,
            {"isolation": "kafka.isolation.level"},
            {
                "path": "leave it out: the address says where",
                "groupId": "a query's progress is in its checkpoint; kafka.group.id is another thing",
            },
        )
        parsed = ReadOptions.parse(ours, streaming=streaming)
        columns = parsed.columns
        plan.options.pop("columns", None)
        plan.options.setdefault("kafka.isolation.level", parsed.isolation)
        plan.options.setdefault("includeHeaders", _text("headers" in columns))
    with _explained(plan):
        found: DataFrame = reader.format(plan.format).options(**plan.options).load()
    return found.select(*columns) if columns else found


def _writing(df: Any, store: Path, options: Mapping[str, Any], *, streaming: bool) -> tuple[list[Any], _Destination]:
    from klamm.spark.option_names import SINK_OPTIONS
    from klamm.spark.sink import check_columns
    from klamm.spark.sink_options import WriteOptions

    plan = _Destination(df.sparkSession, store, options)
    if plan.hosts is None:
        plan.for_directory()
        check_columns(df.schema, WriteOptions.parse(plan.options, streaming=streaming))
        return ["*"], plan
    only = "it is for a directory: Spark's Kafka sink knows neither transactions nor times"
    ours = plan.for_cluster(
        SINK_OPTIONS,
        {"acks": "kafka.acks", "compression": "kafka.compression.type"},
        {
            "path": "leave it out: the address says where",
            "keepTimestamps": only,
            "txnAppId": only,
            "txnVersion": only,
            "onConflict": only,
        },
    )
    parsed = WriteOptions.parse(ours, streaming=streaming)
    plan.options.pop("columns", None)
    level, codec = plan.options.pop("compressionLevel", None), plan.options.get("kafka.compression.type", "none")
    if level is not None and codec.lower() in _LEVELS:
        plan.options.setdefault(f"kafka.compression.{codec.lower()}.level", level)
    columns = check_columns(df.schema, parsed)
    wanted = [
        df[theirs].cast("int").alias(name) if name == "partition" else df[theirs].alias(name)
        for name, theirs in columns.items()
    ]
    return wanted, plan
