"""`klamm pipeline`: the functions of klamm.spark.pipelines as commands. Each ends with its report.

Spark is started for the command, on this machine or on the cluster that --master names; --conf passes settings on to
it. `archive` and `quality` process a small topic without Spark, and print that they do. A command may be killed at any
time: the next run continues it. `list`, `show`, `reset` and `retire` are about pipelines that ran before, and need no
Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.output import (
    OnProgress,
    Output,
    OutputOption,
    confirm,
    count_of,
    progress,
    size_of,
)
from klamm.cli.output import since as since_then
from klamm.cli.spark_session import spark_session
from klamm.cli.stores import StoreOption, check_directory, found_path, opened, path_of
from klamm.errors import InvalidSetting
from klamm.where import Where, fixed, time_of

if TYPE_CHECKING:
    from klamm.spark.pipelines import PipelineChange, PipelineInfo, Report

__all__ = ["app"]

app = typer.Typer(
    name="pipeline",
    help="Pipelines on Spark: archive, compact, aggregate, …; list, show, reset and retire them.",
    no_args_is_help=True,
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
To = Annotated[str, typer.Argument(metavar="TO", help="Target topic; created if absent.")]
Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark master: local[4], spark://host:7077. [default: this machine]")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="Setting of Spark; may be repeated.")
]
Every = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Run until Ctrl-C, with this trigger interval: 10s. [default: process what is there, then end]",
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Directory of its progress. [default: pipelines/… in a store's directory]"),
]
Watermark = Annotated[str | None, typer.Option(metavar="DURATION", help="How late a record may be.")]
Batch = Annotated[
    int | None, typer.Option("--max-offsets", metavar="N", help="Maximum number of offsets of a micro-batch.", min=1)
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="auto|spark|local", help="local: in this process, without Spark; auto: local up to 64 MiB of log."
    ),
]
DeadLetters = Annotated[
    str | None,
    typer.Option("--dead-letters", metavar="TOPIC", help="Topic for records that do not fit. [default: TOPIC.dlq]"),
]


def _time_ms(text: str) -> int:
    """Return the milliseconds since 1970 of a time, or of how long ago it was."""
    time_ms = time_of(fixed(Where(text, name="--since"), time.time_ns() // 1_000_000))
    if time_ms is None:
        raise InvalidSetting(f"--since: {text!r} is not a time", hint="expected 2h (ago), or 2026-11-15T10:00")
    return time_ms


def _look(store: str | None, *topics: str) -> str:
    """Return path or address of the store. Raise, before Spark is started, if the store or a topic does not exist."""
    from klamm.spark.pipelines.query_runner import source
    from klamm.spark.pipelines.store_location import is_address

    path = path_of(store)
    if is_address(path):
        source(path, *topics)
        return path
    with opened(store) as events:
        for topic in topics:
            events.topics.describe(topic)
    return path


def _look_with_folder(store: str | None, checkpoint: Path | None, *topics: str) -> str:
    """Like `_look`, for a pipeline that writes to a topic: a store behind a server has no folder for it."""
    from klamm.spark.pipelines.store_location import StoreLocation

    path = _look(store, *topics)
    StoreLocation.of(path).folder("", checkpoint, "--checkpoint")
    return path


def _check_directory(store: str | None) -> None:
    check_directory(store, "pipeline", "run it where the store is, and name its directory")


def _found_path(store: str | None) -> str:
    _check_directory(store)
    return found_path(store)


def _engine(engine: str, needs_spark: str | None, size: int | None) -> bool:
    """Return whether to start Spark, and say which was chosen. `needs_spark`: what cannot be done without; `size`: how
    many bytes there are to read, if that is known.
    """
    from klamm.spark.pipelines.query_runner import LOCAL_BYTES

    if engine not in ("auto", "spark", "local"):
        raise InvalidSetting(f"--engine: {engine!r} is invalid", hint="expected auto, spark or local")
    if engine == "local" and needs_spark is not None:
        raise InvalidSetting(f"{needs_spark}: needs Spark", hint="leave it out, or say --engine spark")
    if engine == "auto":
        chosen = "local" if needs_spark is None and size is not None and size <= LOCAL_BYTES else "spark"
        if needs_spark is not None:
            why = needs_spark
        elif size is None:
            why = "a server does not say how much there is to read"
        else:
            why = f"{size_of(size)} to read, {'more' if size > LOCAL_BYTES else 'not more'} than 64 MiB"
        how = "on Spark" if chosen == "spark" else "without Spark"
        typer.echo(f"klamm: {how}: {why} (--engine chooses)", err=True)
        engine = chosen
    return engine == "spark"


def _given(**options: object) -> str | None:
    """Return the name of the first option that was given."""
    return next((f"--{name}" for name, value in options.items() if value), None)


def _run(
    out: Output,
    what: str,
    master: str | None,
    conf: list[str] | None,
    unit: str,
    pipeline: Callable[[Any, OnProgress], Report],
    *,
    on_spark: bool = True,
) -> None:
    with spark_session(master, conf) if on_spark else nullcontext() as spark, progress(what, unit) as on_progress:
        report = pipeline(spark, on_progress)
    out.print_object(report.to_dict())


@app.command()
def archive(
    topic: Topic,
    to: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER", help="Directory of the Parquet files, or s3://bucket/…; new, or of an earlier run."
        ),
    ],
    store: StoreOption = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="DDL", help="Values are JSON of this schema: 'id INT, total DOUBLE'; infer: derive it."),
    ] = None,
    dead_letters: DeadLetters = None,
    max_offsets: Batch = None,
    file_mib: Annotated[int, typer.Option(metavar="N", help="Merge small files to about N MiB.", min=1)] = 128,
    every: Every = None,
    format: Annotated[  # noqa: A002  # the option's name
        str | None,
        typer.Option(
            metavar="parquet|delta|iceberg", help="delta, iceberg: a table. [default: parquet, or what it was]"
        ),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Iceberg: a catalog of pyiceberg's settings. [default: one in FOLDER]"),
    ] = None,
    table_name: Annotated[
        str | None, typer.Option(metavar="NAMESPACE.NAME", help="Iceberg: the table's name. [default: klamm.TOPIC]")
    ] = None,
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """Archive a topic to Parquet files, by date: what is new since the last run."""
    from klamm.spark.pipelines import archive as run
    from klamm.spark.pipelines.folder_files import files_of
    from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
    from klamm.spark.pipelines.query_runner import bytes_to_read

    path = _look(store, topic)
    known = PipelineDirectory.read(files_of(to))
    typed = schema or (known and known["options"].get("schema"))
    needs_spark = _given(schema=typed, every=every, master=master, conf=conf)
    on_spark = _engine(engine, needs_spark, bytes_to_read(path, topic, to))
    more: dict[str, Any] = {} if max_offsets is None else {"max_offsets": max_offsets}
    _run(
        out,
        f"archiving {topic}",
        master,
        conf,
        "records",
        lambda spark, on_progress: run(
            spark,
            path,
            topic,
            to,
            schema=schema,
            dead_letters=dead_letters,
            file_bytes=file_mib << 20,
            every=every,
            format=format,
            catalog=catalog,
            table_name=table_name,
            progress=on_progress,
            **more,
        ),
        on_spark=on_spark,
    )


@app.command()
def restore(
    source: Annotated[str, typer.Argument(metavar="FOLDER", help="Directory, or s3://bucket/…, that archive wrote.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Target topic; created if absent.")],
    store: StoreOption = None,
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """Restore an archive into a topic: keys, values, headers, timestamps and offsets as they were."""
    _check_directory(store)
    from klamm.spark.pipelines import restore as run

    _run(
        out,
        f"restoring {topic}",
        master,
        conf,
        "records",
        lambda spark, on_progress: run(spark, source, path_of(store), topic, progress=on_progress),
    )


@app.command()
def compact(
    topic: Topic,
    store: StoreOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compact even below min.cleanable.dirty.ratio; rolls active segments.")
    ] = False,
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """Compact a large topic: leave the latest record of each key, as `klamm compact` would."""
    from klamm.spark.pipelines import compact as run

    _check_directory(store)
    path = _look(store, topic)
    _run(
        out,
        f"compacting {topic}",
        master,
        conf,
        "bytes",
        lambda spark, on_progress: run(spark, path, topic, force=force, progress=on_progress),
    )


@app.command()
def aggregate(
    topic: Topic,
    to: To,
    window: Annotated[str, typer.Option(metavar="DURATION", help="Length of a window: 1m.")],
    watermark: Annotated[str, typer.Option(metavar="DURATION", help="How late a record may be.")],
    store: StoreOption = None,
    slide: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Interval between windows. [default: the length of a window]")
    ] = None,
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
    table: Annotated[
        bool, typer.Option("--table", help="Write updates of results at once, to a compacted topic.")
    ] = False,
    dead_letters: DeadLetters = None,
    max_offsets: Batch = None,
    checkpoint: Checkpoint = None,
    every: Every = None,
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """Aggregate a topic into another: counts, sums, minima and maxima over windows of time."""
    from klamm.spark.pipelines import aggregate as run

    path = _look_with_folder(store, checkpoint, topic)
    _run(
        out,
        f"aggregating {topic}",
        master,
        conf,
        "records",
        lambda spark, on_progress: run(
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
            progress=on_progress,
        ),
    )


@app.command()
def join(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="The left topic.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="The right topic.")],
    to: To,
    within: Annotated[str, typer.Option(metavar="DURATION", help="Maximum time between two records: 1h.")],
    store: StoreOption = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Join key: key, header:id or '$.id'; give it twice if the sides differ. [default: key]",
        ),
    ] = None,
    how: Annotated[
        str, typer.Option(metavar="inner|left", help="Join type; left also emits left records without a match.")
    ] = "inner",
    watermark: Watermark = None,
    max_offsets: Batch = None,
    checkpoint: Checkpoint = None,
    every: Every = None,
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """Join records of two topics, by key and within a time, into a third topic."""
    from klamm.spark.pipelines import join as run

    path = _look_with_folder(store, checkpoint, left, right)
    if by is not None and len(by) > 2:
        raise InvalidSetting("--by: is given more than twice", hint="once for both topics, or once for each")
    fields: Any = "key" if not by else by[0] if len(by) == 1 else (by[0], by[1])
    _run(
        out,
        f"joining {left} and {right}",
        master,
        conf,
        "records",
        lambda spark, on_progress: run(
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
            progress=on_progress,
        ),
    )


@app.command()
def deduplicate(
    topic: Topic,
    to: To,
    within: Annotated[str, typer.Option(metavar="DURATION", help="Time for which an id is remembered: 1d.")],
    store: StoreOption = None,
    by: Annotated[str, typer.Option(metavar="FIELD", help="The id: key, header:id or '$.id'.")] = "key",
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
    """Copy a topic into another, without records whose id was seen before."""
    from klamm.spark.pipelines import deduplicate as run

    path = _look_with_folder(store, checkpoint, topic)
    _run(
        out,
        f"deduplicating {topic}",
        master,
        conf,
        "records",
        lambda spark, on_progress: run(
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
            progress=on_progress,
        ),
    )


@app.command()
def quality(
    topic: Topic,
    store: StoreOption = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Start time: 2h (ago), 2026-11-15.")] = None,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML page with plots, too.")
    ] = None,
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
    *,
    out: OutputOption,
) -> None:
    """Report what is in a topic: counts, gaps, duplicate keys, sizes, and how its JSON changes."""
    from klamm.spark.pipelines import quality as run
    from klamm.spark.pipelines.query_runner import bytes_to_read

    path = _look(store, topic)
    start = None if since is None else _time_ms(since)
    on_spark = _engine(engine, _given(master=master, conf=conf), bytes_to_read(path, topic))
    with (
        spark_session(master, conf) if on_spark else nullcontext() as spark,
        progress(f"reading {topic}", "records") as on_progress,
    ):
        found = run(spark, path, topic, since=start, progress=on_progress)
    if page is not None:
        page.write_text(found.to_html(), encoding="utf-8")
        typer.echo(f"klamm: {page}", err=True)
    if out.is_table:
        typer.echo(str(found))
    else:
        out.print_object(found.to_dict())


# ---- what there is, and how to begin again


Name = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline, as `klamm pipeline list` prints it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be removed, without removing it.")]


@app.command("list")
def list_pipelines(store: StoreOption = None, *, out: OutputOption) -> None:
    """List all pipelines of a store: progress, lag, age and last error."""
    from klamm.spark.pipelines import list_pipelines as found

    out.print_rows([_row(each) for each in found(_found_path(store))], empty="no pipelines yet: klamm pipeline --help")


def _row(found: PipelineInfo) -> dict[str, Any]:
    return {
        "name": found.name,
        "pipeline": found.pipeline,
        "topics": found.topics,
        "target": found.target,
        "state": found.state,
        "lag": found.lag,
        "batches": found.batches,
        "last_batch": since_then(found.last_batch_ms),
        "error": found.error,
    }


@app.command()
def show(name: Name, store: StoreOption = None, *, out: OutputOption) -> None:
    """Show a pipeline: its options, its last run, where it is in each partition, and its last micro-batches."""
    from klamm.spark.pipelines import show_pipeline
    from klamm.spark.pipelines.batch_times import batch_times, records_per_s

    found = show_pipeline(_found_path(store), name)
    durations = batch_times(found.directory)
    about = {
        **_row(found),
        "started": since_then(found.started_ms),
        "ended": since_then(found.ended_ms),
        "directory": found.directory,
        "options": dict(found.options),
        "records_per_s": records_per_s(durations),
    }
    if out.is_table:
        out.print_object(about)
        out.print_rows(found.partitions)
        rows = [{"done": since_then(batch.pop("done_ms")), **batch} for batch in durations]
        out.print_rows(rows, empty="no micro-batch is done")
    else:
        out.print_object({**about, "partitions": found.partitions, "durations": durations})


@app.command()
def reset(
    name: Name,
    store: StoreOption = None,
    keep_output: Annotated[
        bool, typer.Option("--keep-output", help="Keep the target topic; the next run repeats its results.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    out: OutputOption,
) -> None:
    """Remove a pipeline's progress and output: the next run begins at the beginning."""
    from klamm.spark.pipelines import reset_pipeline

    _change(out, "reset", partial(reset_pipeline, _found_path(store), name, keep_output=keep_output), dry_run, yes)


@app.command()
def retire(
    name: Name, store: StoreOption = None, dry_run: DryRun = False, yes: Yes = False, *, out: OutputOption
) -> None:
    """Remove a pipeline's progress for good; what it wrote stays."""
    from klamm.spark.pipelines import retire_pipeline

    _change(out, "retired", partial(retire_pipeline, _found_path(store), name), dry_run, yes)


def _change(out: Output, verb: str, change: Callable[..., PipelineChange], dry_run: bool, yes: bool) -> None:
    plan = change(dry_run=True)
    lines = [f"  {path}" for path in plan.removes]
    lines += [f"  the topic {topic}: {count_of(count, 'offset')}" for topic, count in plan.deletes.items()]
    stays = "".join(f"\n  {each}" for each in plan.keeps)
    text = f"{plan.name} would be {verb}. This would be removed, for good:\n" + ("\n".join(lines) or "  nothing")
    text += f"\nThis stays:{stays}" if stays else ""
    if dry_run:
        out.report(text, plan.to_dict())
        return
    confirm(text, yes=yes)
    done = change()
    out.report(f"{verb} {done.name}", done.to_dict())
