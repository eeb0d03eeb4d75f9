"""Judges a history: what was promised, and did not happen. Pure functions of events; nothing of Klamm is imported.

The anomalies, in the manner of Jepsen's Kafka workload. Records are seen in *polls*; what the final readers saw is the
truth about which records are there. A poll without further words is one that reads committed.

    lost            acknowledged, by an append or by the commit of its transaction, and not there
    invented        there, and nobody sent it
    duplicated      one record at two offsets
    two values      one offset with two records, whoever saw or wrote them
    disordered      records of one process in one partition, in another order than it sent them; the same for records
                    that were made of the records of one partition
    aborted read    a poll saw a record of a transaction that was aborted, or never came to its commit
    early read      a poll saw a record before the commit of its transaction was begun
    torn            of a transaction one record is there, another is not; or one reader saw one, and passed by another
    missed          a poll passed by a record that is there
    back            a reader's polls of a partition went back, though nothing had moved it
    skipped         ... or went on behind a record that is there
    two owners      of one partition of a group, at one time
    lost progress   a member began before what its group had committed
    unprocessed     the group committed, or at last left, a record that nobody had processed
    not once        what the group made of a record is there twice or not at all
    not as the reference    what pipes have made of the records they have committed, as their nemesis compared it

What is certain and what is not: a process that is killed between `-ing` and the answer may have done it or not. Such
records and transactions may be there or not, but wholly, and for everybody.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.crash.group_progress import Calls, Progress, commits_of
from tests.crash.history import Event, History, Place

COMMITTED: Final = "read_committed"
UNCOMMITTED: Final = "read_uncommitted"


class Anomaly(NamedTuple):
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


class Source(NamedTuple):
    """What a record was made of."""

    place: Place
    offset: int
    name: str


def name_of(value: str) -> str:
    return value.partition("<")[0]


def source_of(value: str) -> Source | None:
    source = value.partition("<")[2]
    if not source:
        return None
    topic, partition, offset, name = source.split("/")
    return Source((topic, int(partition)), int(offset), name)


def author_of(name: str) -> tuple[str, int]:
    """The process that sent it, and its number there."""
    process, _, number = name.rpartition(".")
    return process, int(number)


@dataclass
class Transaction:
    name: str
    records: list[str] = field(default_factory=list)
    committing: int | None = None  # when its commit was begun
    committed: int | None = None
    aborted: bool = False
    progress: list[tuple[str, Place, int]] = field(default_factory=list)  # group, place, end

    @property
    def is_aborted(self) -> bool:
        """Certainly: it was told, or its process died before the commit."""
        return self.aborted or self.committing is None


class Facts:
    """The history, with what every question needs looked up."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sending: dict[str, Transaction | None] = {}  # everything that may be there
        self.sent: dict[str, tuple[Place, int] | None] = {}  # what was acknowledged, and where it is if that was told
        self.transactions: dict[str, Transaction] = {}
        self.polls = list(history.of("polled"))
        self.seen: dict[Place, dict[int, str]] = defaultdict(dict)  # by anybody: offset -> value
        self.there: dict[Place, dict[int, str]] = defaultdict(dict)  # by the final reader of what is committed
        self.conflicts: list[str] = []
        self._dirty = {name for name in history.by_process if history.start_of(name).get("isolation") == UNCOMMITTED}
        for event in history.by_time:
            self._hear(event)
        for transaction in self.transactions.values():
            if transaction.committed is not None:
                self.sent.update((name, self.sent.get(name)) for name in transaction.records)
        self.offsets = {place: sorted(values) for place, values in self.there.items()}
        self.is_there = {name_of(value) for values in self.there.values() for value in values.values()}

    def _hear(self, event: Event) -> None:
        kind = event.kind
        if kind == "sending":
            transaction = None if event["tx"] is None else self._transaction(event["tx"])
            for name in event["ids"]:
                self.sending[name] = transaction
                if transaction is not None:
                    transaction.records.append(name)
        elif kind == "sent":
            for name, (partition, offset) in zip(event["ids"], event["places"], strict=True):
                self.sent[name] = None if offset is None else ((event["topic"], partition), offset)
        elif kind == "committing":
            self._transaction(event["tx"]).committing = event.time
        elif kind == "committed":
            self._transaction(event["tx"]).committed = event.time
        elif kind == "aborted":
            self._transaction(event["tx"]).aborted = True
        elif kind == "storing" and event["tx"] is not None:
            self._transaction(event["tx"]).progress.append((event["group"], event.place, event["end"]))
        elif kind == "polled":
            self._see(event)

    def _transaction(self, name: str) -> Transaction:
        if name not in self.transactions:
            self.transactions[name] = Transaction(name)
        return self.transactions[name]

    def _see(self, event: Event) -> None:
        values = self.seen[event.place]
        for offset, value in event["records"]:
            if values.setdefault(offset, value) != value:
                self.conflicts.append(
                    f"{_at(event.place, offset)}: {values[offset]!r}, and {value!r} for {event.process}"
                )
        if self.history.start_of(event.process).get("role") == "final" and self.reads_committed(event):
            self.there[event.place].update(dict(event["records"]))

    def reads_committed(self, event: Event) -> bool:
        return event.process not in self._dirty

    def between(self, place: Place, begin: int, end: int) -> list[int]:
        """The offsets of records that are there."""
        offsets = self.offsets.get(place, [])
        return offsets[bisect_left(offsets, begin) : bisect_left(offsets, end)]

    def members(self) -> Iterator[tuple[str, str, list[Event]]]:
        """Name, group and events of each."""
        for process, events in self.history.by_process.items():
            start = self.history.start_of(process)
            if start.get("role") == "member":
                yield process, start["group"], events

    def groups(self) -> dict[str, tuple[str, str | None]]:
        """Each with its topic, and where it writes to."""
        return {
            group: (start["topic"], start["output"])
            for process, group, _ in self.members()
            for start in [self.history.start_of(process)]
        }


