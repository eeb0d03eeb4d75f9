"""`klamm group`: who reads what, how far behind, and moving a group to where it should stand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.output import OutputOption, confirm, count_of, json_line, moment
from klamm.cli.stores import PartitionOption, StoreOption, check_directory, opened, some_groups, some_topics
from klamm.errors import InvalidRecord, InvalidSetting, UnknownGroup
from klamm.where import Where

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.types import GroupInfo, GroupMember

__all__ = ["app", "group_row"]

app = typer.Typer(name="group", help="Groups: list, show, reset, delete, export, import.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=some_groups)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command("list")
def list_groups(store: StoreOption = None, *, out: OutputOption) -> None:
    """List all groups, and how far they are behind."""
    with opened(store, looks=True) as events:
        rows = [group_row(events.groups.describe(name)) for name in events.groups]
    out.print_rows(rows, empty="no groups yet: consumers with group=… make them")


def group_row(group: GroupInfo) -> dict[str, Any]:
    """Return a group as a row."""
    return {
        "group": group.name,
        "state": group.state,
        "door": group.door,
        "members": len(group.members),
        "topics": sorted({offset.topic for offset in group.offsets}),
        "lag": group.lag,
    }


@app.command()
def show(
    group: Name,
    store: StoreOption = None,
    span: Annotated[
        str | None,
        typer.Option(
            "--history",
            metavar="5m|30m|6h|1d|7d",
            help="Also its lag and its rebalances of so long, as klamm serve or klamm console --record recorded them.",
        ),
    ] = None,
    *,
    out: OutputOption,
) -> None:
    """Show a group: its members, and its offset in each partition."""
    with opened(store, looks=True) as events:
        history = {} if span is None else _history(events, store, group, span)
        found = events.groups.describe(group)
        members = [_member_row(member) for member in found.members]
        rows = [
            {
                "topic": each.topic,
                "partition": each.partition,
                "committed": None if each.committed is None else each.committed.offset,
                "end": each.end,
                "lag": each.lag,
                "lag_ms": each.lag_ms,
            }
            for each in found.offsets
        ]
    about: dict[str, Any] = {"group": found.name, "state": found.state, "door": found.door, "lag": found.lag}
    if not out.is_table:
        out.print_object({**about, "members": members, "offsets": rows, **history})
        return
    out.print_object(about)
    if members:
        out.print_rows(members)
    out.print_rows(rows, empty="it has committed nothing yet")
    for name, points in history.items():
        out.print_rows(
            [
                {"time": moment(point["time_ms"]), **{key: value for key, value in point.items() if key != "time_ms"}}
                for point in points
            ],
            empty=f"{name}: nothing was recorded in this time",
        )


def _history(events: Store, store: str | None, group: str, span: str) -> dict[str, list[dict[str, Any]]]:
    """Return the lag of a group over time, and its rebalances."""
    from klamm.cli.views import console_of, read_view
    from klamm.console.pages.group_history import SPANS
    from klamm.console.pages.groups import GROUP

    check_directory(store, "group show --history")
    if span not in SPANS:
        raise InvalidSetting(f"--history: {span!r} is invalid", hint=f"expected {', '.join(SPANS)}")
    found = read_view(console_of(events, store), GROUP, group=group, span=span)
    return {name: found[name] for name in ("history", "rebalances")}


def _member_row(member: GroupMember) -> dict[str, Any]:
    """Return a member as a row; of a Kafka client, also what it calls itself and where it connects from."""
    client = {} if member.client_id is None else {"client_id": member.client_id, "host": member.host}
    partitions = [f"{topic}/{number}" for topic, number in member.assignment]
    return {"member": member.name or member.id, **client, "partitions": partitions}


@app.command()
def reset(
    group: Name,
    store: StoreOption = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--topic",
            metavar="TOPIC",
            help="Only this topic; may be repeated. [default: all topics of the group]",
            autocompletion=some_topics,
        ),
    ] = None,
    partition: PartitionOption = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="To earliest, latest, 4711 (an offset), 2h (ago), 2026-11-15T10:00, 'last 10'.",
        ),
    ] = None,
    by: Annotated[int | None, typer.Option(metavar="N", help="Move forward by N offsets, or back by -N.")] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="To the committed offsets of another group.", autocompletion=some_groups),
    ] = None,
    yes: Yes = False,
    *,
    out: OutputOption,
) -> None:
    """Move a group that has no members. Shows the plan first."""
    if sum(target is not None for target in (where, by, like)) != 1:
        raise InvalidSetting("group reset: no target given, or several", hint="use one of --to, --by and --like")
    to = None if where is None else Where(where, name="--to")
    with opened(store) as events:
        topics: Any = topic
        if partition is not None:
            if not topic or len(topic) != 1:
                raise InvalidSetting(
                    "--partition needs one --topic", hint="say -t TOPIC; each has a partition of that number"
                )
            topics = {topic[0]: [partition]}
        plan = events.groups.plan_reset(group, topics, to=to, by=by, like=like)
        if not plan:
            raise UnknownGroup(
                f"group {group!r}: has no offsets that could be moved so",
                hint="name topics with -t, and the target with --to",
            )
        rows = [
            {"topic": each.topic, "partition": each.partition, "before": each.before, "after": each.after}
            for each in plan
        ]
        moves = [each for each in plan if each.before != each.after]
        if not moves:
            typer.echo("nothing to do: the group is there already", err=True)
            out.print_rows(rows)
            return
        if not yes:
            lines = "\n".join(
                f"  {each.topic}/{each.partition}: {'–' if each.before is None else each.before} → {each.after}"
                for each in moves
            )
            confirm(f"{group} is moved in {count_of(len(moves), 'partition')}:\n{lines}", yes=False)
        events.groups.apply(plan)
    out.print_rows(rows)


@app.command()
def delete(group: Name, store: StoreOption = None, yes: Yes = False, *, out: OutputOption) -> None:
    """Forget a group that has no members, and where it stands."""
    with opened(store) as events:
        found = events.groups.describe(group)
        confirm(
            f"The group {group} is forgotten, with its offsets in {count_of(len(found.offsets), 'partition')}", yes=yes
        )
        events.groups.delete(group)
    out.report(f"deleted {group}", {"group": group, "deleted": True})


@app.command("export")
def export_group(group: Name, store: StoreOption = None) -> None:
    """Print a group's offsets as JSON, for `klamm group import`, here or in another store."""
    with opened(store, looks=True) as events:
        data = events.groups.export(group)
    typer.echo(json_line(data))


