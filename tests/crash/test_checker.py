"""The checker finds what it is for: every anomaly, planted in a sound history, is found; the sound one has none.

The sound history is told below, event by event. Each case then bends it in one way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.checker import QUESTIONS, check
from tests.crash.history import Event, History, Place, Recorder, read

MS = 1_000_000


class Tale:
    """A history, told event by event. The clock goes on by a millisecond with each."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.time = 0
        self.logs: dict[Place, list[tuple[str, str | None]]] = {}  # value, and its transaction

    def tell(self, by: str, kind: str, **facts: Any) -> None:
        self.time += MS
        self.events.append(Event(self.time, by, kind, facts))

    def append(self, process: str, place: Place, *values: str, tx: str | None = None) -> None:
        names = [value.partition("<")[0] for value in values]
        self.tell(process, "sending", topic=place[0], ids=names, tx=tx)
        log = self.logs.setdefault(place, [])
        first = len(log)
        log.extend((value, tx) for value in values)
        if tx is None:
            self.tell(
                process, "sent", topic=place[0], ids=names, places=[[place[1], first + n] for n in range(len(names))]
            )

    def end(self, process: str, tx: str, places: list[Place], *, told: bool = True) -> None:
        self.tell(process, "committing", tx=tx)
        for place in places:
            self.logs[place].append(("", "marker"))
        if told:
            self.tell(process, "committed", tx=tx)

    def poll(self, process: str, place: Place, begin: int, end: int, aborted: tuple[str, ...] = ()) -> None:
        hidden = {"marker", *aborted}
        records = [
            [offset, value] for offset, (value, tx) in enumerate(self.logs[place][begin:end], begin) if tx not in hidden
        ]
        since, (topic, partition) = self.time, place
        self.tell(
            process, "polled", since=since, topic=topic, partition=partition, begin=begin, end=end, records=records
        )

    def store(self, process: str, group: str, place: Place, end: int, tx: str | None = None) -> None:
        where = {"group": group, "topic": place[0], "partition": place[1], "end": end, "tx": tx}
        self.tell(process, "storing", **where)
        if tx is None:
            self.tell(process, "stored", **where)

    def process(self, process: str, place: Place, *offsets: int) -> None:
        self.tell(process, "processed", topic=place[0], partition=place[1], offsets=list(offsets))


IN, OTHER, OUT = ("in", 0), ("in", 1), ("out", 0)


