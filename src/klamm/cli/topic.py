"""`klamm topic`: make topics, look at them, change and empty them, delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.output import OutputOption, confirm, count_of, moment, size, size_of, span_of
from klamm.cli.pairs import split_pair
from klamm.cli.stores import PartitionOption, StoreOption, TopicArgument, core_of, opened
from klamm.errors import InvalidSetting, UnknownTopic
from klamm.store.settings import Settings
from klamm.where import Where, fixed, offset_in

if TYPE_CHECKING:
    from klamm.types import Cut, TopicInfo

__all__ = ["app", "topic_row"]

app = typer.Typer(name="topic", help="Topics: create, list, show, set, purge, delete.", no_args_is_help=True)

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
def show(topic: TopicArgument, store: StoreOption = None, *, out: OutputOption) -> None:
    """Show a topic: its partitions, and what was set."""
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
