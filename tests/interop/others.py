"""Other people's codecs for record batches, behind one face: what ours is compared with.

Each gives (encode, decode, codecs it can). Records are (key, value, headers, timestamp).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.batch.strategies import Record

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python reads its schemas by a deprecated function
    import kafka.codec
    from aiokafka.record.default_records import (
        DefaultRecordBatch,
        DefaultRecordBatchBuilder,
        _DefaultRecordBatchBuilderPy,
        _DefaultRecordBatchPy,
    )
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2
    from kafka.record import default_records as kafka_python

__all__ = ["OTHERS", "Other", "kafka_python_murmur2"]


class Other(NamedTuple):
    name: str
    builder: Callable[..., Any]
    batch: Callable[[bytes], Any]
    codecs: frozenset[int]

    def encode(self, records: Sequence[Record], codec: int) -> bytes:
        builder = self.builder(
            magic=2,
            compression_type=codec,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 20,
        )
        for offset, (key, value, headers, timestamp) in enumerate(records):
            builder.append(offset, timestamp=timestamp, key=key, value=value, headers=list(headers))
        return bytes(builder.build())

    def decode(self, batch: bytes) -> list[tuple[int, Record]]:
        read = self.batch(batch)
        assert read.validate_crc()
        return [(r.offset, (r.key, r.value, tuple(map(tuple, r.headers)), r.timestamp)) for r in read]


_ALL = frozenset(range(5))
OTHERS = [
    Other("aiokafka", DefaultRecordBatchBuilder, DefaultRecordBatch, _ALL),
    Other("aiokafka in Python", _DefaultRecordBatchBuilderPy, _DefaultRecordBatchPy, _ALL),
    Other(
        "kafka-python",
        kafka_python.DefaultRecordBatchBuilder,
        kafka_python.DefaultRecordBatch,
        _ALL if kafka.codec.has_snappy() else _ALL - {2},
    ),
]
