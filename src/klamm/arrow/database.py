"""DuckDB over topics, for `store.sql`, `klamm sql` and `klamm export --sql`.

    orders           a topic: key, value, topic, partition, offset, timestamp, timestampType, headers
    "my-topic"       a topic whose name needs quotes in SQL; names that differ only by case are refused
    latest.users     the latest record of each key that has a value: a compacted topic as a table
    text(value)      bytes as text, NULL where they are no UTF-8;  text(value) ->> '$.id' looks into JSON

A query runs in a thread of its own. Ctrl-C interrupts that thread, repeatedly until it stops; KeyboardInterrupt is
raised when the query has ended. Raised inside code that DuckDB calls, it would become an error of the topic's stream,
or be lost.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from klamm.arrow.scan import Scan
from klamm.arrow.schema import pyarrow
from klamm.arrow.sql_result import SqlResult
from klamm.disk.threads import DaemonThread
from klamm.errors import CorruptBatch, InvalidSetting, KlammError, NotInstalled
from klamm.store.names import nearest

if TYPE_CHECKING:
    from klamm.store.directory import Core

__all__ = ["Database", "names_of"]

T = TypeVar("T")
OnProgress: TypeAlias = Callable[[int, int], object]
"""Records that were read, and those of the topics in all."""

_NAG_S = 0.05  # DuckDB forgets an interrupt that comes before its query has begun


class _Stopped(Exception):
    """Ctrl-C, in the thread of a query."""


@contextmanager
def _ctrl_c() -> Iterator[Event]:
    """Yield an event that Ctrl-C sets instead of raising KeyboardInterrupt, if it would do so in this thread."""
    pressed = Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield pressed
        return
    signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


class Database:
    """DuckDB, in which topics are tables: all topics (`whole`), or the ones that a query may name."""

    def __init__(self, core: Core, *, whole: bool = False) -> None:
        try:
            import duckdb
        except ImportError:
            raise NotInstalled.package("duckdb", "'klamm[sql]'") from None
        pyarrow()
        self._core, self._whole = core, whole
        self._known: set[str] = set()
        self._reading = _TopicReads()
        self._connection = duckdb.connect()
        self._in_a_thread(self._set_up)

    def _set_up(self) -> None:
        import duckdb

        self._connection.execute("create macro text(data) as try(decode(data))")
        self._connection.execute("create schema latest")
        with suppress(duckdb.Error):  # DuckDB 1.0 has no such setting
            self._connection.execute("set python_enable_replacements = false")  # variables of ours are no tables

    def query(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> SqlResult:
        """Return the rows of a query, or of the last of several; `parameters` are for its `?`, `$1` or `$name`."""

        def run(connection: Any) -> SqlResult:
            found = connection.sql(query, params=parameters)
            if found is None:  # a statement without a result
                return SqlResult(pyarrow().table({}))
            return SqlResult(found.to_arrow_table().rename_columns(names_of(found)))

        return self.ask(query, run)

    def ask(self, query: str, work: Callable[[Any], T], on_progress: OnProgress = lambda done, total: None) -> T:
        """Return the result of `work`, called with a connection for that query. Raise an error of DuckDB as one of
        Klamm's.
        """
        import duckdb

        if not isinstance(query, str):
            raise TypeError(f"a query is a str, not {type(query).__name__}")
        if not query.strip().strip(";"):
            raise InvalidSetting("sql: the query is empty", hint="expected SQL, such as select count(*) from orders")
        self._reading.begin(on_progress)
        try:
            return self._in_a_thread(partial(self._work, query, work))
        except duckdb.Error as error:
            if self._reading.damage:
                raise self._reading.damage.pop().with_traceback(None) from None  # which holds what holds DuckDB
            raise _translated(str(error), self._topics()) from None

    def _topics(self) -> list[str]:
        return [topic.name for topic in self._core.catalog.topics()]

    def _work(self, query: str, work: Callable[[Any], T]) -> T:
        self._register(query)
        return work(self._connection)

    def _in_a_thread(self, work: Callable[[], T]) -> T:
        run = _Run(work)
        with _ctrl_c() as pressed:
            try:
                DaemonThread(run, "klamm-sql")
                while not run.ended.wait(_NAG_S):
                    if pressed.is_set():
                        self._interrupt()
            except BaseException:  # of a signal handler of the user's, at any point
                run.is_cancelled = True
                while run.is_begun and not run.ended.wait(_NAG_S):
                    self._interrupt()
                raise
        if pressed.is_set():
            raise KeyboardInterrupt
        return run.result()

    def _interrupt(self) -> None:
        import duckdb

        self._reading.stopped = True
        with suppress(duckdb.Error):  # it may miss the first interrupt
            self._connection.interrupt()

    def go_on(self) -> None:
        """Raise if Ctrl-C was pressed; `work` calls it regularly."""
        self._reading.go_on()

    def _register(self, query: str) -> None:
        lowered = query.lower()
        whole = self._whole or re.match(r"\s*show\b", lowered)  # show tables
        named = [name for name in self._topics() if whole or name.lower() in lowered]
        alike = [name for name in named if sum(name.lower() == other.lower() for other in named) > 1]
        wanted = [name for name in alike if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query, re.IGNORECASE)]
        if wanted:
            raise InvalidSetting(
                f"sql: {' and '.join(wanted)} differ by case alone, and SQL does not tell them apart",
                hint="ask in Python, which does: duckdb.sql on store.scan",
            )
        for name in named:
            if name not in alike and name not in self._known:
                _create(self._connection, name, _Table(self._core, name, self._reading))
                self._known.add(name)


class _Run(Generic[T]):
    """Work for a thread, and its result. Work that is cancelled before it begins is never done."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self.is_begun = self.is_cancelled = False
        self.ended = Event()

    def __call__(self) -> None:
        self.is_begun = True
        try:
            if not self.is_cancelled:
                self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001  # raised by `result`
            self._error = error
        finally:
            self.ended.set()

    def result(self) -> T:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._results[0]


