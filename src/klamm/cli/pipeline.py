"""`klamm pipeline`: what klamm.spark.pipelines does, as commands. Each ends with its report.

Spark is started for the command, on this machine or on the cluster that --master names; --conf passes settings on to
it. Kill it whenever you like: the next run goes on.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.output import Output, OutputOption, Tick, is_terminal, progress
from klamm.cli.stores import StoreOption, opened, path_of
from klamm.errors import InvalidSetting
from klamm.where import Where

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from klamm.spark.pipelines import Report

__all__ = ["app"]

app = typer.Typer(
    name="pipeline",
    help="Pipelines on Spark: archive, compact, aggregate, …",
    no_args_is_help=True,
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
To = Annotated[str, typer.Argument(metavar="TO", help="The topic that it writes; made if it is not there.")]
Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Where Spark runs: local[4], spark://host:7077. [default: here]")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's; may be repeated.")
]
Every = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Go on until Ctrl-C, so often: 10s. [default: what is there, then end]"),
]
Checkpoint = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="How far it has come. [default: in the store, pipelines/…]")
]
Watermark = Annotated[str | None, typer.Option(metavar="DURATION", help="How late a record may be.")]
Batch = Annotated[int | None, typer.Option("--max-offsets", metavar="N", help="Of a micro-batch, at most.", min=1)]
DeadLetters = Annotated[
    str | None, typer.Option("--dead-letters", metavar="TOPIC", help="For what does not fit. [default: TOPIC.dlq]")
]


def _time_ms(text: str) -> int:
    """Return the milliseconds since 1970 of a time, or of how long ago it was."""
    time_ms = Where(text, name="--since").at(time.time_ns() // 1_000_000).time_ms
    if time_ms is None:
        raise InvalidSetting(f"--since: {text!r} is not a time", hint="expected 2h (ago), or 2026-11-15T10:00")
    return time_ms


@contextmanager
def _session(master: str | None, conf: list[str] | None) -> Iterator[SparkSession]:
    settings = {"spark.ui.showConsoleProgress": "false", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    for pair in conf or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("spark."):
            raise InvalidSetting(f"--conf {pair}: does not fit", hint="want --conf spark.executor.memory=2g")
        settings[name] = value
    import klamm.spark

    if is_terminal():
        typer.echo("klamm: starting Spark …", err=True)
    with _aside():
        spark = klamm.spark.session(master=master, **settings)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _aside() -> Iterator[None]:
    """What Spark's processes have to say, from their start on, goes to a file; it is shown if they cannot start."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            said.seek(max(0, said.tell() - 4000))
            os.write(kept, said.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _look(store: str | None, *topics: str) -> str:
    """Where the store is; it and the topics are there, or that is said before Spark is started."""
    with opened(store) as events:
        for topic in topics:
            events.topics.describe(topic)
    return path_of(store)


def _run(
    out: Output,
    what: str,
    master: str | None,
    conf: list[str] | None,
    unit: str,
    pipeline: Callable[[SparkSession, Tick], Report],
) -> None:
    with _session(master, conf) as spark, progress(what, unit) as tick:
        report = pipeline(spark, tick)
    out.print_object(report.to_dict())


@app.command()
def archive(
    topic: Topic,
    to: Annotated[Path, typer.Argument(metavar="FOLDER", help="For the Parquet files; new, or an earlier run's.")],
    store: StoreOption = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="DDL", help="Values are JSON of this schema: 'id INT, total DOUBLE'; infer: find it out."),
    ] = None,
    dead_letters: DeadLetters = None,
    max_offsets: Batch = None,
    file_mib: Annotated[int, typer.Option(metavar="N", help="Small files are merged to about N MiB.", min=1)] = 128,
    every: Every = None,
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """A topic to Parquet files, by date: what is new since the last run."""
    from klamm.spark.pipelines import archive as run

    path = _look(store, topic)
    more = {} if max_offsets is None else {"max_offsets": max_offsets}
    _run(
        out,
        f"archiving {topic}",
        master,
        conf,
        "records",
        lambda spark, tick: run(
            spark,
            path,
            topic,
            to,
            schema=schema,
            dead_letters=dead_letters,
            file_bytes=file_mib << 20,
            every=every,
            progress=tick,
            **more,
        ),
    )


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="What archive wrote.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic; made if it is not there.")],
    store: StoreOption = None,
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """An archive back into a topic: keys, values, headers, timestamps and offsets as they were."""
    from klamm.spark.pipelines import restore as run

    _run(
        out,
        f"restoring {topic}",
        master,
        conf,
        "records",
        lambda spark, tick: run(spark, source, path_of(store), topic, progress=tick),
    )


