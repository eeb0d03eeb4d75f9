"""A producer of a cluster: librdkafka batches, compresses, sends again and acknowledges.

What Producer promises of a directory holds here, too: records of a partition keep their order (SND4), a failure is
raised by the next send, flush or close and by its Delivery (SND5), the buffer is bounded (SND6), and what was sent is
delivered or has failed (SND7). With acks="all" a record that is sent again by librdkafka is in the log once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self

from klamm.choices import Acks, Compression
from klamm.client.options import acks_of
from klamm.client.produce.producer import Producer
from klamm.client.produce.target import codec_of
from klamm.client.serde import Serde, Serializer, key_pair, value_pair
from klamm.cluster.record_stream import RecordStream
from klamm.disk import fork
from klamm.errors import Closed, Forked, InvalidSetting, KlammError, ReadOnly, RecordTooLarge, StoreError
from klamm.times import Duration, to_timeout
from klamm.typevars import K, V

if TYPE_CHECKING:
    from klamm.batch import Partitioner
    from klamm.cluster.cluster_core import ClusterCore

__all__ = ["STICKY_BYTES", "ClusterProducer", "batch_config", "compression_config"]

STICKY_BYTES = 64 << 10
"""Of records without a key, before they go on to the next partition."""


def compression_config(compression: str | None, level: int | None) -> dict[str, Any]:
    """Return librdkafka's options for a codec, after codec and level were checked."""
    codec_of(compression, level)
    if compression is None:
        return {}
    return {"compression.type": compression, **({} if level is None else {"compression.level": level})}


def batch_config(batch_bytes: int | None) -> dict[str, Any]:
    """Return librdkafka's options for the size of batches. None: those that it has, or the address."""
    return {} if batch_bytes is None else {"batch.size": max(1, min(int(batch_bytes), 1 << 30))}


class ClusterProducer(Producer[K, V]):
    """Made by `store.producer()` of a cluster. Threads may share it; forked children may not."""

    def __init__(
        self,
        core: ClusterCore,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        acks: Acks = "all",
        compression: Compression | None = None,
        compression_level: int | None = None,
        linger_ms: float = 5,
        batch_bytes: int | None = None,
        buffer_memory: int = 32 << 20,
        max_block_ms: float = 60_000,
        partitioner: Partitioner | None = None,
        idempotent: bool = False,
    ) -> None:
        if core.read_only:
            raise ReadOnly(f"{core.path}: opened for reading only")
        if partitioner is not None and not callable(partitioner):
            raise TypeError(f"partitioner is {type(partitioner).__name__}; expected a callable (key, count)")
        for name, value, least in (
            ("linger_ms", linger_ms, 0),
            ("batch_bytes", 1 if batch_bytes is None else batch_bytes, 1),
            ("buffer_memory", buffer_memory, 1),
            ("max_block_ms", max_block_ms, 0),
        ):
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise TypeError(f"{name} is a number, not {type(value).__name__}")
            if not value >= least:
                raise InvalidSetting(f"{name}: {value} is invalid", hint=f"expected at least {least}")
        if idempotent and acks != "all":
            raise InvalidSetting("idempotent: goes with acks='all'", hint="leave acks out")
        self._core = core
        self._accumulators = {}
        self._store = None
        self._closed = self._forked = False
        self._errors: list[KlammError] = []
        config = {
            "linger.ms": linger_ms,
            **batch_config(batch_bytes),
            **compression_config(compression, compression_level),
        }
        self._stream = RecordStream(
            core,
            config,
            acks=acks_of(acks),
            buffer_memory=int(buffer_memory),
            block_s=max_block_ms / 1000,
            sticky_bytes=STICKY_BYTES if linger_ms else 1,
            partitioner=partitioner,
            serializer=Serializer(key_pair(key_serde, serde).to_bytes, value_pair(serde).to_bytes),
            on_error=partial(_note, self._errors, self._accumulators),
        )
        fork.register(self, ClusterProducer._in_child)

    def __repr__(self) -> str:
        return f"<Producer of {self._core.path}{', closed' if self._closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def _find_accumulator(self, topic: str) -> Any:
        """Return what takes the topic's records. Raise what went wrong with earlier ones, if that was not told yet."""
        if not isinstance(topic, str):
            raise TypeError(f"a topic's name is a str, not {type(topic).__name__}")
        self._check_usable()
        found: Any = self._stream.forwarder(topic)
        self._accumulators[topic] = found  # before the look at errors: one that comes later clears it
        self._raise_failed()
        return found

    def _too_large(self, topic: str, error: RecordTooLarge) -> RecordTooLarge:
        return error

    @property
    def _is_full(self) -> bool:
        return False  # `send` waits

    def flush(self, timeout: Duration | None = None) -> None:
        self._check_usable()
        self._check_not_in_callback("flush()")
        self._await(to_timeout("timeout", timeout))

    def _await(self, timeout_s: float | None) -> None:
        if not self._stream.wait(timeout_s):
            raise TimeoutError(f"not everything was delivered within {timeout_s:g} s")
        self._raise_failed()

    def close(self, timeout: Duration | None = None) -> None:
        if self._forked:
            return
        self._check_not_in_callback("close()")
        timeout_s = to_timeout("timeout", timeout)
        self._closed = True
        self._accumulators.clear()
        try:
            self._await(timeout_s)
        finally:
            self._stream.close(timeout_s)

    def _check_not_in_callback(self, call: str) -> None:
        if self._stream.is_in_callback:
            raise StoreError(
                f"{call} in a callback of a delivery would wait for itself",
                hint="call it in another thread, or when the callback has returned",
            )

    def _raise_failed(self) -> None:
        errors, self._errors[:] = list(self._errors), []
        if errors:
            self._accumulators.clear()
            error = errors[0].with_traceback(None)
            if len(errors) > 1:
                error.add_note(f"{len(errors)} records failed since this was last told")
            raise error

    def _check_usable(self) -> None:
        if self._forked:
            raise Forked(
                "this producer was made before the fork", hint="make another with store.producer() in the child"
            )
        if self._closed:
            raise Closed("the producer is closed", hint="make another with store.producer()")

    def _in_child(self) -> None:
        self._forked = True
        self._accumulators.clear()


def _note(errors: list[KlammError], accumulators: dict[str, Any], error: KlammError) -> None:
    """Let the next `send` raise an error."""
    errors.append(error)
    accumulators.clear()
