"""`klamm topic`: make topics, look at them, change and empty them, delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.output import Output, OutputOption, confirm, count_of, moment, size, size_of, span_of
from klamm.cli.pairs import split_pair
from klamm.cli.stores import (
    FromOption,
    PartitionOption,
    StoreOption,
    TopicArgument,
    check_directory,
    core_of,
    opened,
)
from klamm.errors import InvalidSetting, UnknownTopic
from klamm.store.settings import Settings
from klamm.where import Where, fixed, offset_in

if TYPE_CHECKING:
    from klamm.console.pages.frame import Page
    from klamm.types import Cut, TopicInfo

__all__ = ["app", "topic_row"]

app = typer.Typer(
    name="topic", help="Topics: create, list, show, schema, heat, set, purge, delete.", no_args_is_help=True
)

_SHADES = "·▁▂▃▄▅▆▇█"

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def settings_of(pairs: list[str]) -> dict[str, str]:
    split = (split_pair(pair, pair, "expected name=value, such as retention.ms=3600000") for pair in pairs)
    return {name.strip(): value.strip() for name, value in split}


@app.command()
def create(
    topic: TopicArgument,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]…", help="Settings: retention.ms=3600000")
    ] = None,
    store: StoreOption = None,
    partitions: Annotated[
        int, typer.Option("-p", "--partitions", metavar="N", help="Number of partitions.", min=1)
    ] = 1,
    *,
    out: OutputOption,
) -> None:
    """Make a topic; the store too, if it is not there."""
    from klamm.store.names import validate
    from klamm.store.settings import Settings

    chosen = settings_of(settings or [])
    validate(topic)  # before a store is created for nothing
    Settings.of(chosen)
    with opened(store, create=True) as events:
        made = events.topics.create(topic, partitions, chosen).info()
        out.report(f"{made.name}: {count_of(len(made.partitions), 'partition')}, in {events.path}", topic_row(made))


@app.command("list")
def list_topics(store: StoreOption = None, *, out: OutputOption) -> None:
    """List all topics."""
    with opened(store, looks=True) as events:
        rows = [topic_row(events.topics.describe(name)) for name in events.topics]
    out.print_rows(rows, empty="no topics yet: klamm topic create NAME")


def topic_row(topic: TopicInfo) -> dict[str, Any]:
    """Return a topic as a row."""
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "offsets": topic.count,
        "size": size(topic.size),
        "settings": dict(topic.settings),
    }


@app.command()
def show(
    topic: TopicArgument,
    store: StoreOption = None,
    with_all: Annotated[
        bool, typer.Option("--all", help="Also all settings, with those that were not set, and the segments.")
    ] = False,
    *,
    out: OutputOption,
) -> None:
    """Show a topic: its partitions, and what was set."""
    if with_all:
        _show_all(topic, store, out)
        return
    with opened(store, looks=True) as events:
        found = events.topics.describe(topic)
        rows = [
            {
                "partition": each.number,
                "start": each.start,
                "end": each.end,
                "size": size(each.size),
                "leader_epoch": each.leader_epoch,
            }
            for each in found.partitions
        ]
        about = {
            "topic": found.name,
            "id": found.id,
            "created": moment(found.created_ms) if found.created_ms else None,  # a cluster does not tell
            "settings": dict(found.settings),
            "keeps": _retention(Settings.of(found.settings)),
            "cut_off": _cut_off(events[topic].cuts()),
        }
    if out.is_table:
        out.print_object(about)
        out.print_rows(rows)
    else:
        out.print_object({**about, "partitions": rows})


def _show_all(topic: str, store: str | None, out: Output) -> None:
    from klamm.console.pages.topic import ABOUT

    about = _view(ABOUT, topic, store, "topic show --all")
    if not out.is_table:
        out.print_object(about)
        return
    out.print_object({"topic": about["topic"], "id": about["id"], "created": moment(about["created_ms"])})
    out.print_rows(
        [{**row, "size": size(row["size"]), "segments": len(row["segments"])} for row in about["partitions"]]
    )
    out.print_rows(
        [{"setting": name, "value": value, "set": name in about["set"]} for name, value in about["settings"].items()]
    )
    out.print_rows(
        [
            {
                "partition": row["partition"],
                "segment": f"{part['base_offset']:020}.log",
                "size": size(part["size"]),
                "written": None if part["written_ms"] is None else moment(part["written_ms"]),
            }
            for row in about["partitions"]
            for part in row["segments"]
        ]
    )


def _view(page: Page, topic: str, store: str | None, command: str, **query: object) -> dict[str, Any]:
    """Return what a view of the console shows of a topic."""
    from klamm.cli.views import console_of, read_view

    check_directory(store, command)
    with opened(store, looks=True) as events:
        return read_view(console_of(events, store), page, {"topic": topic}, **query)


@app.command()
def schema(
    topic: TopicArgument,
    store: StoreOption = None,
    start: FromOption = None,
    n: Annotated[
        int | None, typer.Option("-n", metavar="N", help="Look at N records, at most 10,000. [default: the last 1,000]")
    ] = None,
    *,
    out: OutputOption,
) -> None:
    """Infer the fields of a topic's JSON values, and where they have changed."""
    from klamm.console.pages.schema import SCHEMA

    begin = None if start is None else str(Where(start, name="--from"))
    found = _view(SCHEMA, topic, store, "topic schema", **{"from": begin, "n": n})
    if not out.is_table:
        out.print_object(found)
        return
    rows = [
        {
            "field": row["path"],
            "types": row["types"],
            "in": f"{row['share']:.0%}",
            "for_example": row["examples"],
            "drift": f"{row['drift']} from {row['drift_at']}" if row["drift_at"] else row["drift"],
        }
        for row in found.pop("fields")
    ]
    out.print_object(found)
    out.print_rows(rows, empty="no JSON among these records")


