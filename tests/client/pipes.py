"""A pipe with everything (map, filter, branch, state) and what it must come to: the reference, in a few lines.

The function drops some records, counts the others by key and chains their checksums, forgets a key now and then, and
sends to one topic or both. An output has the state as its key, and as its value where it comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

import klamm

IN, LEFT, RIGHT, STATE = "in", "left", "right", "state"
GROUP = f"pipe.{IN}.{LEFT}.{RIGHT}"


class Made(NamedTuple):
    """What is made of one record."""

    state: bytes | None
    text: bytes
    topics: tuple[str, ...]


def step(value: bytes, state: bytes | None) -> Made | None:
    """The reference. None: the record is dropped, and changes nothing."""
    number = crc32(value)
    if number % 5 == 0:
        return None
    count, chain = map(int, (state or b"0 0").split())
    text = b"%d %d" % (count + 1, crc32(value, chain))
    topics = (LEFT, RIGHT) if number % 7 == 0 else (LEFT,) if number % 2 else (RIGHT,)
    return Made(None if (count + 1) % 13 == 0 else text, text, topics)


def make(
    name: Callable[[], str] = lambda: "x", before: Callable[[klamm.Record], object] = lambda record: None
) -> Callable[[klamm.Record, klamm.State], Any]:
    """Return the function; `name` is what an output is called, `before` is called first."""

    def function(record: klamm.Record, state: klamm.State) -> Any:
        before(record)
        made = step(record.value, state.value)
        if made is None:
            return None
        state.value = made.state
        source = f"{record.topic}/{record.partition}/{record.offset}/{record.value.decode()}"
        outputs = {topic: f"{name()}<{source}".encode() for topic in made.topics}
        return (klamm.to(topic, value, key=made.text) for topic, value in outputs.items())

    return function


def open_pipe(store: klamm.Store, function: Callable[..., Any] | None = None, **options: Any) -> klamm.Pipe:
    return store.pipe(IN, make() if function is None else function, to=[LEFT, RIGHT], state=STATE, **options)


def progress(store: klamm.Store) -> dict[int, int]:
    """How far the pipe's group has come, by partition."""
    core = store._acquired()
    group = core.groups.find(GROUP)
    rows = {} if group is None else core.groups.offsets(group.number)
    return {number: row.offset for (_, number), row in rows.items()}


def anomalies(store: klamm.Store) -> list[str]:
    """What is otherwise than the reference makes of the records that the group has committed. While nothing runs."""
    ends = progress(store)
    states: dict[int, dict[bytes, bytes]] = {}
    expected: list[tuple[str, str, bytes]] = []  # topic, source, key
    for record in _records(store, IN):
        if record.offset < ends.get(record.partition, 0):
            values = states.setdefault(record.partition, {})
            made = step(record.value, values.get(record.key))
            if made is not None:
                values.pop(record.key, None)
                if made.state is not None:
                    values[record.key] = made.state
                source = f"{IN}/{record.partition}/{record.offset}/{record.value.decode()}"
                expected += [(topic, source, made.text) for topic in made.topics]
    there = Counter(
        (topic, record.value.decode().partition("<")[2], record.key)
        for topic in (LEFT, RIGHT)
        for record in _records(store, topic)
    )
    found = [f"{each} is missing" for each in sorted(set(expected) - there.keys())]
    found += [f"{each} is not to be there" for each in sorted(there.keys() - set(expected))]
    found += [f"{each} is there {times} times" for each, times in sorted(there.items()) if times > 1]
    folded: dict[int, dict[bytes, bytes]] = {}
    for record in _records(store, STATE):
        folded.setdefault(record.partition, {})[record.key] = record.value
    for number in states.keys() | folded.keys():
        state = {key: value for key, value in folded.get(number, {}).items() if value is not None}
        if state != states.get(number, {}):
            found.append(f"the state of partition {number} is {state}, not {states.get(number)}")
    return found


def _records(store: klamm.Store, topic: str) -> list[klamm.Record]:
    with store.consumer(topic, wait=0) as consumer:
        return [record for batch in consumer.batches() for record in batch]
