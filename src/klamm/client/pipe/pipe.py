"""A pipe: a Python function between topics, exactly once. Made by `store.pipe`.

It reads as a member of a group, in as many processes and threads as one likes: partitions are shared, and move. How it
reads and commits: runner.py. What the function returns: output.py. What it keeps: state.py.

`stop`, Ctrl-C and SIGTERM end `run` after the record that is at hand, and what is done is committed. When the function
raises, or returns what cannot be sent:

    on_error="stop"           the transaction is aborted, and the error raised; what was not committed is read again
    on_error="dead-letter"    the record becomes a dead letter (client/work/dead_letters.py), its state stays as it was,
                              and the pipe goes on
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Self

from klamm.choices import OffsetReset, PipeErrorPolicy, options_of
from klamm.client.consume.consumer import Consumer, session_of
from klamm.client.consume.interrupt import Loop
from klamm.client.options import check_count, choice, is_async
from klamm.client.pipe.output import PipeFunction
from klamm.client.pipe.runner import Counts, PipeRunner
from klamm.client.pipe.state import States
from klamm.client.serde import Serde, key_pair, value_pair
from klamm.client.work.dead_letters import DeadLetterBox
from klamm.errors import Closed, InvalidSetting, KlammError, StoreError
from klamm.store.directory import Core
from klamm.store.handle import StoreHandle
from klamm.store.names import check_type
from klamm.times import Duration, to_timeout
from klamm.types import PipeReport

__all__ = ["Pipe"]

_TIMEOUT_S = 60.0  # of a transaction; others end it then
_CLOSING_S = 60.0  # how long `close` waits for the function
_log = logging.getLogger("klamm")


class Pipe(StoreHandle, by="store.pipe(…)", of=Core):
    """Made by `store.pipe()`. One thread calls `run`; `stop` and `close` may be called from any."""

    def __init__(
        self,
        core: Core,
        store: Any,
        topic: str,
        function: Callable[..., Any],
        *,
        to: str | Iterable[str] = (),
        state: str | None = None,
        group: str | None = None,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        auto_offset_reset: OffsetReset | None = None,
        on_error: PipeErrorPolicy = "stop",
        max_records: int = 1000,
        max_poll_interval_ms: int = 300_000,
    ) -> None:
        if not callable(function):
            raise TypeError(f"the function of a pipe is a callable, not {type(function).__name__}")
        if is_async(function):
            raise TypeError("the function of a pipe is a def, not an async def (consumer.run() takes both)")
        check_count(max_records)
        policy = choice("on_error", on_error, dict(zip(*[options_of(PipeErrorPolicy)] * 2, strict=True)))
        topics = _names_of(to)
        _check_topics(core, topic, topics, state)
        keys, values = key_pair(key_serde, serde), value_pair(serde)
        self.topic = topic
        self.group = ".".join(["pipe", topic, *(topics or [str(state)])]) if group is None else group
        self._path = core.path
        self._thread: int | None = None  # that runs
        self._ended = threading.Condition()
        self._is_closing = False
        states = None if state is None else States(core, state, topic, values, self._stay_member)
        self._consumer = Consumer(
            core,
            topic,
            group=self.group,
            auto_offset_reset=auto_offset_reset,
            max_poll_interval_ms=max_poll_interval_ms,
            store=store,
        )
        self._session = session_of(self._consumer)
        self._runner = PipeRunner(
            self._consumer,
            PipeFunction(
                function, topics, has_branches=not isinstance(to, str) and topics != (), keys=keys, values=values
            ),
            states,
            DeadLetterBox(core, None, self.group) if policy == "dead-letter" else None,
            max_records=max_records,
            timeout_s=max(0.001, min(_TIMEOUT_S, max_poll_interval_ms / 2000)),  # over when its partitions are lost
        )
        core.look_after()

    def __repr__(self) -> str:
        return f"<Pipe of {self._path}: {self.topic}, group {self.group}>"

    def __reduce__(self) -> str:
        raise TypeError("a pipe cannot be pickled; pickle the store, and make the pipe from it there")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- running

    def run(self, wait: Duration | None = None) -> PipeReport:
        """Take records until `stop`, Ctrl-C or SIGTERM; with `wait`, until none comes for so long.

        Return how many records this run has read and committed, and what came of them.
        """
        wait_s = to_timeout("wait", wait)
        self._begin()
        try:
            with Loop(self._session.wake, is_bounded=False, is_call=True) as loop:
                self._runner.read(wait_s, lambda: loop.interrupted or self._session.is_stopped)
        except KlammError as error:
            if not self._is_closing:
                raise
            _log.warning("%r: was closed, and has not committed its last records: %s", self, error)
        finally:
            self._finish()
        done = self._runner.done
        return PipeReport(done.records, done.outputs, done.dead_lettered)

    def _begin(self) -> None:
        with self._ended:
            if self._is_closing:
                raise Closed("the pipe is closed", hint="make another with store.pipe()")
            self._session.check_usable()
            if self._thread is not None:
                raise StoreError("the pipe is running", hint="make another pipe for another thread")
            self._thread = threading.get_ident()
        assert self._session.sharing is not None
        self._session.sharing.runner = self._runner
        self._runner.done = Counts()

    def _finish(self) -> None:
        """Abort what an exception has left open, and allow the pipe to be closed."""
        assert self._session.sharing is not None
        try:
            self._runner.abort()
        finally:
            self._session.sharing.runner = None
            with self._ended:
                self._thread = None
                self._ended.notify_all()
            if self._is_closing:
                self._consumer.close()

    def _stay_member(self) -> None:
        """Reset the watchdog of the group, which counts from the last poll."""
        assert self._session.member is not None
        self._session.member.polled()

    # ---- the end

    def stop(self) -> None:
        """End `run` after the record that is at hand, and every later one. May be called from any thread."""
        self._session.stop()

    def close(self) -> None:
        """End `run`, as `stop` does, wait for it, and leave the group. In the function: when it has returned."""
        self.stop()
        with self._ended:
            self._is_closing = True
            if self._thread == threading.get_ident():
                return  # `run` does the rest
            self._ended.wait_for(lambda: self._thread is None, _CLOSING_S)
        self._consumer.close()


def _names_of(to: Any) -> tuple[str, ...]:
    """Return the names of the outputs: `to` is one, or several."""
    if isinstance(to, str):
        return (to,)
    if isinstance(to, bytes) or not isinstance(to, Iterable):
        raise TypeError(f"to: the name of a topic, or several, not {type(to).__name__}")
    return tuple(map(check_type, to))


def _check_topics(core: Core, topic: str, outputs: tuple[str, ...], state: str | None) -> None:
    if not outputs and state is None:
        raise InvalidSetting("a pipe without outputs and state has no effect", hint="name topics with to= or state=")
    names = [topic, *outputs, *([] if state is None else [state])]
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise InvalidSetting(
            f"{twice[0]!r} is named twice", hint="the input, each output and the state of a pipe are different topics"
        )
    for name in (topic, *outputs):
        core.topic(name)  # UnknownTopic
