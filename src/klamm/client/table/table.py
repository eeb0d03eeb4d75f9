"""A topic as a mapping: the latest value of each key.

    users = store.table("users")
    users[b"alice"]                             KeyError if there is none
    users.get(b"alice", wait=0)                 what is there already, without looking whether there is more
    b"alice" in users   len(users)   users.items()   users.prefix(b"al")   users.range(b"a", b"c")
    users[b"alice"] = b"…"   users.put(b"alice", b"…", acks=1)   del users[b"alice"]   users.delete(b"alice")

A read sees everything that was committed before it began, by whatever process: it compares the heads of the topic with
those it saw last, which costs some nanoseconds, and only if one has moved, it waits until the table has what was
committed. How the table is kept is told in materialised.py.

To write is to append a record to the topic, which everybody who reads the topic gets; nothing is written into the
table itself. So a write is seen by every read that begins after it, and one that was made on the ground of a read may
come after the write of another process. An iteration sees the table as it was when it began.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from klamm.client.consume.consumer import Consumer
from klamm.client.serde import Serde, key_pair, value_pair
from klamm.client.table.materialised import acquire, key_is_not_bytes, release, release_later
from klamm.errors import Closed
from klamm.store.directory import Core
from klamm.store.handle import StoreHandle
from klamm.times import Duration, to_timeout
from klamm.typevars import K, V

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.choices import AcksWithOffset
    from klamm.types import BytesLike, Position
    from klamm.where import WhereLike

__all__ = ["Table", "open_table"]

_Default = TypeVar("_Default")


class Table(StoreHandle, Mapping[K, V], by="store.table(…)", of=Core):
    """Made by `store.table()`. For any thread."""

    __slots__ = (
        "__weakref__",
        "_core",
        "_key_from",
        "_key_serde",
        "_key_to",
        "_serde",
        "_shared",
        "_store",
        "_value_from",
        "_wait_s",
        "topic",
    )

    def __init__(
        self,
        core: Core,
        topic: str,
        *,
        serde: Serde | None,
        key_serde: Serde | None,
        wait: Duration | None,
    ) -> None:
        self._shared: Any = _CLOSED
        self.topic = topic
        self._core = core
        self._store: Any = None  # whose table it is, kept from being dropped
        self._serde, self._key_serde = serde, key_serde
        self._key_to, self._key_from = key_pair(key_serde, serde)
        self._value_from = value_pair(serde).from_bytes
        self._wait_s = to_timeout("wait", wait)
        self._shared = acquire(core, topic)

    def __repr__(self) -> str:
        return f"<Table of {self.topic} in {self._core.path}{', closed' if self._shared is _CLOSED else ''}>"

    def __reduce__(self) -> str:
        raise TypeError("a table cannot be pickled; pickle the store, and open the table from it there")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        shared, self._shared = self._shared, _CLOSED
        if shared is not _CLOSED:
            release_later(shared)

    __eq__ = object.__eq__  # two tables are not compared key by key
    __hash__ = object.__hash__

    # ---- one key

    def __getitem__(self, key: K | BytesLike) -> V:
        value: V | None
        shared = self._shared
        if shared.watch.moved:
            shared.refresh(self._wait_s)
        try:
            value = shared.find(key)
        except Exception:  # noqa: BLE001  # it is tried again, and then raised
            value = shared.find_again(key)
        if value is None:
            raise KeyError(key)
        return value

    @overload
    def get(self, key: K | BytesLike, default: None = None, *, wait: Duration | None = None) -> V | None: ...
    @overload
    def get(self, key: K | BytesLike, default: V | _Default, *, wait: Duration | None = None) -> V | _Default: ...
    def get(self, key: Any, default: Any = None, *, wait: Duration | None = None) -> Any:
        """Return the value of `key`. With a `wait` of its own; 0: what the table has now, be it behind its log."""
        shared = self._shared
        if shared.watch.moved:
            shared.refresh(self._wait_s if wait is None else to_timeout("wait", wait))
        try:
            value = shared.find(key)
        except Exception:  # noqa: BLE001  # it is tried again, and then raised
            value = shared.find_again(key)
        return default if value is None else value

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    # ---- writing

    def put(self, key: K | BytesLike, value: V, *, acks: AcksWithOffset = "all") -> int:
        """Append a record to the topic: the key has this value for every read that begins later. Return its offset."""
        if value is None:
            raise TypeError("a value of None would delete the key (use table.delete(key))")
        return self._append(key, value, acks)

    def delete(self, key: K | BytesLike, *, acks: AcksWithOffset = "all") -> int:
        """Append a tombstone of the key to the topic, whether or not the table has it, and return its offset."""
        return self._append(key, None, acks)

    def __setitem__(self, key: K | BytesLike, value: V) -> None:
        """Like `put`."""
        self.put(key, value)

    def __delitem__(self, key: K | BytesLike) -> None:
        """Like `delete`; KeyError if the table does not have the key."""
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    def _append(self, key: Any, value: Any, acks: AcksWithOffset) -> int:
        self._shared.check_usable()
        if key is None:
            raise TypeError("a table has no key None")
        serdes = {"serde": self._serde, "key_serde": self._key_serde}
        offset: int = self._store.append(self.topic, value, key=key, acks=acks, **serdes)
        return offset

    # ---- many

    def __iter__(self) -> Iterator[K]:
        self.refresh()
        found = self._shared.tree.keys()
        return found if self._key_from is None else map(self._key_from, found)

    def __len__(self) -> int:
        """Return the exact number of keys, at the cost of going through all of them: some 0.1 µs for each."""
        self.refresh()
        found = self._shared.tree.keys()
        return sum(1 for _ in found)

    def __bool__(self) -> bool:
        self.refresh()
        return next(self._shared.tree.keys(), None) is not None

    def keys(self) -> KeysView[K]:
        """Return all keys, in the order of their bytes."""
        return KeysView(self)

    def items(self) -> ItemsView[K, V]:
        """Return all (key, value) pairs, in the order of the keys' bytes."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """Return all values, in the order of the keys' bytes."""
        return _Values(self)

    def prefix(self, prefix: K | BytesLike) -> Iterator[tuple[K, V]]:
        """Yield (key, value) of the keys with this prefix, in the order of their bytes."""
        start = self._bound(prefix)
        return self._pairs(start, _after(start))

    def range(self, start: K | BytesLike | None = None, stop: K | BytesLike | None = None) -> Iterator[tuple[K, V]]:
        """Yield (key, value) of the keys from `start` up to, not including, `stop`, in the order of their bytes."""
        return self._pairs(None if start is None else self._bound(start), None if stop is None else self._bound(stop))

    def _bound(self, key: Any) -> bytes:
        raw = key if self._key_to is None else self._key_to(key)
        if not isinstance(raw, bytes | bytearray | memoryview):
            raise TypeError(key_is_not_bytes(raw))
        return bytes(raw)

    def _pairs(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[Any, Any]]:
        self.refresh()
        if stop is not None and (start or b"") >= stop:
            return iter(())
        found: Iterator[tuple[Any, Any]] = self._shared.tree.items(start, stop)
        key_of, value_of = self._key_from, self._value_from
        if key_of is None and value_of is None:
            return found
        return (
            (key if key_of is None else key_of(key), value if value_of is None else value_of(value))
            for key, value in found
        )

    # ---- how far it goes, and what comes

    def refresh(self) -> None:
        """Return when the table has everything that was committed before the call, as every read does by itself.

        StoreBusy if the table gets no further for its `wait`; with 0, what is there is taken.
        """
        if self._shared.watch.moved:
            self._shared.refresh(self._wait_s)

    def offsets(self) -> dict[int, Position]:
        """Return how far the table is built, by partition: reads that follow see at least that. For `changes`."""
        self.refresh()
        return self._shared.positions()  # type: ignore[no-any-return]  # Materialised, or what stands for a closed one

    def changes(self, start: WhereLike = "earliest", *, wait: Duration | None = 0) -> Iterator[Record[K, V]]:
        """Iterate over the records with a key from `start` on, as from `offsets()`: a value of None deletes its key.

        It ends when nothing comes for `wait`; None: it waits forever. OffsetOutOfRange if the log no longer goes back
        so far: then read the table, and go on from its `offsets`.
        """
        return _keyed(self._changes(start, wait))

    def _changes(self, start: WhereLike, wait: Duration | None) -> Consumer[Record[K, V]]:
        """Return a consumer of the table's topic."""
        self._shared.check_usable()
        return Consumer(
            self._core,
            self.topic,
            start=start,
            wait=wait,
            serde=self._serde,
            key_serde=self._key_serde,
            store=self._store,
        )

    @property
    def maintains(self) -> bool:
        """Whether it is this process that applies new records to the table, for itself and the others."""
        return bool(self._shared.maintains)

    def close(self) -> None:
        """Release the table; the last user in a process closes it. Iterations that have not ended keep it open."""
        shared, self._shared = self._shared, _CLOSED
        if shared is not _CLOSED:
            release(shared)


