"""DuckDB over topics: what `klamm sql` and `klamm export --sql` ask.

A query runs in a thread of its own, and Ctrl-C raises nothing meanwhile: within what DuckDB calls, it would be an error
of the topic's stream, or be lost. The thread is told to stop, again and again, and heard out.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from klamm.cli.output import Tick
from klamm.errors import CorruptBatch, InvalidSetting, KlammError
from klamm.store.names import nearest

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["Database"]

T = TypeVar("T")

_NAG_S = 0.05  # DuckDB forgets an interrupt that comes before its query has begun


class _Stopped(Exception):
    """Ctrl-C, in the thread of a query."""


@contextmanager
def _ctrl_c() -> Iterator[Event]:
    """Set when Ctrl-C is pressed, which raises nothing meanwhile."""
    pressed = Event()
    heard = signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, heard)


class Database:
    """DuckDB, in which topics are tables: all that there are (`whole`), or those that a query may name."""

    def __init__(self, store: Store, *, whole: bool = False) -> None:
        try:
            import duckdb
        except ImportError:
            raise KlammError("duckdb is not installed", hint="pip install 'klamm[sql]'") from None
        self._store, self._whole = store, whole
        self._known: set[str] = set()
        self._reading = _Reading()
        self._connection = duckdb.connect()
        self._connection.execute("create macro text(data) as try(decode(data))")
        self._connection.execute("create schema latest")

    def ask(self, query: str, work: Callable[[Any], T], tick: Tick = lambda done, total: None) -> T:
        """What `work` makes of a connection, for that query. What DuckDB has to say against it is an error of ours."""
        import duckdb

        if not query.strip().strip(";"):
            raise InvalidSetting("sql: there is no query", hint="want one, or stdin with one: klamm sql 'select …'")
        self._reading.begin(tick)
        try:
            return self._in_a_thread(partial(self._work, query, work))
        except duckdb.Error as error:
            if self._reading.damage:
                raise self._reading.damage.pop().with_traceback(None) from None  # which holds what holds DuckDB
            raise _refused(str(error), self._store.topics()) from None

    def _work(self, query: str, work: Callable[[Any], T]) -> T:
        self._register(query)
        return work(self._connection)

    def _in_a_thread(self, work: Callable[[], T]) -> T:
        import duckdb

        with _ctrl_c() as pressed, ThreadPoolExecutor(1) as thread:
            coming = thread.submit(work)
            while not wait([coming], _NAG_S).done:
                if pressed.is_set():
                    self._reading.stopped = True
                    with suppress(duckdb.Error):  # it may be too busy to hear
                        self._connection.interrupt()
        if pressed.is_set():
            raise KeyboardInterrupt
        return coming.result()

    def go_on(self) -> None:
        """Called by `work` now and then: raises if nobody waits for it any more."""
        self._reading.go_on()

    def _register(self, query: str) -> None:
        asked = query.lower()
        whole = self._whole or re.match(r"\s*show\b", asked)  # show tables
        named = [name for name in self._store.topics() if whole or name.lower() in asked]
        alike = [name for name in named if sum(name.lower() == other.lower() for other in named) > 1]
        wanted = [name for name in alike if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query, re.IGNORECASE)]
        if wanted:
            raise InvalidSetting(
                f"sql: {' and '.join(wanted)} differ by case alone, and SQL does not tell them apart",
                hint="ask in Python, which does: duckdb.sql on store.scan",
            )
        for name in named:
            if name not in alike and name not in self._known:
                _create(self._connection, name, _Table(self._store, name, self._reading))
                self._known.add(name)


class _Reading:
    """What a query has read of topics, and the damage it met, of which DuckDB tells in words only."""

    def __init__(self) -> None:
        self.begin(lambda done, total: None)

    def begin(self, tick: Tick) -> None:
        self._tick, self._done, self._total = tick, 0, 0
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
                self._tick(self._done, self._total)
                yield batch
        except CorruptBatch as error:
            self.damage.append(error)
            raise


class _Table:
    """A topic as DuckDB reads it: a fresh stream each time."""

    def __init__(self, store: Store, topic: str, reading: _Reading) -> None:
        self._store, self._topic, self._reading = store, topic, reading
        self._scan = store.scan(topic)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        import pyarrow

        watched = self._reading.watch(self._scan.batches(), self._store.topic(self._topic).count)
        stream: Any = pyarrow.RecordBatchReader.from_batches(self._scan.schema, watched)
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


def _refused(told: str, topics: Sequence[str]) -> KlammError:
    """What DuckDB said, in one line: it points at the place with a line of its own, and knows nothing of topics."""
    if "pytz" in told:
        return KlammError("sql: pytz is not installed, and DuckDB wants it for times", hint="pip install 'klamm[sql]'")
    said = " ".join(told.partition("LINE ")[0].split("Did you mean")[0].split())
    missing = re.search(r"Table with name (\S+) does not exist", said)
    if missing is not None:
        there = ", ".join(topics[:10]) or "none"
        return InvalidSetting(
            f"sql: there is no topic {missing[1]!r}", hint=nearest(missing[1], topics) or f"there are: {there}"
        )
    quotes = 'words of SQL, and names that are more than letters, go in double quotes: "offset", "my-topic"'
    return InvalidSetting(f"sql: {said}", hint=quotes if said.startswith(("Parser", "Binder")) else None)