def sound() -> Tale:
    """Plain and transactional producers, a group that processes, a group that transforms, and everything ends well.

    in/0    0 p.0 · 1 p.1 · 2 t.0 (A) · 3 t.2 (B, aborted) · 4 marker · 5 marker · 6 p.2
    in/1    0 t.1 (A) · 1 t.3 (B, aborted) · 2 marker · 3 marker · 4 q.0 (C: killed in its commit, and there)
    """
    tale = Tale()
    for name in "ptq":
        tale.tell(name, "started", role="producer")
    tale.tell("r", "started", role="reader", isolation="read_committed")
    for name in "mn":
        tale.tell(name, "started", role="member", group="g", topic="in", output=None, patience_ms=500)
    for name in "xy":
        tale.tell(name, "started", role="member", group="h", topic="in", output="out", patience_ms=500)
    tale.tell("nemesis", "started", role="nemesis")

    tale.append("p", IN, "p.0", "p.1")
    tale.append("t", IN, "t.0", tx="A")
    tale.append("t", OTHER, "t.1", tx="A")
    tale.append("t", IN, "t.2", tx="B")
    tale.append("t", OTHER, "t.3", tx="B")
    tale.poll("r", IN, 0, 2)
    tale.tell("m", "assigned", places=[IN, OTHER])
    tale.poll("m", IN, 0, 2)
    tale.process("m", IN, 0, 1)
    tale.store("m", "g", IN, 2)
    tale.end("t", "A", [IN, OTHER])
    tale.tell("t", "aborting", tx="B")
    tale.logs[IN].append(("", "marker"))
    tale.logs[OTHER].append(("", "marker"))
    tale.tell("t", "aborted", tx="B", why="asked to")
    tale.append("p", IN, "p.2")
    tale.append("q", OTHER, "q.0", tx="C")
    tale.end("q", "C", [OTHER], told=False)
    tale.tell("nemesis", "killing", process="q")
    tale.tell("nemesis", "killed", process="q")
    tale.poll("r", IN, 2, 7, aborted=("B",))
    tale.poll("r", OTHER, 0, 6, aborted=("B",))

    # m hands in/1 to n, and is killed with in/0, of which it has processed more than it committed.
    tale.tell("m", "revoked", places=[OTHER])
    tale.tell("n", "assigned", places=[OTHER])
    tale.poll("n", OTHER, 0, 6, aborted=("B",))
    tale.process("n", OTHER, 0, 4)
    tale.store("n", "g", OTHER, 6)
    tale.poll("m", IN, 2, 7, aborted=("B",))
    tale.process("m", IN, 2, 6)
    tale.tell("nemesis", "killing", process="m")
    tale.tell("nemesis", "killed", process="m")
    tale.tell("n", "assigned", places=[IN])
    tale.poll("n", IN, 2, 7, aborted=("B",))
    tale.process("n", IN, 2, 6)
    tale.store("n", "g", IN, 7)

    # x transforms in/0 in two transactions, the second of which aborts; y does it again.
    tale.tell("x", "assigned", places=[IN])
    tale.poll("x", IN, 0, 2)
    tale.append("x", OUT, "x.0<in/0/0/p.0", "x.1<in/0/1/p.1", tx="D")
    tale.store("x", "h", IN, 2, tx="D")
    tale.end("x", "D", [OUT])
    tale.poll("x", IN, 2, 7, aborted=("B",))
    tale.append("x", OUT, "x.2<in/0/2/t.0", "x.3<in/0/6/p.2", tx="E")
    tale.tell("x", "aborting", tx="E")
    tale.logs[OUT].append(("", "marker"))
    tale.tell("x", "aborted", tx="E", why="asked to")
    tale.tell("x", "moved", topic="in", partition=0)
    tale.poll("x", IN, 2, 3)
    tale.tell("x", "lost", places=[IN])
    tale.tell("y", "assigned", places=[IN, OTHER])
    tale.poll("y", IN, 2, 7, aborted=("B",))
    tale.append("y", OUT, "y.0<in/0/2/t.0", "y.1<in/0/6/p.2", tx="F")
    tale.store("y", "h", IN, 7, tx="F")
    tale.end("y", "F", [OUT])
    tale.poll("y", OTHER, 0, 6, aborted=("B",))
    tale.append("y", OUT, "y.2<in/1/0/t.1", "y.3<in/1/4/q.0", tx="G")
    tale.store("y", "h", OTHER, 6, tx="G")
    tale.end("y", "G", [OUT])
    tale.tell("y", "closing")

    tale.tell("last", "started", role="final", isolation="read_committed")
    tale.tell("raw", "started", role="final", isolation="read_uncommitted")
    for place in IN, OTHER, OUT:
        tale.poll("last", place, 0, len(tale.logs[place]), aborted=("B", "E"))
        tale.poll("raw", place, 0, len(tale.logs[place]))
    return tale


def kinds(tale: Tale) -> set[str]:
    return {anomaly.kind for anomaly in check(History(tale.events))}


def test_a_sound_history_has_no_anomaly() -> None:
    assert check(History(sound().events)) == []


# ---- ways to bend it


Bend = Callable[[Tale], None]
READERS = ("r", "m", "n", "x", "y", "last", "raw")


def events(tale: Tale, process: str, kind: str) -> list[Event]:
    return [event for event in tale.events if (event.process, event.kind) == (process, kind)]


