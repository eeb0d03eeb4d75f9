"""`klamm tail`: the last records of a topic, those since a time or from an offset on, or what is new to a group."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.output import is_terminal, moment
from klamm.cli.records import Filter, Format, as_json, parse_time, text
from klamm.cli.stores import StoreOption, opened
from klamm.errors import InvalidSetting

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.batch import Record
    from klamm.client.consumer import Consumer

__all__ = ["tail"]


def tail(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
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
        str | None, typer.Option(metavar="TIME", help="From that time on: 15m, 2h, 3d ago, or 2026-11-15T10:00.")
    ] = None,
    offset: Annotated[int | None, typer.Option(metavar="OFFSET", help="From that offset on.", min=0)] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="From where the group stands; it moves as records are printed.")
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
    with opened(store) as events:
        found = _records(events, topic, n, since, offset, group, partition, follow, wanted)
        left = count
        try:
            for record in found:
                typer.echo(show(record), nl=False)
                left = left and left - 1
                if left == 0:
                    break
        except KeyboardInterrupt:
            if not follow:
                raise
        except BrokenPipeError:  # whoever reads us has seen enough
            _silence()
        finally:
            found.close()


def _silence() -> None:
    """Let nobody complain at exit that what is buffered cannot be written."""
    import os
    import sys

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shown(form: str | None) -> Callable[[Record], str]:
    if form is not None:
        return Format(form).fill
    if not is_terminal():
        return lambda record: json.dumps(as_json(record), ensure_ascii=False) + "\n"

    def line(record: Record) -> str:
        place = typer.style(f"{record.partition}/{record.offset}".rjust(10), dim=True)
        key = "" if record.key is None else typer.style(text(record.key), fg="cyan") + "  "
        value = typer.style("tombstone", dim=True) if record.value is None else text(record.value)
        return f"{moment(record.timestamp)} {place}  {key}{value}\n"

    return line


def _records(
    store: Store,
    topic: str,
    n: int | None,
    since: str | None,
    offset: int | None,
    group: str | None,
    partitions: list[int] | None,
    follow: bool,
    wanted: Filter,
) -> Generator[Any, None, None]:
    wait_ms = None if follow else 0
    if group is not None:
        if partitions is not None:
            raise InvalidSetting("--group and --partition exclude each other", hint="a group shares out partitions")
        with store.consumer(topic, group=group, wait_ms=wait_ms) as consumer:
            yield from _committed(consumer, wanted)
        return
    start: Any = offset
    if since is not None:
        start = parse_time(since, "--since")
    if start is None:
        with store.consumer(topic, start="latest", partitions=partitions, wait_ms=wait_ms) as consumer:
            yield from _last(store, topic, partitions, 10 if n is None else n, consumer, wanted)
            if follow:
                yield from filter(wanted, consumer)
        return
    with store.consumer(topic, start=start, partitions=partitions, wait_ms=wait_ms) as consumer:
        yield from filter(wanted, consumer)


def _committed(consumer: Consumer, wanted: Filter) -> Iterator[Any]:
    """Each batch is the group's once all of it was printed."""
    for batch in consumer.batches():
        yield from filter(wanted, batch)
        consumer.commit(batch)


def _last(
    store: Store, topic: str, partitions: list[int] | None, n: int, consumer: Consumer, wanted: Filter
) -> list[Any]:
    """The last `n` that are wanted, looking further and further back."""
    from klamm.client.tail import last_records

    ends, reach = consumer.positions(), n
    most = sum(each.count for each in store.topic(topic).partitions if partitions is None or each.number in partitions)
    while True:
        last = last_records(store._acquired(), ends, reach, None, None)
        found = [record for record in last if wanted(record)]
        if len(found) >= n or wanted.takes_all or reach >= most:
            return found[max(0, len(found) - n) :]
        reach = min(reach * 8, most)
