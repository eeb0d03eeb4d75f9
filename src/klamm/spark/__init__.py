"""Door 3: PySpark reads and writes a store's files. Nothing here is imported by `import klamm`.

    spark = klamm.spark.session()
    spark.read.format("klamm").option("subscribe", "orders").load("events/")
    spark.readStream.format("klamm").option("subscribe", "orders").load("events/")
    df.write.format("klamm").option("topic", "orders").mode("append").save("events/")

The package pyspark_klamm makes Spark find the format by itself. `read`, `read_stream`, `write` and `write_stream` do
the same for a directory and for kafka://host:9092.
"""

from __future__ import annotations

from klamm.spark.remote import read, read_stream, write, write_stream
from klamm.spark.session import java_home, session, session_settings, use
from klamm.spark.value_decoder import decode_avro, decode_protobuf

__all__ = [
    "decode_avro",
    "decode_protobuf",
    "java_home",
    "read",
    "read_stream",
    "session",
    "session_settings",
    "use",
    "write",
    "write_stream",
]


def __dir__() -> list[str]:
    return sorted(__all__)