@app.command()
def compact(
    topic: Topic,
    store: StoreOption = None,
    force: Annotated[bool, typer.Option("--force", help="Worth it or not; closes active segments.")] = False,
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """A large compacted topic: the latest record of each key, as `klamm compact` would leave it."""
    from klamm.spark.pipelines import compact as run

    path = _look(store, topic)
    _run(
        out,
        f"compacting {topic}",
        master,
        conf,
        "bytes",
        lambda spark, tick: run(spark, path, topic, force=force, progress=tick),
    )


@app.command()
def aggregate(
    topic: Topic,
    to: To,
    window: Annotated[str, typer.Option(metavar="DURATION", help="How long a window is: 1m.")],
    watermark: Annotated[str, typer.Option(metavar="DURATION", help="How late a record may be.")],
    store: StoreOption = None,
    slide: Annotated[str | None, typer.Option(metavar="DURATION", help="How often. [default: end to end]")] = None,
    by: Annotated[str, typer.Option(metavar="FIELD", help="key, or a field of JSON: '$.user.id'.")] = "key",
    aggregates: Annotated[
        list[str] | None,
        typer.Option(
            "-a", "--aggregate", metavar="WHAT", help="count, 'sum($.total)', min(…), max(…); may be repeated."
        ),
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The field with a record's time. [default: its timestamp]")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Update results at once, in a compacted topic.")] = False,
    dead_letters: DeadLetters = None,
    max_offsets: Batch = None,
    checkpoint: Checkpoint = None,
    every: Every = None,
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """Counts, sums, minima and maxima over windows of time, into a topic."""
    from klamm.spark.pipelines import aggregate as run

    path = _look(store, topic)
    _run(
        out,
        f"aggregating {topic}",
        master,
        conf,
        "records",
        lambda spark, tick: run(
            spark,
            path,
            topic,
            to,
            window=window,
            slide=slide,
            watermark=watermark,
            by=by,
            aggregates=aggregates or ["count"],
            time=time,
            table=table,
            dead_letters=dead_letters,
            max_offsets=max_offsets,
            checkpoint=checkpoint,
            every=every,
            progress=tick,
        ),
    )


@app.command()
def join(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="A topic.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="Another.")],
    to: To,
    within: Annotated[str, typer.Option(metavar="DURATION", help="How far apart two records may be: 1h.")],
    store: StoreOption = None,
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="key, header:id or '$.id'; twice, if it differs. [default: key]"),
    ] = None,
    how: Annotated[str, typer.Option(metavar="inner|left", help="left: what meets nobody comes, too.")] = "inner",
    watermark: Watermark = None,
    max_offsets: Batch = None,
    checkpoint: Checkpoint = None,
    every: Every = None,
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """Two topics, by key, within a time, into a topic."""
    from klamm.spark.pipelines import join as run

    path = _look(store, left, right)
    if by is not None and len(by) > 2:
        raise InvalidSetting("--by: is given more than twice", hint="once for both topics, or once for each")
    fields: Any = "key" if not by else by[0] if len(by) == 1 else (by[0], by[1])
    _run(
        out,
        f"joining {left} and {right}",
        master,
        conf,
        "records",
        lambda spark, tick: run(
            spark,
            path,
            left,
            right,
            to,
            within=within,
            watermark=watermark,
            by=fields,
            how=how,
            max_offsets=max_offsets,
            checkpoint=checkpoint,
            every=every,
            progress=tick,
        ),
    )


@app.command()
def deduplicate(
    topic: Topic,
    to: To,
    within: Annotated[str, typer.Option(metavar="DURATION", help="How long an id is remembered: 1d.")],
    store: StoreOption = None,
    by: Annotated[str, typer.Option(metavar="FIELD", help="What the id is: key, header:id or '$.id'.")] = "key",
    watermark: Watermark = None,
    dead_letters: DeadLetters = None,
    max_offsets: Batch = None,
    checkpoint: Checkpoint = None,
    every: Every = None,
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """A topic without what was there already, by an id, into a topic."""
    from klamm.spark.pipelines import deduplicate as run

    path = _look(store, topic)
    _run(
        out,
        f"deduplicating {topic}",
        master,
        conf,
        "records",
        lambda spark, tick: run(
            spark,
            path,
            topic,
            to,
            by=by,
            within=within,
            watermark=watermark,
            dead_letters=dead_letters,
            max_offsets=max_offsets,
            checkpoint=checkpoint,
            every=every,
            progress=tick,
        ),
    )


@app.command()
def quality(
    topic: Topic,
    store: StoreOption = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="From that time on: 2h (ago), 2026-11-15.")] = None,
    page: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="A page with plots, too.")] = None,
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """What is in a topic: counts, gaps, duplicate keys, sizes, and how its JSON changes."""
    from klamm.spark.pipelines import quality as run

    path = _look(store, topic)
    start = None if since is None else _time_ms(since)
    with _session(master, conf) as spark, progress(f"reading {topic}", "records") as tick:
        found = run(spark, path, topic, since=start, progress=tick)
    if page is not None:
        page.write_text(found.to_html(), encoding="utf-8")
        typer.echo(f"klamm: {page}", err=True)
    if out.is_table:
        typer.echo(str(found))
    else:
        out.print_object(found.to_dict())
