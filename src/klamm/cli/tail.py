"""`klamm tail`: the last records of topics, those from a position on, the last of those, or what is new to a group.

Without --follow it ends where the topics ended when it began, however quickly others append. A group has read what was
printed: with --count that is less than what was fetched, and the next time goes on behind it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from klamm.cli.output import OnProgress, progress, write
from klamm.cli.records import Filter, RecordOutputOption, is_format, parse_headers
from klamm.cli.stores import FromOption, OffsetResetOption, StoreOption, core_of, opened, some_groups, some_topics
from klamm.client.consume.tail import read_history
from klamm.client.subscription import open_partitions
from klamm.errors import InvalidSetting, UnknownTopic
from klamm.types import TopicPartition
from klamm.where import Where

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.batch import Record

__all__ = ["tail"]

_CHUNK = 5_000


def tail(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC…", help="The topics.", autocompletion=some_topics)],
    store: StoreOption = None,
    n: Annotated[
        int | None, typer.Option("-n", metavar="N", help="Only the last N. [default: 10, with --from all]", min=0)
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for more records, until Ctrl-C.")] = False,
    start: FromOption = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Start at the group's committed offset; commit what is printed.",
            autocompletion=some_groups,
        ),
    ] = None,
    auto_offset_reset: OffsetResetOption = None,
    partition: Annotated[
        list[int] | None, typer.Option("-p", "--partition", metavar="N", help="Only this partition; may be repeated.")
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
    *,
    out: RecordOutputOption,
) -> None:
    """Print the last records of topics, and follow them."""
    if group is not None and (n is not None or start is not None or partition):
        raise InvalidSetting(
            "--group starts at its committed offsets, in all partitions", hint="leave out -n, --from and --partition"
        )
    if group is None and auto_offset_reset is not None:
        raise InvalidSetting("--auto-offset-reset goes with --group", hint="--from says where to start without one")
    for name in filter(is_format, topics):
        raise InvalidSetting(f"{name}: is not the name of a topic", hint=f"a format is an option: -o '{name}'")
    topics = list(dict.fromkeys(topics))
    wanted = Filter(key=key, grep=grep, headers=parse_headers(header or ()), where=where or ())
    begin = None if start is None else Where(start, name="--from")
    with opened(store, looks=group is None) as events:
        if group is None:
            source = _of_topics(events, _chosen(events, topics, partition), n, begin, wanted, follow)
        else:
            source = _of_group(events, topics, group, auto_offset_reset, follow)
        show = out.encoder(with_topics=len(topics) > 1)
        try:
            with source as (batches, commit), progress("reading", printing=True) as on_progress:
                printed = _print(batches, commit, show, wanted, count, on_progress if not follow else None)
            if not printed and not follow and out.is_table:
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
    on_progress: OnProgress | None,
) -> int:
    """Print what is wanted, commit what was printed, and return how many records that were."""
    printed = read = 0
    for batch in batches:
        if on_progress is not None:
            on_progress(read := read + len(batch), None)
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


# ---- reading


class _Source(NamedTuple):
    batches: Iterable[Any]
    commit: Callable[[Any], object] = lambda _: None


def _chosen(store: Store, topics: list[str], numbers: list[int] | None) -> list[TopicPartition]:
    """Return the partitions of the topics; of those numbers only, if some are given, which each topic has to have."""
    chosen: list[TopicPartition] = []
    for topic in topics:
        known = range(len(store.topics.describe(topic).partitions))
        for number in numbers or ():
            if number not in known:
                raise UnknownTopic(f"{topic}: there is no partition {number}", hint=f"it has 0 to {len(known) - 1}")
        chosen += [TopicPartition(topic, number) for number in numbers or known]
    return chosen


@contextmanager
def _of_topics(
    store: Store, chosen: list[TopicPartition], n: int | None, start: Where | None, wanted: Filter, follow: bool
) -> Iterator[_Source]:
    """Yield the last `n` records from `start` on that match; with `follow`, then new ones."""
    core = core_of(store)
    is_printed_as_read = n is None and start is not None
    keep = None if wanted.takes_all or is_printed_as_read else wanted
    with progress("searching") as on_progress:
        history = read_history(core, open_partitions(core, chosen), n, start, keep=keep, on_progress=on_progress)
    if not follow:
        yield _Source(history.batches)
        return
    with store.consumer(_numbers(chosen), start=history.ends, auto_offset_reset="earliest") as consumer:
        yield _Source(chain(history.batches, consumer.batches(_CHUNK)))


def _numbers(chosen: list[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of the partitions by topic, as a consumer takes them."""
    numbers: dict[str, list[int]] = {}
    for topic, number in chosen:
        numbers.setdefault(topic, []).append(number)
    return numbers


@contextmanager
def _of_group(store: Store, topics: list[str], group: str, reset: Any, follow: bool) -> Iterator[_Source]:
    wait_s = None if follow else 0
    with store.consumer(topics, group=group, auto_offset_reset=reset, wait=wait_s) as consumer:
        yield _Source(consumer.batches(_CHUNK), consumer.commit)