def drop(tale: Tale, process: str, kind: str, number: int = 0) -> None:
    """The event did not happen."""
    tale.events.remove(events(tale, process, kind)[number])


def change(tale: Tale, process: str, kind: str, number: int, **facts: Any) -> None:
    events(tale, process, kind)[number].facts.update(facts)


def commit_beside(tale: Tale, *, begun_after_stored: bool) -> None:
    """Let m commit offset 1 of in/0 besides 2, either while that is under way or later; n begins at 1."""
    begun, over = (events(tale, "m", kind)[0] for kind in ("storing", "stored"))
    where = {**over.facts, "end": 1}
    first = over.time + 1 if begun_after_stored else begun.time - 1
    tale.events += [Event(first, "m", "storing", where), Event(over.time + 2, "m", "stored", where)]
    tale.events.sort(key=lambda each: each.time)
    poll = events(tale, "n", "polled")[1]
    poll.facts.update(begin=1, records=[[1, "p.1"], *poll["records"]])


def commit_by_a_zombie(tale: Tale, *, seeks: bool) -> None:
    """Let m, stopped and not killed, commit offset 3 of in/0 at a server after its successor n committed 7. Another
    member begins there. With `seeks`, m reads record 2 again before it commits.
    """
    for name in "mn":
        change(tale, name, "started", 0, door="kafka")
    for kind in "killing", "killed":
        drop(tale, "nemesis", kind, 1)
    if seeks:
        tale.tell("m", "moved", topic="in", partition=0, begin=2)
        tale.poll("m", IN, 2, 3)
        tale.process("m", IN, 2)
    tale.store("m", "g", IN, 3)
    tale.tell("k", "started", role="member", group="g", topic="in", output=None, patience_ms=500, door="kafka")
    tale.tell("k", "assigned", places=[IN])
    tale.poll("k", IN, 3, 7, aborted=("B",))


def delay(tale: Tale, process: str, kind: str, number: int, *, after: tuple[str, str, int]) -> None:
    """The event happened only after another."""
    event = events(tale, process, kind)[number]
    tale.events.remove(event)
    then = events(tale, after[0], after[1])[after[2]].time + 1
    tale.events.append(Event(then, process, kind, event.facts))
    tale.events.sort(key=lambda each: each.time)


def poll(tale: Tale, process: str, place: Place, begin: int, *values: str, before: tuple[str, str, int]) -> None:
    """One more poll, just before another event."""
    then = events(tale, before[0], before[1])[before[2]].time
    records = [[offset, value] for offset, value in enumerate(values, begin)]
    where = {"topic": place[0], "partition": place[1], "begin": begin, "end": begin + len(values)}
    tale.events.append(Event(then - 1, process, "polled", {**where, "since": then - 2, "records": records}))
    tale.events.sort(key=lambda each: each.time)


def unsee(tale: Tale, name: str, *processes: str) -> None:
    """These processes never saw the record."""
    for event in tale.events:
        if event.kind == "polled" and event.process in processes:
            event.facts["records"] = [each for each in event["records"] if each[1].partition("<")[0] != name]


PLANTED: list[tuple[str, Bend]] = []
FORGIVEN: list[Bend] = []
END = ("last", "started", 0)


def plants(kind: str) -> Callable[[Bend], Bend]:
    def note(bend: Bend) -> Bend:
        PLANTED.append((kind, bend))
        return bend

    return note


@plants("lost")
def an_acknowledged_record_is_gone(tale: Tale) -> None:
    unsee(tale, "p.2", *READERS)


@plants("lost")
def a_record_of_a_committed_transaction_is_gone(tale: Tale) -> None:
    unsee(tale, "t.1", *READERS)


@plants("invented")
def nobody_sent_it(tale: Tale) -> None:
    change(tale, "p", "sending", 1, ids=[])


@plants("duplicated")
def one_record_lies_at_two_offsets(tale: Tale) -> None:
    poll(tale, "r", IN, 7, "p.0", before=END)