class _Converting(Table[Any, Any]):
    """With a serde. (Without one, what this does for each key is a third of the cost of a read.)"""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        value = Table.get(self, key if self._key_to is None else self._key_to(key))
        if value is None:
            raise KeyError(key)
        return value if self._value_from is None else self._value_from(value)

    def get(self, key: Any, default: Any = None, *, wait: Duration | None = None) -> Any:
        """Return the value of `key`. With a `wait` of its own; 0: what the table has now, be it behind its log."""
        value = Table.get(self, key if self._key_to is None else self._key_to(key), wait=wait)
        if value is None:
            return default
        return value if self._value_from is None else self._value_from(value)

    def __contains__(self, key: object) -> bool:
        return Table.get(self, key if self._key_to is None else self._key_to(key)) is not None


class _Items(ItemsView[Any, Any]):
    __slots__ = ()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._mapping.range()  # type: ignore[attr-defined, no-any-return]  # a Table


class _Values(ValuesView[Any]):
    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping.range())  # type: ignore[attr-defined]  # a Table


def open_table(
    core: Core, topic: str, *, serde: Serde | None, key_serde: Serde | None, wait: Duration | None
) -> Table[Any, Any]:
    """Return the table of a topic; its reader is chosen by the types of keys and values."""
    plain = key_pair(key_serde, serde) == value_pair(serde) == (None, None)
    return (Table if plain else _Converting)(core, topic, serde=serde, key_serde=key_serde, wait=wait)


class _Closed:
    """Stands for what a table read from before it was closed."""

    maintains = False

    @property
    def watch(self) -> Any:
        raise Closed("the table is closed", hint="open another with store.table()")

    def check_usable(self) -> None:
        _ = self.watch


_CLOSED = _Closed()


def _keyed(consumer: Consumer[Any]) -> Iterator[Any]:
    with consumer:
        for record in consumer:
            if record.key is not None:
                yield record


def _after(prefix: bytes) -> bytes | None:
    """Return the least key after all that begin with this prefix, or None."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