def _at(place: Place, offset: int) -> str:
    return f"{place[0]}/{place[1]} at {offset}"


# ---- records


def lost(facts: Facts) -> Iterator[str]:
    for name, where in facts.sent.items():
        if name not in facts.is_there:
            yield f"{name}, acknowledged" + ("" if where is None else f" in {_at(*where)}")


def invented(facts: Facts) -> Iterator[str]:
    for place, values in facts.seen.items():
        for offset, value in values.items():
            if name_of(value) not in facts.sending:
                yield f"{value!r} in {_at(place, offset)}"


def duplicated(facts: Facts) -> Iterator[str]:
    first: dict[str, tuple[Place, int]] = {}
    for place, values in facts.seen.items():
        for offset, value in values.items():
            where = first.setdefault(name_of(value), (place, offset))
            if where != (place, offset):
                yield f"{name_of(value)} in {_at(*where)} and {_at(place, offset)}"


def two_values(facts: Facts) -> Iterator[str]:
    yield from facts.conflicts
    owners: dict[tuple[Place, int], str] = {}
    for name, where in facts.sent.items():
        if where is not None:
            if owners.setdefault(where, name) != name:
                yield f"{_at(*where)} was acknowledged for {owners[where]} and {name}"
            value = facts.seen[where[0]].get(where[1])
            if value is not None and name_of(value) != name:
                yield f"{_at(*where)} was acknowledged for {name} and holds {value!r}"


def disordered(facts: Facts) -> Iterator[str]:
    for place, values in facts.seen.items():
        last: dict[str, int] = {}
        for offset in sorted(values):
            process, number = author_of(name_of(values[offset]))
            if number < last.get(process, -1):
                yield f"{_at(place, offset)}: {process}.{number} after {process}.{last[process]}"
            last[process] = number
    for place, values in facts.there.items():
        made: dict[Place, int] = {}
        for offset in facts.offsets[place]:
            source = source_of(values[offset])
            if source is not None:
                if source.offset < made.get(source.place, -1):
                    yield f"{_at(place, offset)} is made of {_at(*source[:2])}, after {made[source.place]}"
                made[source.place] = source.offset


# ---- transactions


def aborted_reads(facts: Facts) -> Iterator[str]:
    for poll, offset, transaction in _transactional(facts):
        if transaction.is_aborted:
            yield f"{poll.process} saw {transaction.name}, which was aborted, in {_at(poll.place, offset)}"


