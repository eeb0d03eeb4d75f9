"""Options of format("klamm"): what they mean, and one sentence for whatever does not fit. Without Spark."""

from __future__ import annotations

import os

import pytest

from klamm.errors import InvalidSetting
from klamm.spark.offsets import EARLIEST, LATEST
from klamm.spark.option_names import SOURCE_OPTIONS
from klamm.spark.options import ReadOptions


def parsed(streaming: bool | None = False, **given: str) -> ReadOptions:
    return ReadOptions.parse({"path": "events", "subscribe": "orders"} | given, streaming=streaming)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    batch, stream = parsed(), parsed(streaming=True)
    assert batch.path == os.path.abspath("events")
    assert batch.subscription.names == ("orders",)
    assert batch.starting.everywhere == EARLIEST and stream.starting.everywhere == LATEST
    assert batch.ending.everywhere == LATEST
    assert batch.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert batch.fail_on_data_loss and batch.committed
    assert (batch.min_partitions, batch.max_offsets, batch.group) == (0, None, None)


def test_names_are_known_in_any_case() -> None:
    lower = parsed(startingoffsets="EARLIEST", INCLUDEHEADERS="True", failondataloss="false", columns="VALUE, offset")
    assert lower.starting.everywhere == EARLIEST
    assert lower.columns == ("value", "offset", "headers")
    assert not lower.fail_on_data_loss


def test_topics_are_named_matched_or_assigned() -> None:
    assert parsed(subscribe=" a, b ,a,").subscription.names == ("a", "b")
    pattern = ReadOptions.parse({"path": "e", "subscribePattern": "or.*"}, streaming=False).subscription
    assert pattern.wants("orders") and not pattern.wants("my-orders")
    assigned = ReadOptions.parse({"path": "e", "assign": '{"a": [2, 0, 2], "b": [1]}'}, streaming=False).subscription
    assert assigned.partitions("a", 9) == (0, 2) and assigned.wants("b") and not assigned.wants("c")


@pytest.mark.parametrize(
    ("path", "directory"),
    [("/data/e", "/data/e"), ("file:/data/e", "/data/e"), ("file:///data/e", "/data/e"), ("e/../f/", None)],
)
def test_path_is_made_absolute(path: str, directory: str | None) -> None:
    assert parsed(path=path).path == (directory or os.path.abspath("f"))


WRONG: list[tuple[bool | None, dict[str, str], str]] = [
    (None, {"startingOfset": "earliest"}, "no option 'startingOfset' (did you mean 'startingOffsets'?)"),
    (None, {"pth": "x"}, "did you mean 'path'?"),
    (None, {"kafka.bootstrap.servers": "h:1"}, 'options of Kafka clients are for format("kafka")'),
    (None, {"zzz": "x"}, "there are path, subscribe"),
    (None, {"path": " "}, "the option path is missing"),
    (None, {"path": "kafka://host:9092"}, 'format("kafka")'),
    (None, {"subscribePattern": "a.*"}, "subscribe and subscribePattern are both given"),
    (None, {"subscribe": " , "}, "names no topic"),
    (None, {"startingOffsets": "soon"}, "startingOffsets: 'soon' is invalid"),
    (None, {"startingOffsets": "[1]"}, "startingOffsets: '[1]' is invalid"),
    (None, {"startingOffsets": '{"orders": 5}'}, "'orders' has no offsets by partition"),
    (None, {"startingOffsets": '{"orders": {"x": 5}}'}, "'x' is not a partition"),
    (None, {"startingOffsets": '{"orders": {"0": -3}}'}, "orders/0: -3 is not a valid offset"),
    (None, {"startingOffsets": '{"orders": {"0": true}}'}, "orders/0: True is not a valid offset"),
    (None, {"startingTimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is invalid"),
    (None, {"startingTimestamp": "1", "startingOffsets": "earliest"}, "are both given"),
    (None, {"minPartitions": "0"}, "minPartitions: '0' is invalid (expected a whole number from 1 on)"),
    (None, {"minPartitions": "many"}, "minPartitions: 'many' is invalid"),
    (None, {"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is invalid (expected true or false)"),
    (None, {"isolation": "dirty"}, "expected 'read_committed' or 'read_uncommitted'"),
    (None, {"columns": "valu"}, "there is no column 'valu' (did you mean 'value'?)"),
    (None, {"columns": ""}, "columns are none"),
    (None, {"endingOffsets": "earliest"}, "cannot end at the earliest"),
    (None, {"groupId": ""}, "groupId: '' is invalid"),
    (False, {"startingOffsets": "latest"}, "a batch cannot start at the latest"),
    (False, {"startingOffsets": '{"orders": {"0": -1}}'}, "a batch cannot start at the latest"),
    (False, {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger: is for streaming queries only"),
    (False, {"groupId": "g"}, "groupId: is for streaming queries only"),
    (True, {"endingOffsets": "latest"}, "endingOffsets: is for batch queries only"),
    (True, {"endingTimestamp": "5"}, "endingTimestamp: is for batch queries only"),
    (True, {"endingOffsetsByTimestamp": '{"a": {"0": 1}}'}, "endingOffsetsByTimestamp: is for batch queries only"),
    (None, {"startingOffsetsByTimestamp": "earliest"}, "'earliest' is invalid (expected JSON with milliseconds"),
    (None, {"startingOffsetsByTimestamp": "{}"}, "names no partition"),
    (None, {"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "a/0: -1 is not a valid time"),
    (
        None,
        {"startingOffsetsByTimestamp": '{"a": {"0": 1}}', "startingTimestamp": "1"},
        "startingTimestamp and startingOffsetsByTimestamp are both given",
    ),
    (None, {"startingOffsetsByTimestampStrategy": "guess"}, "'guess' is invalid (expected error or latest)"),
    (None, {"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition: '0' is invalid"),
    (True, {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "9 is more than maxOffsetsPerTrigger, 5"),
    (True, {"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "maxTriggerDelay: 'soon' is invalid"),
    (True, {"maxTriggerDelay": "5m"}, "maxTriggerDelay: is for minOffsetsPerTrigger (give both, or neither)"),
    (False, {"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger: is for streaming queries only"),
]


@pytest.mark.parametrize(("streaming", "given", "said"), WRONG, ids=lambda value: str(value)[:50])
def test_what_does_not_fit_is_told_in_one_sentence(streaming: bool | None, given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parsed(streaming, **given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("90s", 90), ("1h30m", 5400), ("250", 0.25), ("250ms", 0.25), ("2min", 120)]
)
def test_the_longest_delay_of_a_trigger_is_spelled_as_sparks(text: str, seconds: float) -> None:
    assert parsed(True, minOffsetsPerTrigger="5", maxTriggerDelay=text).trigger_delay_s == seconds
    assert parsed(True, minOffsetsPerTrigger="5").trigger_delay_s == 900


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"a": 1}', '{"a": []}', '{"a": ["0"]}', '{"a": [-1]}'])
def test_assign_that_does_not_fit(text: str) -> None:
    with pytest.raises(InvalidSetting, match="assign"):
        ReadOptions.parse({"path": "e", "assign": text}, streaming=False)


def test_options_that_name_no_topic_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="nothing says which topics"):
        ReadOptions.parse({"path": "e"}, streaming=None)
    with pytest.raises(InvalidSetting, match="not a regular expression"):
        ReadOptions.parse({"path": "e", "subscribePattern": "("}, streaming=None)


def test_every_option_is_explained() -> None:
    import klamm.spark.options as module

    assert module.__doc__ is not None
    assert [name for name in SOURCE_OPTIONS if f"    {name} " not in module.__doc__] == []
