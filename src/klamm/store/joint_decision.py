"""One decision for several transactions of the server's clients, and for a writer's number: all of them, or nothing.

A job of many tasks writes in as many transactions; its leader then decides for all. The transactional ids of
a job begin with its scope, `<writer>/…/`. In one SQLite transaction, which is the commit point of all:

  1  the writer's number is still the one that the caller has seen, and below the one that is to be recorded (ONC1 in
     once.py): else nothing is done
  2  every transaction that is named is ongoing, in the epoch that is named: else nothing is done
  3  they are decided, as by EndTxn, and the number is recorded
  4  every other transaction of the scope that is ongoing is aborted, and its producer fenced: what was left by attempts
     that failed, and by those that were too slow. A producer that has its id and has not written yet is fenced, too

Promises
  JNT1  The transactions that are named have the same end, and the number is recorded if and only if they are committed.
  JNT2  After the decision no other transaction of the scope that began before it can be committed, and no producer that
        was initialised before it can begin one.
  JNT3  A decision that comes again because its response was lost changes nothing: with a number, the number tells;
        without, it has the same response as long as the transactional ids are remembered (TXN3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from klamm.store import once
from klamm.store import transaction_table as table
from klamm.store.once import WriterNumber
from klamm.store.transaction_state import Client, End, Fence, Marked, Now, Outcome, Row, Step, step
from klamm.types import PartitionKey

if TYPE_CHECKING:
    from klamm.store.database import Execute

__all__ = ["Decided", "Decision", "decide", "find_last", "names_in"]


class Decision(NamedTuple):
    """A decision that is to be taken."""

    writer: str
    scope: str
    """How the transactional ids begin. Ends in a slash."""
    producers: Mapping[str, Client]
    """By transactional id: what each calls itself."""
    commit: bool
    number: WriterNumber | None = None
    """What is recorded with a commit."""
    last: tuple[int, str] | None = None
    """Number and fingerprint that the caller has seen there; None: there was none."""
    forgets: bool = False
    """The transactional ids of the scope will not be used again: forget those whose transactions are over."""


class Decided(NamedTuple):
    """The outcome of a decision. Nothing was done if the outcome is not OK, or if there is a `conflict`."""

    outcome: Outcome
    name: str = ""
    """The transactional id whose outcome it is."""
    conflict: str = ""
    """Why the writer's number cannot be recorded."""
    last: WriterNumber | None = None
    """The writer's number, before the decision."""
    steps: tuple[tuple[Row | None, Step], ...] = ()
    """What became of rows: each before, and after."""
    forgotten: tuple[str, ...] = ()


def find_last(execute: Execute, writer: str, target: str) -> WriterNumber | None:
    """Return the last number of a writer for a target; of format 3, whose rows stand for every target, too."""
    return once.find(execute, writer, target) or once.find(execute, writer, "")


def names_in(execute: Execute, scope: str) -> list[str]:
    """Return the transactional ids of a scope, by name."""
    assert scope.endswith("/")
    end = scope[:-1] + chr(ord("/") + 1)  # no text that begins with the scope is at or after it
    found = execute("SELECT name FROM transaction_names WHERE name >= ? AND name < ? ORDER BY name", (scope, end))
    return [name for (name,) in found.fetchall()]


def decide(
    execute: Execute,
    decision: Decision,
    now: Now,
    *,
    synced: frozenset[PartitionKey],
    marked: Mapping[str, Row],
    fresh_ids: Mapping[str, int],
) -> Decided:
    """Do all of it, inside of a SQLite transaction, under the write lock of klamm.db.

    `synced`: partitions whose records are on disk. `marked`: rows whose markers are, by transactional id.
    """
    last = None
    number = decision.number
    if number is not None:
        last = find_last(execute, number.writer, number.target)
        if (None if last is None else (last.number, last.fingerprint)) != decision.last:
            return Decided(Outcome.OK, conflict=f"{number.writer}: another number was recorded since", last=last)
        if last is not None and number.number <= last.number:
            return Decided(Outcome.OK, conflict=f"{number}: is not above {last.number}, the last one", last=last)
    steps: list[tuple[Row | None, Row | None, Step]] = []
    for name, client in decision.producers.items():
        before, row = _find(execute, name, marked)
        done = step(row, End(client, decision.commit, True, synced, fresh_ids.get(name)), now)
        if done.outcome is not Outcome.OK:
            return Decided(done.outcome, name, last=last)
        steps.append((before, row, done))
    forgotten = []
    for name in names_in(execute, decision.scope):
        if name in decision.producers:
            continue
        before, row = _find(execute, name, marked)
        if row is not None and row.is_over and decision.forgets:
            assert before is not None
            table.forget(execute, [before.key])
            table.forget_name(execute, name, row.producer_id)
            forgotten.append(name)
        elif row is not None and (done := step(row, Fence(with_empty=True), now)).outcome is Outcome.OK:
            steps.append((before, row, done))
    for before, _, done in steps:
        if done.row != before:
            table.write(execute, before, done)
            if done.row is not None and before is not None and done.row.producer_id != before.producer_id:
                table.put_name(execute, done.row.name or "", done.row.producer_id)
    if number is not None and decision.commit:
        once.write(execute, number)
        execute("DELETE FROM once WHERE writer = ? AND target = ''", (number.writer,))  # of format 3
    changes = tuple((before, done) for before, _, done in steps)
    return Decided(Outcome.OK, last=last, steps=changes, forgotten=tuple(forgotten))


def _find(execute: Execute, name: str, marked: Mapping[str, Row]) -> tuple[Row | None, Row | None]:
    """Return the row of a transactional id: as it is written, and as it is."""
    before = table.find_named(execute, name)[1]
    row = before
    if row is not None and row == marked.get(name):
        row = step(row, Marked(), Now("", 0, 0, 0)).row
    return before, row
