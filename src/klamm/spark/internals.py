"""Everything that Klamm uses of Spark beyond its public API.

A new Spark may change any of it; each docstring says what happens then. tests/spark/test_internals.py tries each
function on the Spark that is installed, and names the versions that were tried.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "MicroBatch",
    "arrow_schema",
    "checkpoint_of_batch",
    "exit_after_hang_up",
    "freeze_modules",
    "hide_traceback",
    "is_connect",
    "is_worker",
    "micro_batch",
    "not_overridden",
    "own_session",
    "session_of",
]

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_frozen = 0  # modules that were imported when the garbage collector last froze them

# The environment variables by which Spark's Python processes know where to connect, by TCP or by a Unix socket.
_CONNECTS = {f"PYTHON_WORKER_FACTORY_{name}" for name in ("SECRET", "SOCK_PATH", "SOCK_DIR")}


def is_worker() -> bool:
    """Return whether Spark has started this process. With other variables: False, and errors come with tracebacks."""
    return not _CONNECTS.isdisjoint(os.environ)


def hide_traceback() -> None:
    """Make Spark report the error that ends this process by its sentence alone, without a traceback."""
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is a client of Spark Connect: the driver is another process then."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def session_of(writer: Any) -> SparkSession:
    """Return the session of a DataStreamWriter."""
    found: SparkSession = writer._session if hasattr(writer, "_session") else writer._spark
    return found


def own_session(spark: SparkSession) -> SparkSession:
    """Return another session with the settings of this one, so that its own can be changed."""
    if is_connect(spark):
        cloned: SparkSession = spark.cloneSession()  # type: ignore[attr-defined]
        return cloned
    if spark.getActiveSession() is None:
        spark.createDataFrame([], "none INT")  # in a thread without a session, Spark would not find our sink
    own = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if name.startswith("spark.sql.") and spark.conf.isModifiable(name):
            own.conf.set(name, value)
    return own


def checkpoint_of_batch(df: DataFrame) -> str | None:
    """Return the checkpoint of the query whose foreachBatch this is; None outside of one.

    It is None, too, if Spark's internals have changed. Then the sink knows a micro-batch by its records, not by Spark's
    plan of it (checkpoint.py).
    """
    try:
        spark: Any = df.sparkSession
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            return None
        queries = spark._jsparkSession.sharedState().activeStreamingQueries()
        execution = queries.get(spark.sparkContext._jvm.java.util.UUID.fromString(query))
        return None if execution is None else str(execution.resolvedCheckpointRoot())
    except Exception:  # noqa: BLE001  # Spark Connect, or another Spark
        return None


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow types that Spark expects of a Python source, to the letter. Other types fail the query."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # PySpark 4.1: always UTC
        return to_arrow_schema(schema)


class MicroBatch(NamedTuple):
    """A micro-batch of a streaming query."""

    query: str
    number: int
    run: str | None
    """The id of this run of the query; each start has another."""


def micro_batch(task: Any) -> MicroBatch | None:
    """Return what a task, given by its TaskContext, runs for; None if that is not a streaming query.

    Without these properties a streaming sink raises an error: nothing would be written once.
    """
    query = task and task.getLocalProperty("sql.streaming.queryId")
    number = task and task.getLocalProperty("streaming.sql.batchId")
    if query is None or number is None:
        return None
    group = task.getLocalProperty("spark.jobGroup.id") or ""  # Spark's own for a query, unless the program set another
    return MicroBatch(query, int(number), group if _UUID.fullmatch(group) else None)


def freeze_modules() -> None:
    """Exempt the modules that a process of Spark's has imported from garbage collection.

    Spark has it collect after every task: tens of milliseconds with all that Arrow and Spark are made of, twice for
    each partition of a micro-batch. Modules never become garbage; so it is done again only when there are new ones. If
    Spark stops collecting, this does no harm.
    """
    global _frozen
    if _frozen != len(sys.modules) and is_worker():
        _frozen = len(sys.modules)
        gc.collect()
        gc.freeze()


def exit_after_hang_up() -> None:
    """End a process of Spark's whose query was stopped: Spark closes the connection, and a traceback would follow.

    The process finds it closed when it waits for the next request (EOFError) or when it sends a response.
    """
    if is_worker() and isinstance(sys.exc_info()[1], EOFError | BrokenPipeError | ConnectionResetError):
        os._exit(0)


def not_overridden(base: type, method: str) -> Any:
    """Return what `__func__` of a method has to be, for Spark to take it for that of `base`.

    Spark compares a reader's `pushFilters` with that of its base to know whether it is overridden, and if so raises
    unless spark.sql.python.filterPushdown.enabled is set. If the comparison changes, sessions without that setting
    get this error.
    """
    return staticmethod(base.__dict__.get(method, lambda *_: None))
