"""`klamm tail`: the last records of a topic, those since a time or from an offset on, or what is new to a group.

Without --follow it ends where the topic ended when it began, however quickly others append. A group has read what was
printed: with --count that is less than what was fetched, and the next time goes on behind it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from heapq import merge
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from klamm.cli.output import Tick, is_terminal, moment, progress, styled, write
from klamm.cli.records import Filter, Format, parse_time, text
from klamm.cli.stores import StoreOption, TopicArgument, core_of, opened, some_groups
from klamm.client.consume.range_reader import read_ranges
from klamm.client.plain import as_plain
from klamm.client.tail import last_records
from klamm.errors import InvalidSetting, OffsetOutOfRange, UnknownTopic
from klamm.types import TopicPartition

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.batch import Record
    from klamm.types import PartitionInfo

__all__ = ["tail"]

_CHUNK = 5_000
_LOOK_BACK = (1_000, 100_000)  # offsets at a time: at first, and at most


def tail(
    topic: TopicArgument,
    form: Annotated[
        str | None,
        typer.Argument(
            metavar="[FORMAT]",
            help=r"How a record is printed: '%T %k %v\n'. Fields: %t topic, %p partition, %o offset, %T time, %M "
            "milliseconds, %k key, %v value, %h headers, %K %S lengths. Without: a table's line, or JSON in a pipe.",
        ),
    ] = None,
    store: StoreOption = None,
    n: Annotated[int | None, typer.Option("-n", metavar="N", help="The last N. [default: 10]", min=0)] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Then wait for more, until Ctrl-C.")] = False,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From that time on: 15m, 2h, 3d (ago), or 2026-11-15T10:00.")
    ] = None,
    offset: Annotated[int | None, typer.Option(metavar="OFFSET", help="From that offset on.", min=0)] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="From where the group stands; it moves as records are printed.",
            autocompletion=some_groups,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("-p", "--partition", metavar="N", help="Only this one; may be repeated.")
    ] = None,
    count: Annotated[int | None, typer.Option("-c", "--count", metavar="N", help="End after N records.", min=1)] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Only records with this key.")] = None,
    grep: Annotated[str | None, typer.Option(metavar="REGEX", help="Only records whose value matches.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="NAME=VALUE", help="Only records with this header.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Only records whose value is JSON that fits: '$.user.id = 42'."),
    ] = None,
) -> None:
    """Print the last records of a topic, and follow it."""
    if sum(each is not None for each in (n, since, offset, group)) > 1:
        raise InvalidSetting("-n, --since, --offset and --group each say where to start", hint="give one of them")
    show = _shown(form)
    wanted = Filter(key=key, grep=grep, headers=header or (), where=where or ())
    moment_since = None if since is None else parse_time(since, "--since")
    with opened(store, looks=group is None) as events:
        chosen = _chosen(events, topic, partition)
        if group is not None:
            if partition:
                raise InvalidSetting("--group and --partition exclude each other", hint="a group shares out partitions")
            source = _of_group(events, topic, group, follow)
        elif moment_since is not None:
            source = _from(events, topic, chosen, moment_since, follow)
        elif offset is not None:
            source = _from(events, topic, chosen, _clamped(topic, offset, chosen), follow)
        else:
            source = _last(events, topic, chosen, 10 if n is None else n, wanted, follow)
        try:
            with source as (batches, commit), progress("reading", printing=True) as tick:
                printed = _print(batches, commit, show, wanted, count, tick if not follow else None)
            if not printed and not follow and is_terminal():
                typer.echo("no records", err=True)
        except KeyboardInterrupt:
            if not follow:
                raise


# ---- printing


def _print(
    batches: Iterable[Any],
    commit: Callable[[Any], object],
    show: Callable[[Record], bytes],
    wanted: Filter,
    count: int | None,
    tick: Tick | None,
) -> int:
    """How many."""
    printed = read = 0
    for batch in batches:
        if tick is not None:
            tick(read := read + len(batch), None)
        for record in filter(wanted, batch):
            write(show(record))
            printed += 1
            if printed == count:
                sys.stdout.buffer.flush()
                commit(record)
                return printed
        sys.stdout.buffer.flush()
        commit(batch)
    return printed


def _shown(form: str | None) -> Callable[[Record], bytes]:
    if form is not None:
        return Format(form, raw=not is_terminal()).fill
    if not is_terminal():
        return lambda record: json.dumps(as_plain(record), ensure_ascii=False).encode() + b"\n"

    def line(record: Record) -> bytes:
        place = styled(f"{record.partition}/{record.offset}".rjust(8), dim=True)
        key = "" if record.key is None else styled(text(record.key), fg="cyan") + "  "
        value = styled("tombstone", dim=True) if record.value is None else text(record.value)
        headers = "".join(f"  {name}={text(each)}" for name, each in record.headers)
        return f"{moment(record.timestamp)} {place}  {key}{value}{styled(headers, dim=True)}\n".encode()

    return line


# ---- reading


class _Source(NamedTuple):
    batches: Iterable[Any]
    commit: Callable[[Any], object] = lambda _: None


def _chosen(store: Store, topic: str, numbers: list[int] | None) -> list[PartitionInfo]:
    known = store.topic(topic).partitions
    for number in numbers or ():
        if number not in range(len(known)):
            raise UnknownTopic(f"{topic}: there is no partition {number}", hint=f"it has 0 to {len(known) - 1}")
    return [each for each in known if not numbers or each.number in numbers]


def _clamped(topic: str, offset: int, chosen: list[PartitionInfo]) -> dict[int, int]:
    """That offset in each partition; in one that does not reach so far, its end."""
    start, end = min(each.start for each in chosen), max(each.end for each in chosen)
    if offset > end:
        raise OffsetOutOfRange(
            f"{topic}: offset {offset} is not in [{start}, {end})",
            offset=offset,
            start=start,
            end=end,
            hint="klamm topic show tells where each partition starts and ends",
        )
    return {each.number: min(max(offset, each.start), each.end) for each in chosen}


@contextmanager
def _from(store: Store, topic: str, chosen: list[PartitionInfo], start: Any, follow: bool) -> Iterator[_Source]:
    numbers = [each.number for each in chosen]
    with store.consumer(
        topic, start=start, partitions=numbers, wait_ms=None if follow else 0, on_out_of_range="earliest"
    ) as consumer:
        if follow:
            yield _Source(consumer.batches(_CHUNK))
        else:
            begins, ends = consumer.positions(), {each.number: each.end for each in chosen}
            ranges = {name: range(at.offset, ends[name.partition]) for name, at in begins.items()}
            yield _Source(read_ranges(core_of(store), ranges))


@contextmanager
def _of_group(store: Store, topic: str, group: str, follow: bool) -> Iterator[_Source]:
    with store.consumer(topic, group=group, wait_ms=None if follow else 0) as consumer:
        yield _Source(consumer.batches(_CHUNK), consumer.commit)


@contextmanager
def _last(
    store: Store, topic: str, chosen: list[PartitionInfo], n: int, wanted: Filter, follow: bool
) -> Iterator[_Source]:
    """The last `n` that are wanted; with `follow`, then those that come."""
    numbers = [each.number for each in chosen]
    with store.consumer(topic, start="latest", partitions=numbers, wait_ms=None) as consumer:
        if wanted.takes_all:
            last = last_records(core_of(store), consumer.positions(), n, None, None)
        else:
            ends = {number: position.offset for (_, number), position in consumer.positions().items()}
            last = _last_wanted(
                store, topic, {each.number: range(each.start, ends[each.number]) for each in chosen}, n, wanted
            )
        yield _Source(_then(last, consumer.batches(_CHUNK) if follow else ()))


def _then(first: list[Any], others: Iterable[Any]) -> Iterator[Any]:
    yield first
    yield from others


def _last_wanted(store: Store, topic: str, chosen: Mapping[int, range], n: int, wanted: Filter) -> list[Any]:
    """Looks further and further back, and keeps no more than `n` of each partition."""
    found = []
    done, total = 0, sum(map(len, chosen.values()))
    with progress("searching") as tick:
        for number, offsets in chosen.items():
            mine: list[Any] = []
            stop, reach = offsets.stop, max(n, _LOOK_BACK[0])
            while len(mine) < n and stop > offsets.start:
                begin = max(offsets.start, stop - reach)
                part: list[Any] = []
                for batch in read_ranges(core_of(store), {TopicPartition(topic, number): range(begin, stop)}):
                    part = [*part, *filter(wanted, batch)][-n:]
                    tick(done := done + len(batch), total)
                mine = [*part, *mine][-n:]
                stop, reach = begin, min(reach * 4, _LOOK_BACK[1])
            found.append(mine)
    return list(merge(*found, key=lambda record: record.timestamp))[-n:] if n else []