def early_reads(facts: Facts) -> Iterator[str]:
    for poll, offset, transaction in _transactional(facts):
        if transaction.committing is not None and poll.time < transaction.committing:
            yield (
                f"{poll.process} saw {transaction.name} in {_at(poll.place, offset)}"
                f" {transaction.committing - poll.time} ns before its commit was begun"
            )


def _transactional(facts: Facts) -> Iterator[tuple[Event, int, Transaction]]:
    for poll in filter(facts.reads_committed, facts.polls):
        for offset, value in poll["records"]:
            transaction = facts.sending.get(name_of(value))
            if transaction is not None:
                yield poll, offset, transaction


def torn(facts: Facts) -> Iterator[str]:
    for transaction in facts.transactions.values():
        there = [name for name in transaction.records if name in facts.is_there]
        if there and len(there) < len(transaction.records):
            missing = [name for name in transaction.records if name not in facts.is_there]
            yield f"of {transaction.name}, {there} are there and {missing} are not"
    saw = {(poll.process, transaction.name) for poll, _, transaction in _transactional(facts)}
    for poll in filter(facts.reads_committed, facts.polls):
        for offset, value in _passed_by(poll, facts.seen[poll.place]):
            part_of = facts.sending.get(name_of(value))
            if part_of is not None and (poll.process, part_of.name) in saw:
                yield f"{poll.process} saw some of {part_of.name} and passed by {value} in {_at(poll.place, offset)}"


# ---- polls


def _passed_by(poll: Event, values: dict[int, str]) -> list[tuple[int, str]]:
    """Records of `values` between the ends of the poll that it did not give."""
    if len(poll["records"]) == poll["end"] - poll["begin"]:
        return []
    given = {offset for offset, _ in poll["records"]}
    inside = (offset for offset in range(poll["begin"], poll["end"]) if offset in values)
    return [(offset, values[offset]) for offset in inside if offset not in given]


def missed(facts: Facts) -> Iterator[str]:
    for poll in facts.polls:
        for offset, value in _passed_by(poll, facts.there[poll.place]):
            yield f"{poll.process} passed by {value} in {_at(poll.place, offset)}"
        for offset, value in poll["records"]:
            if not poll["begin"] <= offset < poll["end"]:
                yield f"{poll.process} was given {value} of {offset} in a batch of [{poll['begin']}, {poll['end']})"


def _runs(facts: Facts) -> Iterator[tuple[Event, int | None, int]]:
    """Return every poll, with where it has to go on if that is known, and since when the reader stands there.

    It has to go on where the last poll ended, or where the reader has sought to.
    """
    for events in facts.history.by_process.values():
        ends: dict[Place, int] = {}
        since: dict[Place, int] = defaultdict(lambda start=events[0].time: start)  # type: ignore[misc]
        for event in events:
            if event.kind == "polled":
                yield event, ends.get(event.place), since[event.place]
                ends[event.place] = event["end"]
            elif event.kind in ("assigned", "revoked", "lost"):
                for place in event.places:
                    ends.pop(place, None)
                    since[place] = event.time
            elif event.kind == "moved" and "begin" in event.facts:  # a seek
                ends[event.place] = event["begin"]
            elif event.kind == "moved":
                ends.pop(event.place, None)
                since[event.place] = event.time


def back(facts: Facts) -> Iterator[str]:
    for poll, end, _ in _runs(facts):
        if end is not None and poll["begin"] < end:
            yield f"{poll.process} went from {end} back to {poll['begin']} in {poll['topic']}/{poll['partition']}"


def skipped(facts: Facts) -> Iterator[str]:
    progress = _progress(facts)
    for poll, end, _ in _runs(facts):
        if end is None:
            group = facts.history.start_of(poll.process).get("group")
            end = 0 if group is None else progress[group, poll.place].at_most(poll.time)
        between = facts.between(poll.place, end, poll["begin"])
        if between:
            yield f"{poll.process} went on at {poll['begin']}, behind {_at(poll.place, between[0])}"


# ---- groups


