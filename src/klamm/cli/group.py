"""`klamm group`: who reads what, how far behind, and moving a group to where it should stand."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from klamm.cli.output import confirm, count_of, fact, facts, is_terminal
from klamm.cli.records import parse_time
from klamm.cli.stores import PartitionOption, StoreOption, opened, some_groups, some_topics
from klamm.errors import InvalidSetting, UnknownGroup
from klamm.store.names import nearest

__all__ = ["app"]

app = typer.Typer(name="group", help="Groups: list, show, reset, delete.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=some_groups)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_groups(store: StoreOption = None) -> None:
    """All groups, and how far they are behind."""
    with opened(store, looks=True) as events:
        rows = []
        for name in events.groups():
            found = events.group(name)
            topics = sorted({each.topic for each in found.offsets})
            rows.append(
                {
                    "group": name,
                    "state": found.state,
                    "door": found.door,
                    "members": len(found.members),
                    "topics": topics,
                    "lag": found.lag,
                }
            )
        facts(rows, empty="no groups yet: consumers with group=… make them")


@app.command()
def show(group: Name, store: StoreOption = None) -> None:
    """A group: its members, and where it stands in each partition."""
    with opened(store, looks=True) as events:
        found = events.group(group)
        members = [
            {"member": each.name or each.id, "partitions": [f"{topic}/{n}" for topic, n in each.assignment]}
            for each in found.members
        ]
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
        if not is_terminal():
            fact({**about, "members": members, "offsets": rows})
            return
        fact(about)
        if members:
            facts(members)
        facts(rows, empty="it has committed nothing yet")


def _target(
    earliest: bool, latest: bool, offset: int | None, time: str | None, by: int | None, like: str | None
) -> Any:
    chosen: list[Any] = []
    if earliest:
        chosen.append("earliest")
    if latest:
        chosen.append("latest")
    if offset is not None:
        chosen.append(offset)
    if time is not None:
        chosen.append(parse_time(time, "--to-time"))
    if by is not None:
        chosen.append(("by", by))
    if like is not None:
        chosen.append(("group", like))
    if len(chosen) != 1:
        raise InvalidSetting(
            "group reset: where to?",
            hint="give one of --to-earliest, --to-latest, --to-offset, --to-time, --by and --like",
        )
    return chosen[0]


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
            help="Only in this one; may be repeated. [default: all it has]",
            autocompletion=some_topics,
        ),
    ] = None,
    partition: PartitionOption = None,
    earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    latest: Annotated[bool, typer.Option("--to-latest", help="Past the last record.")] = False,
    offset: Annotated[int | None, typer.Option("--to-offset", metavar="OFFSET", help="To an offset.", min=0)] = None,
    time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help="To the first record since: 2h, 2026-11-15T10:00."),
    ] = None,
    by: Annotated[int | None, typer.Option(metavar="N", help="Ahead by N, or back by -N.")] = None,
    like: Annotated[
        str | None, typer.Option(metavar="GROUP", help="To where another group stands.", autocompletion=some_groups)
    ] = None,
    yes: Yes = False,
) -> None:
    """Move a group that has no members. Shows the plan first."""
    to = _target(earliest, latest, offset, time, by, like)
    with opened(store) as events:
        topics: Any = topic
        if partition is not None:
            if not topic or len(topic) != 1:
                raise InvalidSetting(
                    "--partition needs one --topic", hint="say -t TOPIC; each has a partition of that number"
                )
            topics = {topic[0]: [partition]}
        try:
            plan = events.plan_reset(group, topics, to=to)
        except UnknownGroup as error:
            error.hint = nearest(group, events.groups()) or error.hint
            raise
        if not plan:
            raise UnknownGroup(
                f"group {group!r}: has no offsets that could be moved so",
                hint="name topics by -t, and where to: --to-earliest, --to-latest, --to-offset or --to-time",
            )
        rows = [
            {"topic": each.topic, "partition": each.partition, "before": each.before, "after": each.after}
            for each in plan
        ]
        moves = [each for each in plan if each.before != each.after]
        if not moves:
            typer.echo("nothing to do: it stands there", err=True)
            facts(rows)
            return
        if not yes:
            lines = "\n".join(
                f"  {each.topic}/{each.partition}: {'–' if each.before is None else each.before} → {each.after}"
                for each in moves
            )
            confirm(f"{group} is moved in {count_of(len(moves), 'partition')}:\n{lines}", yes=False)
        events.reset_offsets(plan)
        facts(rows)


@app.command()
def delete(group: Name, store: StoreOption = None, yes: Yes = False) -> None:
    """Forget a group that has no members, and where it stands."""
    with opened(store) as events:
        found = events.group(group)
        confirm(
            f"The group {group} is forgotten, with its offsets in {count_of(len(found.offsets), 'partition')}", yes=yes
        )
        events.delete_group(group)
        typer.echo(f"deleted {group}", err=True) if is_terminal() else fact({"group": group, "deleted": True})