@app.command()
def heat(topic: TopicArgument, store: StoreOption = None, *, out: OutputOption) -> None:
    """Count a topic's records by partition and time, and by key and partition."""
    from klamm.console.pages.heat_map import HEAT_MAP

    found = _view(HEAT_MAP, topic, store, "topic heat")
    if not out.is_table:
        out.print_object(found)
        return
    edges, rows = found["edges_ms"], found["partitions"]
    most = max((count for row in rows for count in row["records"]), default=0)
    about: dict[str, Any] = {"topic": found["topic"], "from": None, "to": None}
    if edges:
        about |= {"from": moment(edges[0]), "to": moment(edges[-1])}
    out.print_object({**about, "partitions_left_out": found["partitions_left_out"]})
    out.print_rows(
        [
            {
                "partition": row["partition"],
                "records": sum(row["records"]),
                "over_time": "".join(_SHADES[_shade(count, most)] for count in row["records"]),
            }
            for row in rows
        ]
    )
    sample = found["sample"]
    out.print_rows(
        [
            {
                "key": row["key"],
                "records": row["records"],
                "share": f"{row['records'] / sample:.1%}",
                "by_partition": row["by_partition"],
            }
            for row in found["keys"]
        ],
        empty="no records",
    )


def _shade(count: int, most: int) -> int:
    return 0 if not count else max(1, round(count / most * (len(_SHADES) - 1)))


def _cut_off(cuts: list[Cut]) -> str | None:
    """Say that recovery or repair cut something off a log of the topic."""
    if not cuts:
        return None
    size = size_of(sum(cut.size for cut in cuts))
    return f"{size} in {count_of(len(cuts), 'file')}: klamm salvage prints the records"


def _retention(settings: Settings) -> str:
    """Describe what expires by itself; users who set nothing want to know, too."""
    if "delete" not in settings.cleanup_policy:
        return "the latest record of each key"
    parts = []
    if settings.retention_ms >= 0:
        parts.append(f"records for {span_of(settings.retention_ms)}")
    if settings.retention_bytes >= 0:
        parts.append(f"at most {size_of(settings.retention_bytes)} a partition")
    if "compact" in settings.cleanup_policy:
        parts.append("of each key the latest only")
    return ", ".join(parts) or "everything"


@app.command("set")
def set_settings(
    topic: TopicArgument,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]…", help="Settings: retention.ms=3600000")
    ] = None,
    store: StoreOption = None,
    reset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Setting to reset to its default; may be repeated.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(metavar="N", help="New number of partitions; it can only grow.", min=1)
    ] = None,
    *,
    out: OutputOption,
) -> None:
    """Change settings of a topic, or how many partitions it has."""
    if not settings and not reset and partitions is None:
        raise InvalidSetting("topic set: nothing to set", hint="expected name=value, --reset name or --partitions n")
    with opened(store) as events:
        if settings or reset:
            events.topics.alter(topic, settings_of(settings or []), reset=reset or ())
        if partitions is not None:
            events.topics.add_partitions(topic, partitions)
        row = topic_row(events.topics.describe(topic))
    out.print_object(row)


@app.command()
def purge(
    topic: TopicArgument,
    store: StoreOption = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="Delete only records before: 3d (ago), 2026-11-15, 4711 (an offset)."),
    ] = None,
    partition: PartitionOption = None,
    yes: Yes = False,
    *,
    out: OutputOption,
) -> None:
    """Delete the records of a topic; the topic stays, and offsets go on."""
    end = Where("latest" if before is None else before, name="--before")
    with opened(store) as events:
        found = [each for each in events.topics.describe(topic).partitions if partition in (None, each.number)]
        if not found:
            count = len(events.topics.describe(topic).partitions)
            raise UnknownTopic(f"{topic}: there is no partition {partition}", hint=f"it has 0 to {count - 1}")
        core = core_of(events)
        end, opened_topic = fixed(end, core.heads.wall_ms()), core.topic(topic)
        moves = []
        for each in found:
            until = offset_in(end, opened_topic.partition(each.number), end=each.end, default=each.start)
            if until > each.start:
                moves.append((each.number, each.start, min(until, each.end)))
        if not moves:
            typer.echo("nothing to delete", err=True)
            return
        plan = "\n".join(f"  {topic}/{number}: offsets {start} to {end - 1}" for number, start, end in moves)
        confirm(f"These would be deleted, for good:\n{plan}", yes=yes)
        starts = events[topic].delete_records({number: end for number, _, end in moves})
    out.print_rows([{"topic": topic, "partition": number, "start": start} for number, start in starts.items()])


@app.command()
def delete(topic: TopicArgument, store: StoreOption = None, yes: Yes = False, *, out: OutputOption) -> None:
    """Delete a topic, with all of its records."""
    with opened(store) as events:
        found = events.topics.describe(topic)
        what = f"{count_of(found.count, 'offset')}, {size_of(found.size)}"
        confirm(f"The topic {topic} would be deleted, for good: {what}", yes=yes)
        events.topics.delete(topic)
    out.report(f"deleted {topic}", {"topic": topic, "deleted": True})
