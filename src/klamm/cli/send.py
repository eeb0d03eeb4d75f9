"""`klamm send`: records from arguments, lines of stdin, JSON or files. Bytes go in as they come, text or not."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli.interruptible_input import interruptible
from klamm.cli.output import Output, OutputOption, count_of, progress
from klamm.cli.records import parse_headers
from klamm.cli.stores import CreateOption, StoreOption, TopicArgument, opened
from klamm.client.plain import PlainRecord, from_json
from klamm.errors import InvalidRecord, InvalidSetting, KlammError, UnknownTopic

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.batch import Delivery

__all__ = ["provide", "report_sent", "send", "send_all"]


def send(
    topic: TopicArgument,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE]…", help="Values, one record each. [default: one record per line of stdin]"),
    ] = None,
    store: StoreOption = None,
    key: Annotated[str | None, typer.Option("-k", "--key", metavar="KEY", help="The key of every record.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", metavar="N", help="Target partition. [default: by key]", min=0)
    ] = None,
    separator: Annotated[
        str | None, typer.Option("-K", "--separator", metavar="TEXT", help="Separator of key and value in a line.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Lines are JSON: key, value, headers, partition, timestamp, as tail prints.")
    ] = False,
    file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="File whose bytes are one record; may be repeated.")
    ] = None,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", help="Send a record without value: it deletes the key of a compacted topic.")
    ] = False,
    create: CreateOption = False,
    acks: Annotated[
        str, typer.Option(metavar="all|1", help="all: wait until on disk; 1: until visible to readers.")
    ] = "all",
    *,
    out: OutputOption,
) -> None:
    """Append records to a topic."""
    sources = [bool(values), bool(file), tombstone]
    if sum(sources) > 1:
        raise InvalidSetting("values, --file and --tombstone exclude each other", hint="give one of them")
    if any(sources) and (as_json or separator):
        raise InvalidSetting("--json and --separator are for lines of stdin", hint="leave out the values")
    if acks not in ("all", "1"):
        raise InvalidSetting(f"--acks {acks}: invalid", hint="expected all or 1")
    if separator == "":
        raise InvalidSetting("--separator: is empty", hint="expected what lies between key and value, such as :")
    if as_json and separator:
        raise InvalidSetting("--json and --separator exclude each other", hint="JSON says what is the key")
    if separator and key is not None:
        raise InvalidSetting("--key and --separator exclude each other", hint="give one of them")
    if tombstone and key is None:
        raise InvalidSetting("--tombstone needs a --key", hint="it deletes that key's value")
    for path in file or ():
        if not path.exists():
            raise InvalidSetting(f"--file {path}: no such file")
    encoded = None if key is None else os.fsencode(key)
    headers: list[tuple[str, bytes | None]] = [*parse_headers(header or ())]
    given: Iterator[PlainRecord]
    if tombstone:
        given = iter([PlainRecord(encoded, None, headers, partition)])
    elif values:
        given = (PlainRecord(encoded, os.fsencode(value), headers, partition) for value in values)
    elif file:
        given = (PlainRecord(encoded, path.read_bytes(), headers, partition) for path in file)
    else:
        if sys.stdin.isatty():
            typer.echo("klamm: a record a line; Ctrl-D ends", err=True)
        given = _lines(separator, as_json, encoded, headers, partition)
    with provide(store, topic, create=create, command="send") as events, progress("sending") as on_progress:
        sent = send_all(events, topic, given, durable=acks == "all", on_progress=lambda sent: on_progress(sent, None))
    report_sent(out, topic, sent)


def report_sent(out: Output, topic: str, count: int) -> None:
    """Say how many records went to a topic."""
    out.report(f"{count_of(count, 'record')} to {topic}", {"topic": topic, "records": count})


@contextmanager
def provide(store: str | None, topic: str, *, create: bool, command: str) -> Iterator[Store]:
    """Open the store. Create the topic with `create`, else raise UnknownTopic if it does not exist."""
    if create:
        from klamm.store.names import validate

        validate(topic)  # before a store is created for nothing
    with opened(store, create=create) as events:
        if create:
            events.topics.create(topic, exist_ok=True)
        elif topic not in events.topics:
            from klamm.store.names import nearest

            make = f"klamm topic create {topic}, or {command} --create"
            near = nearest(topic, list(events.topics))
            hint = f"{near} else {make}" if near else make
            raise UnknownTopic(f"Topic {topic!r} does not exist", hint=hint)
        yield events


def send_all(
    store: Store,
    topic: str,
    given: Iterator[PlainRecord],
    *,
    durable: bool = True,
    on_progress: Callable[[int], object] | None = None,
) -> int:
    """Send them: how many. What goes wrong is said with how many are in the topic."""
    waiting: deque[Delivery] = deque()
    sent = arrived = 0
    try:
        with store.producer(acks="all" if durable else 1) as producer:
            for each in given:
                waiting.append(each.send(producer, topic))
                sent += 1
                while waiting[0].done and len(waiting) > 1:
                    arrived += waiting.popleft().error is None
                if on_progress is not None and sent % 1000 == 0:
                    on_progress(sent)
    except (KlammError, KeyboardInterrupt) as error:
        failed = error if isinstance(error, KlammError) else KlammError("interrupted")
        arrived += sum(each.done and each.error is None for each in waiting)
        if sent:
            which = " before it" if arrived == sent else f" of {sent:,}"
            sent_so_far = f"{count_of(arrived, 'record')}{which} {'was' if arrived == 1 else 'were'} sent"
            failed.hint = f"{failed.hint}; {sent_so_far}" if failed.hint else sent_so_far
        raise failed from None
    return sent


def _lines(
    separator: str | None,
    as_json: bool,
    key: bytes | None,
    headers: list[tuple[str, bytes | None]],
    partition: int | None,
) -> Iterator[PlainRecord]:
    for number, line in enumerate(interruptible(sys.stdin.buffer), 1):
        value = line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line
        if as_json:
            if value.strip():
                each = from_json(value, f"line {number}")
                yield PlainRecord(
                    each.key if each.key is not None else key,
                    each.value,
                    [*each.headers, *headers],
                    each.partition if partition is None else partition,
                    each.timestamp,
                )
        elif separator is None:
            yield PlainRecord(key, value, headers, partition)
        else:
            before, found, after = value.partition(os.fsencode(separator))
            if not found:
                raise InvalidRecord(
                    f"line {number}: has no {separator!r} in it", hint="expected it between key and value"
                )
            yield PlainRecord(before, after, headers, partition)