def _progress(facts: Facts) -> dict[tuple[str, Place], Progress]:
    found: dict[tuple[str, Place], Progress] = defaultdict(Progress)
    for _, group, events in facts.members():
        for place, commits in commits_of(events).items():
            for commit in commits:
                done = commit.over if commit.stored else None
                found[group, place].add(commit.begun, done, commit.end, commit.least(commits))
    for transaction in facts.transactions.values():
        if transaction.committing is not None and not transaction.aborted:
            for group, place, end in transaction.progress:
                found[group, place].add(transaction.committing, transaction.committed, end)
    return found


def lost_progress(facts: Facts) -> Iterator[str]:
    progress = _progress(facts)
    for poll, end, since in _runs(facts):
        group = facts.history.start_of(poll.process).get("group")
        if end is not None or group is None:
            continue
        committed = progress[group, poll.place].at_least(since)
        if facts.between(poll.place, poll["begin"], committed):
            yield (
                f"{poll.process} began {poll['topic']}/{poll['partition']} at {poll['begin']}; {group} had committed"
                f" {committed}"
            )


class Holding(NamedTuple):
    start: int
    end: int
    process: str


def _holdings(facts: Facts) -> dict[tuple[str, Place], list[Holding]]:
    """When a member certainly owned a partition: its callbacks are called within that time.

    One that lost a partition without being asked owned it when its last poll there was called. One that died owned it
    until SIGKILL was sent, one that closed until then; but not for longer after its last poll than a member may.
    Members at a server: see _holdings_by_commits.
    """
    killing = {event["process"]: event.time for event in facts.history.of("killing")}
    found: dict[tuple[str, Place], list[Holding]] = defaultdict(list)
    for process, group, events in facts.members():
        if _sits_at_a_server(facts, process):
            for place, holding in _holdings_by_commits(process, events):
                found[group, place].append(holding)
            continue
        patience = facts.history.start_of(process)["patience_ms"] * 1_000_000
        held: dict[Place, int] = {}
        sure: dict[Place, int] = {}
        calls = Calls()
        last_call, closing = events[0].time, None

        def end(place: Place, at: int, held: dict[Place, int] = held, to: str = group, by: str = process) -> None:
            start = held.pop(place, None)
            if start is not None:
                found[to, place].append(Holding(start, max(at, start), by))

        for event in events:
            call = calls.look(event)
            if event.kind == "assigned":
                for place in event.places:
                    held[place] = sure[place] = event.time
                    last_call = max(last_call, event.time)
            elif event.kind == "polled":
                last_call = sure[event.place] = event["since"]
            elif event.kind == "stored":
                assert call is not None
                sure[event.place] = max(sure.get(event.place, 0), call.time)
            elif event.kind in ("revoked", "lost"):
                for place in event.places:
                    end(place, event.time if event.kind == "revoked" else sure.get(place, 0))
            elif event.kind == "closing":
                closing = event.time
        until = min(closing or killing.get(process, events[-1].time), last_call + patience)
        for place in list(held):
            end(place, until)
    return found


def _sits_at_a_server(facts: Facts, process: str) -> bool:
    return facts.history.start_of(process).get("door") == "kafka"


def _holdings_by_commits(process: str, events: list[Event]) -> Iterator[tuple[Place, Holding]]:
    """Of a member at a server, which may have given its partitions to others without its knowing, and given it records
    before that. It is asked at each commit: between two that it was allowed it owned the partition. What is part of a
    transaction was allowed when the commit of that is begun.
    """
    calls = Calls()
    parts: dict[str, list[tuple[Place, int]]] = defaultdict(list)
    sure: dict[Place, tuple[int, int]] = {}  # when the first was allowed at the latest, and the last begun

    def allow(place: Place, begun: int, done: int) -> None:
        first, last = sure.get(place, (done, begun))
        sure[place] = min(first, done), max(last, begun)

    def end(places: list[Place]) -> Iterator[tuple[Place, Holding]]:
        for place in places:
            first, last = sure.pop(place, (0, 0))
            if first < last:
                yield place, Holding(first, last, process)

    for event in events:
        call = calls.look(event)
        if event.kind == "storing" and event["tx"] is not None:
            parts[event["tx"]].append((event.place, event.time))
        elif event.kind == "committing":
            for place, begun in parts.pop(event["tx"], ()):
                allow(place, begun, event.time)
        elif event.kind == "stored" and call is not None:
            allow(event.place, call.time, event.time)
        elif event.kind in ("assigned", "revoked", "lost"):
            yield from end(event.places)
            calls.forget(event.places)
    yield from end(list(sure))