class _TopicReads:
    """The topics that a query has read, and the damage it met, which DuckDB reports as text only."""

    def __init__(self) -> None:
        self.begin(lambda done, total: None)

    def begin(self, on_progress: OnProgress) -> None:
        self._on_progress, self._done, self._total = on_progress, 0, 0
        self.damage: list[CorruptBatch] = []
        self.stopped = False

    def go_on(self) -> None:
        if self.stopped:
            raise _Stopped

    def watch(self, batches: Iterator[Any], total: int) -> Iterator[Any]:
        self._total += total
        try:
            for batch in batches:
                self.go_on()
                self._done += batch.num_rows
                self._on_progress(self._done, self._total)
                yield batch
        except CorruptBatch as error:
            self.damage.append(error)
            raise


class _Table:
    """A topic as DuckDB reads it: a fresh stream each time."""

    def __init__(self, core: Core, topic: str, reading: _TopicReads) -> None:
        self._core, self._topic, self._reading = core, topic, reading
        self._scan = Scan(lambda: core.topic(topic))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        ends = [partition.ends() for partition in self._core.topic(self._topic).partitions()]
        watched = self._reading.watch(self._scan.batches(), sum(each.end - each.start for each in ends))
        stream: Any = pyarrow().RecordBatchReader.from_batches(self._scan.schema, watched)
        return stream.__arrow_c_stream__(requested_schema)


def _create(connection: Any, name: str, topic: Any) -> None:
    quoted = f'"{name}"'  # no name of a topic has a quote in it
    connection.register(name, topic)
    # The highest offset of a key counts, as in compaction; a key in two partitions (some were added) goes by time.
    connection.execute(
        f"create or replace view latest.{quoted} as select * from (select * from (select * from {quoted} "
        'where key is not null qualify row_number() over (partition by key, "partition" order by "offset" desc) = 1) '
        "qualify row_number() over (partition by key order by timestamp desc) = 1) where value is not null"
    )


def names_of(found: Any) -> list[str]:
    """Return the column names of a result; repeated names get a number."""
    names: list[str] = []
    for column in found.description or ():
        name, number = column[0], 1
        while name in names:
            name, number = f"{column[0]}_{number}", number + 1
        names.append(name)
    return names


def _translated(text: str, topics: Sequence[str]) -> KlammError:
    """Return DuckDB's error as one of Klamm's, in one line: DuckDB marks the position on a second line, and speaks of
    tables.
    """
    if "pytz" in text:
        return NotInstalled(
            "sql: pytz is not installed, and DuckDB needs it for times", name="pytz", hint="pip install 'klamm[sql]'"
        )
    message = " ".join(text.partition("LINE ")[0].split("Did you mean")[0].split())
    missing = re.search(r"Table with name (\S+) does not exist", message)
    if missing is not None:
        there = ", ".join(topics[:10]) or "none"
        return InvalidSetting(
            f"sql: Topic {missing[1]!r} does not exist", hint=nearest(missing[1], topics) or f"there are: {there}"
        )
    quotes = 'words of SQL, and names that are more than letters, go in double quotes: "offset", "my-topic"'
    return InvalidSetting(f"sql: {message}", hint=quotes if message.startswith(("Parser", "Binder")) else None)