@plants("two values")
def two_readers_see_two_records_at_one_offset(tale: Tale) -> None:
    change(tale, "r", "polled", 0, records=[[0, "p.0"], [1, "p.9"]])


@plants("two values")
def one_offset_is_told_for_two_records(tale: Tale) -> None:
    change(tale, "p", "sent", 1, places=[[0, 0]])


@plants("disordered")
def records_of_a_producer_lie_in_another_order(tale: Tale) -> None:
    poll(tale, "r", OTHER, 6, "p.8", "p.7", before=END)


@plants("disordered")
def records_are_made_in_another_order_than_what_they_are_made_of(tale: Tale) -> None:
    records = events(tale, "last", "polled")[2]["records"]
    (_, records[0][1]), (_, records[1][1]) = copy.deepcopy((records[1], records[0]))


@plants("aborted read")
def a_reader_sees_a_transaction_that_was_aborted(tale: Tale) -> None:
    events(tale, "r", "polled")[1]["records"].insert(1, [3, "t.2"])


@plants("aborted read")
def a_reader_sees_a_transaction_that_never_came_to_its_commit(tale: Tale) -> None:
    drop(tale, "q", "committing")


@plants("aborted read")
def a_reader_sees_a_transaction_that_was_refused_its_commit(tale: Tale) -> None:
    tale.tell("q", "aborted", tx="C", why="Fenced")


@plants("early read")
def a_reader_sees_a_transaction_before_its_commit(tale: Tale) -> None:
    poll(tale, "r", OTHER, 0, "t.1", before=("t", "committing", 0))


@plants("torn")
def half_of_a_transaction_is_gone(tale: Tale) -> None:
    events(tale, "q", "sending")[0]["ids"].append("q.1")


@plants("torn")
def a_reader_sees_one_record_of_a_transaction_and_passes_by_another(tale: Tale) -> None:
    unsee(tale, "t.1", "r")


@plants("missed")
def a_reader_passes_by_a_record(tale: Tale) -> None:
    unsee(tale, "p.1", "r")


@plants("missed")
def a_batch_has_a_record_from_elsewhere(tale: Tale) -> None:
    change(tale, "r", "polled", 0, end=1)


@plants("back")
def a_reader_goes_back(tale: Tale) -> None:
    poll(tale, "r", IN, 1, "p.1", before=END)


@plants("back")
def a_member_reads_before_the_offset_that_it_sought(tale: Tale) -> None:
    change(tale, "x", "moved", 0, begin=3)


@plants("skipped")
def a_member_reads_behind_the_offset_that_it_sought(tale: Tale) -> None:
    change(tale, "x", "moved", 0, begin=0)


@plants("skipped")
def a_reader_skips(tale: Tale) -> None:
    drop(tale, "r", "polled")


@plants("skipped")
def a_member_begins_behind_what_its_group_has_committed(tale: Tale) -> None:
    change(tale, "n", "polled", 1, begin=3, records=[[6, "p.2"]])


@plants("skipped")
def a_member_begins_where_a_commit_was_refused(tale: Tale) -> None:
    where = {"group": "g", "topic": "in", "partition": 0, "end": 3, "tx": None}
    then = events(tale, "nemesis", "killing")[1].time
    tale.events += [Event(then - 2, "m", "storing", where), Event(then - 1, "m", "refused", where)]
    change(tale, "n", "polled", 1, begin=3, records=[[6, "p.2"]])


@plants("skipped")
def a_member_begins_where_two_commits_were_refused(tale: Tale) -> None:
    a_member_begins_where_a_commit_was_refused(tale)
    storing, refused = tale.events[-2:]
    tale.events[-2:] = [storing, storing, refused, refused]


@plants("skipped")
def a_member_skips_after_a_rewind(tale: Tale) -> None:
    change(tale, "x", "polled", 2, begin=3, end=7, records=[[6, "p.2"]])