def two_owners(facts: Facts) -> Iterator[str]:
    holdings = _holdings(facts)
    for (group, place), intervals in holdings.items():
        intervals.sort()
        longest = intervals[0]
        for interval in intervals[1:]:
            if interval.start < longest.end and interval.process != longest.process:
                yield (
                    f"{interval.process} owned {place[0]}/{place[1]} of {group} {longest.end - interval.start} ns"
                    f" before {longest.process} had let go"
                )
            longest = max(longest, interval, key=lambda each: each.end)
    for poll in facts.polls:
        its_group = facts.history.start_of(poll.process).get("group")
        if its_group is not None and not _sits_at_a_server(facts, poll.process):
            intervals = holdings.get((its_group, poll.place), [])
            at = bisect_left(intervals, (poll["since"], 0, ""))
            for other in intervals[max(0, at - 2) : at]:
                if other.process != poll.process and other.start < poll["since"] and poll.time < other.end:
                    yield f"{poll.process} polled {poll['topic']}/{poll['partition']}, which {other.process} owned"


def unprocessed(facts: Facts) -> Iterator[str]:
    for group, (topic, output) in facts.groups().items():
        if output is not None:
            continue
        done: dict[Place, dict[int, int]] = defaultdict(dict)
        committed: dict[Place, int] = defaultdict(int)
        for event in facts.history.of("processed", "storing"):
            if facts.history.start_of(event.process)["group"] != group:
                continue
            place = event.place
            if event.kind == "processed":
                for offset in event["offsets"]:
                    done[place].setdefault(offset, event.time)
                continue
            for offset in facts.between(place, committed[place], event["end"]):
                if offset not in done[place]:
                    yield f"{event.process} committed {event['end']} for {group} before {_at(place, offset)}"
            committed[place] = max(committed[place], event["end"])
        for place, offsets in facts.offsets.items():
            if place[0] == topic:
                for offset in offsets:
                    if offset not in done[place]:
                        yield f"{_at(place, offset)}, by {group}"


def not_once(facts: Facts) -> Iterator[str]:
    for group, (topic, output) in facts.groups().items():
        if output is None:
            continue
        made: dict[tuple[Place, int], list[str]] = defaultdict(list)
        for place, values in facts.there.items():
            for value in values.values() if place[0] == output else ():
                source = source_of(value)
                if source is None:
                    yield f"{value!r} of {group} is made of nothing"
                    continue
                made[source.place, source.offset].append(name_of(value))
                if name_of(facts.there[source.place].get(source.offset, "")) != source.name:
                    yield f"{value!r} of {group} is made of a record that is not there"
        for place, offsets in facts.offsets.items():
            for offset in offsets if place[0] == topic else ():
                copies = made[place, offset]
                if len(copies) != 1:
                    yield f"{group} made {len(copies)} records of {_at(place, offset)}: {copies}"


def not_as_the_reference(facts: Facts) -> Iterator[str]:
    for event in facts.history.of("differs"):
        yield event["what"]


QUESTIONS: dict[str, Callable[[Facts], Iterator[str]]] = {
    "lost": lost,
    "invented": invented,
    "duplicated": duplicated,
    "two values": two_values,
    "disordered": disordered,
    "aborted read": aborted_reads,
    "early read": early_reads,
    "torn": torn,
    "missed": missed,
    "back": back,
    "skipped": skipped,
    "two owners": two_owners,
    "lost progress": lost_progress,
    "unprocessed": unprocessed,
    "not once": not_once,
    "not as the reference": not_as_the_reference,
}


def check(history: History) -> list[Anomaly]:
    """Every anomaly there is, by kind."""
    facts = Facts(history)
    return [Anomaly(kind, what) for kind, question in QUESTIONS.items() for what in question(facts)]


__all__ = ["COMMITTED", "QUESTIONS", "UNCOMMITTED", "Anomaly", "Facts", "check", "name_of", "source_of"]
