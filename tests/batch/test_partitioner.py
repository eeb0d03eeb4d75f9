from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import murmur2, partition_for, partition_records
from klamm.batch.partitioner import checked_partition

# From Kafka's own test of org.apache.kafka.common.utils.Utils.murmur2.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", JAVA)
def test_murmur2_gives_the_hash_that_java_gives(key: bytes) -> None:
    assert murmur2(key) == murmur2(bytearray(key)) == JAVA[key]


@given(st.binary(max_size=20), st.integers(1, 10_000))
def test_a_key_goes_to_its_positive_hash_modulo_the_partitions(key: bytes, count: int) -> None:
    assert partition_for(key, count) == (murmur2(key) & 0x7FFFFFFF) % count


def test_no_key_and_no_partition_are_refused() -> None:
    with pytest.raises(TypeError, match="None"):
        partition_for(None, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="str"):
        murmur2("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 partitions"):
        partition_for(b"k", 0)


@pytest.mark.parametrize(("chosen", "error"), [(3, ValueError), (-1, ValueError), (True, TypeError), ("1", TypeError)])
def test_what_a_partitioner_of_ones_own_gives_is_checked(chosen: object, error: type[Exception]) -> None:
    assert checked_partition(2, 3) == 2
    with pytest.raises(error, match="the partitioner gave"):
        checked_partition(chosen, 3)


@given(st.lists(st.tuples(st.none() | st.binary(max_size=5), st.binary(max_size=5))), st.integers(1, 5), st.data())
def test_a_list_is_split_by_key_and_keeps_its_order(
    records: list[tuple[bytes | None, bytes]], count: int, data: st.DataObject
) -> None:
    keyless = data.draw(st.integers(0, count - 1))
    want: list[list[tuple[bytes | None, bytes]]] = [[] for _ in range(count)]
    for record in records:
        want[keyless if record[0] is None else partition_for(record[0], count)].append(record)
    assert partition_records(records, count, keyless) == want
    assert partition_records(tuple(records), count, keyless) == want


@pytest.mark.parametrize("record", [b"k", (), ("text", b"v"), 7])
def test_what_is_no_record_cannot_be_split(record: object) -> None:
    with pytest.raises(TypeError):
        partition_records([(b"k", b"v"), record], 3, 0)  # type: ignore[list-item]