@plants("two owners")
def a_member_takes_a_partition_before_the_other_lets_go(tale: Tale) -> None:
    delay(tale, "m", "revoked", 0, after=("n", "polled", 0))


@plants("two owners")
def a_member_takes_a_partition_of_one_that_lives(tale: Tale) -> None:
    delay(tale, "nemesis", "killing", 1, after=("n", "polled", 1))


@plants("two owners")
def a_member_polls_what_another_owns(tale: Tale) -> None:
    poll(tale, "n", IN, 0, "p.0", before=("m", "stored", 0))


@plants("two owners")
def two_members_at_a_server_may_commit_in_turns(tale: Tale) -> None:
    for name in "mn":
        change(tale, name, "started", 0, door="kafka")
    for name in "nm":
        tale.store(name, "g", IN, 7)


@plants("lost progress")
def progress_is_forgotten(tale: Tale) -> None:
    poll(tale, "n", IN, 0, "p.0", "p.1", before=("n", "polled", 1))


@plants("lost progress")
def progress_of_a_transaction_is_forgotten(tale: Tale) -> None:
    change(tale, "x", "polled", 2, begin=0, records=[[0, "p.0"], [1, "p.1"], [2, "t.0"]])


@plants("lost progress")
def progress_is_moved_back_by_a_commit_that_came_later(tale: Tale) -> None:
    """Of the same member: it began when the other was over, so nothing excuses it."""
    commit_beside(tale, begun_after_stored=True)


@plants("lost progress")
def a_zombie_commits_less_than_its_successor(tale: Tale) -> None:
    commit_by_a_zombie(tale, seeks=False)


@plants("lost progress")
def a_zombie_seeks_back_and_commits_less_than_its_successor(tale: Tale) -> None:
    commit_by_a_zombie(tale, seeks=True)


@plants("two owners")
def a_zombie_seeks_back_and_commits_between_commits_of_its_successor(tale: Tale) -> None:
    commit_by_a_zombie(tale, seeks=True)
    tale.store("n", "g", IN, 7)
    tale.store("m", "g", IN, 7)


@plants("unprocessed")
def a_group_commits_before_it_processes(tale: Tale) -> None:
    delay(tale, "n", "processed", 0, after=("n", "stored", 0))


@plants("unprocessed")
def a_group_leaves_a_record_out(tale: Tale) -> None:
    change(tale, "m", "processed", 1, offsets=[2])
    change(tale, "n", "processed", 1, offsets=[2])


@plants("unprocessed")
def a_group_never_comes_to_a_record(tale: Tale) -> None:
    for kind in "polled", "processed", "storing", "stored":
        drop(tale, "n", kind)


@plants("not once")
def a_record_is_transformed_twice(tale: Tale) -> None:
    events(tale, "last", "polled")[2]["records"].append([3, "x.2<in/0/2/t.0"])


@plants("not once")
def a_record_is_not_transformed(tale: Tale) -> None:
    unsee(tale, "y.3", *READERS)


@plants("not once")
def a_record_is_made_of_one_that_is_not_there(tale: Tale) -> None:
    unsee(tale, "t.1", "last")


@plants("not as the reference")
def a_pipe_makes_something_else(tale: Tale) -> None:
    tale.tell("nemesis", "differs", what="the state of partition 0 is {}")


@pytest.mark.parametrize(("kind", "bend"), PLANTED, ids=[bend.__name__ for _, bend in PLANTED])
def test_what_is_planted_is_found(kind: str, bend: Bend) -> None:
    tale = sound()
    bend(tale)
    assert kind in kinds(tale)


def test_every_kind_of_anomaly_is_planted() -> None:
    assert {kind for kind, _ in PLANTED} == set(QUESTIONS)


# ---- what is no anomaly


@FORGIVEN.append
def a_producer_is_killed_before_it_was_told(tale: Tale) -> None:
    drop(tale, "p", "sent", 1)