@app.command("import")
def import_group(
    file: Annotated[str, typer.Argument(metavar="FILE", help="File that export wrote; -: stdin.")] = "-",
    store: StoreOption = None,
    name: Annotated[
        str | None, typer.Option("--as", metavar="GROUP", help="Group to write. [default: the same name]")
    ] = None,
    yes: Yes = False,
    *,
    out: OutputOption,
) -> None:
    """Set the offsets of a group without members to those of an export. Asks if it has others."""
    data = _read_export(file)
    with opened(store) as events:
        group = name or str(data.get("group"))
        if group in events.groups:
            count = len(events.groups.describe(group).offsets)
            confirm(f"{group} has offsets in {count_of(count, 'partition')}; those of the export replace them", yes=yes)
        try:
            events.groups.import_(data, name)
        except TypeError as error:  # of what is in the file
            raise _not_an_export(file, str(error)) from None
    count = len(data["offsets"])
    out.report(f"{group}: offsets in {count_of(count, 'partition')}", {"group": group, "offsets": count})


def _read_export(file: str) -> dict[str, Any]:
    try:
        data = json.loads(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    except ValueError as error:
        raise _not_an_export(file, str(error)) from None
    if not isinstance(data, dict):
        raise _not_an_export(file, f"expected an object, not {type(data).__name__}")
    return data


def _not_an_export(file: str, why: str) -> InvalidRecord:
    where = "stdin" if file == "-" else file
    return InvalidRecord(f"{where}: not an export of a group: {why}", hint="expected what klamm group export prints")
