"""Record batches, Kafka's format: encode, check, decode, compress. Bytes in, bytes out.

    header        the format, and the header of a batch
    _kernel       encode, decode, check (native)
    codecs        compression, as Kafka frames it
    partitioner   which partition a record goes to

Nothing here touches a file, a lock or a topic's settings.
"""

from __future__ import annotations

from klamm.batch._kernel import (
    BAD_RAISE,
    BAD_RAW,
    BAD_SKIP,
    RECORDS,
    TUPLES,
    VALUES,
    BatchDelivery,
    BinaryColumn,
    BufferMemory,
    Builder,
    Columns,
    Decoder,
    Delivery,
    DeliveryReports,
    Headers,
    HeadersColumn,
    KeyMap,
    NumberColumn,
    Record,
    RecordAccumulator,
    RecordFilter,
    RecordForwarder,
    Records,
    RecordScan,
    Sending,
    batches_of,
    crc32c,
    decode,
    digest_rows,
    encode_columns,
    encode_one,
    partition_records,
    partition_rows,
    records_of,
    scan_records,
    too_large,
    verify,
    walk,
)
from klamm.batch.batch_memory import BatchMemory
from klamm.batch.codecs import CODECS, MAX_DECODED_BYTES, check_level, number_of
from klamm.batch.header import HEADER_SIZE, Header, parse
from klamm.batch.partitioner import Partitioner, murmur2, partition_for
from klamm.batch.recompression import contents, recompress

Scan = tuple[bool, int, int]
"""The result of scanning a batch's records: whether each has a key, the smallest and the largest timestamp."""

__all__ = [
    "BAD_RAISE",
    "BAD_RAW",
    "BAD_SKIP",
    "CODECS",
    "HEADER_SIZE",
    "MAX_DECODED_BYTES",
    "RECORDS",
    "TUPLES",
    "VALUES",
    "BatchDelivery",
    "BatchMemory",
    "BinaryColumn",
    "BufferMemory",
    "Builder",
    "Columns",
    "Decoder",
    "Delivery",
    "DeliveryReports",
    "Header",
    "Headers",
    "HeadersColumn",
    "KeyMap",
    "NumberColumn",
    "Partitioner",
    "Record",
    "RecordAccumulator",
    "RecordFilter",
    "RecordForwarder",
    "RecordScan",
    "Records",
    "Scan",
    "Sending",
    "batches_of",
    "check_level",
    "contents",
    "crc32c",
    "decode",
    "digest_rows",
    "encode_columns",
    "encode_one",
    "murmur2",
    "number_of",
    "parse",
    "partition_for",
    "partition_records",
    "partition_rows",
    "recompress",
    "records_of",
    "scan_records",
    "too_large",
    "verify",
    "walk",
]