@FORGIVEN.append
def a_member_is_killed_before_its_commit_was_told(tale: Tale) -> None:
    drop(tale, "n", "stored", 1)


@FORGIVEN.append
def a_commit_is_overtaken_by_one_that_was_under_way_with_it(tale: Tale) -> None:
    """librdkafka sends commits again in another order when its connection breaks."""
    commit_beside(tale, begun_after_stored=False)


@FORGIVEN.append
def a_commit_is_refused_while_another_one_of_the_same_end_is_under_way(tale: Tale) -> None:
    """A member that lost a partition and got it back reads the same records again, while its commit is under way."""
    begun = events(tale, "m", "storing")[0]
    for time, kind in (begun.time - 1, "storing"), (begun.time + 1, "refused"):
        tale.events.append(Event(time, "m", kind, begun.facts))
    tale.events.sort(key=lambda each: each.time)


@FORGIVEN.append
def a_record_that_nobody_was_told_of_is_gone(tale: Tale) -> None:
    drop(tale, "p", "sent", 1)
    for name in "p.2", "x.3", "y.1":
        unsee(tale, name, *READERS)
    events(tale, "y", "sending")[0]["ids"].remove("y.1")


@FORGIVEN.append
def a_member_learns_late_that_it_lost_a_partition(tale: Tale) -> None:
    delay(tale, "x", "lost", 0, after=("y", "polled", 0))


@FORGIVEN.append
def a_member_that_was_silent_for_too_long_gave_up_before_it_died(tale: Tale) -> None:
    a_member_takes_a_partition_of_one_that_lives(tale)
    change(tale, "m", "started", 0, patience_ms=2)


@FORGIVEN.append
def a_member_that_was_silent_for_too_long_gave_up_before_it_closed(tale: Tale) -> None:
    drop(tale, "x", "lost")
    change(tale, "x", "started", 0, patience_ms=2)
    tale.tell("x", "closing")


@FORGIVEN.append
def a_member_at_a_server_is_told_late_that_it_is_none_any_more(tale: Tale) -> None:
    for name in "mn":
        change(tale, name, "started", 0, door="kafka")
    a_member_takes_a_partition_of_one_that_lives(tale)


@FORGIVEN.append
def a_member_at_a_server_seeks_back_though_others_have_come_further(tale: Tale) -> None:
    """It does not know yet that it is no member any more, and may commit nothing."""
    change(tale, "x", "moved", 0, begin=2)
    for kind, index in ("moved", 0), ("polled", 2), ("lost", 0):
        delay(tale, "x", kind, index, after=("y", "committed", 0))


@FORGIVEN.append
def a_producer_is_told_that_its_records_are_there_but_not_where(tale: Tale) -> None:
    change(tale, "p", "sent", 0, places=[[0, None], [0, None]])


@pytest.mark.parametrize("bend", FORGIVEN, ids=lambda bend: bend.__name__)
def test_what_nobody_promised_is_no_anomaly(bend: Bend) -> None:
    tale = sound()
    bend(tale)
    assert check(History(tale.events)) == []


# ---- the file


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "p")
    recorder("started", role="producer")
    recorder("sending", topic="in", ids=["p.0"], tx=None)
    recorder.close()
    whole = recorder.path.read_bytes()
    for size in range(len(whole) + 1):
        recorder.path.write_bytes(whole[:size])
        assert len(read(recorder.path)) == whole[:size].count(b"\n")


def test_histories_of_processes_are_merged_by_time(tmp_path: Path) -> None:
    first, second = Recorder(tmp_path, "p"), Recorder(tmp_path, "q")
    for number in range(3):
        first("sending", topic="in", ids=[f"p.{number}"], tx=None)
        second("sending", topic="in", ids=[f"q.{number}"], tx=None)
    first.close()
    second.close()
    names = [event["ids"][0] for event in History.load(tmp_path).of("sending")]
    assert names == ["p.0", "q.0", "p.1", "q.1", "p.2", "q.2"]
