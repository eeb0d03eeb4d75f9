"""Topics, partitions and their settings: made, changed, deleted, and refused."""

from __future__ import annotations

from typing import Any

from klamm.batch import walk
from klamm.kafka.wire.messages import (
    ALTER_CONFIGS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    PRODUCE,
)
from tests.interop.records import NOW
from tests.interop.scripts import RECORDS, ScriptContext, batch_of, script
from tests.procs import until

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def values(context: ScriptContext, topic: str, *names: str) -> dict[str, Any]:
    """What a topic's settings are, and where they come from."""
    resource = DESCRIBE_CONFIGS.request.Resource(resource_type=TOPIC, resource_name=topic, configuration_keys=names)
    (found,) = context.raw.ask(DESCRIBE_CONFIGS, 4, resources=[resource]).results
    assert found.error_code == 0
    return {each.name: (each.value, each.config_source, each.config_type) for each in found.configs}


@script
def topics_that_cannot_be(context: ScriptContext) -> None:
    existing = context.topic()
    context.create("exists", context.new(existing))
    for what, name in {
        "no name": "",
        "a dot": ".",
        "two dots": "..",
        "a space": "no space",
        "a slash": "a/b",
        "umlaut": "größe",
        "too long": "x" * 250,
    }.items():
        context.create(what, context.new(name))
    context.create("no partitions", context.new(context.name("t0"), 0))
    context.create("negative partitions", context.new(context.name("t1"), -2))
    context.create("no copies", context.new(context.name("t2"), 1, 0))
    context.create("negative copies", context.new(context.name("t3"), 1, -2))
    context.create("unknown setting", context.new(context.name("t4"), configs=[("no.such.setting", "1")]))
    context.create("odd value", context.new(context.name("t5"), configs=[("retention.ms", "soon")]))
    context.create("out of range", context.new(context.name("t6"), configs=[("segment.bytes", "-7")]))
    context.create("odd word", context.new(context.name("t7"), configs=[("cleanup.policy", "keep")]))
    context.create("null value", context.new(context.name("t8"), configs=[("retention.ms", None)]))
    name = context.name("t9")
    context.create("twice in one request", context.new(name), context.new(name))


@script
def topics_whose_names_collide(context: ScriptContext) -> None:
    dotted = context.topic(word="a.b")
    context.create("with a line for the dot", context.new(context.call(dotted.replace(".", "_"), "a_b")))


@script
def topics_are_made(context: ScriptContext) -> None:
    for version in range(2, 8):
        name = context.name(f"v{version}")
        context.create(f"v{version}", context.new(name, 2), version=version)
    context.create("default partitions", context.new(context.name("default"), -1, -1))
    name = context.name("dry")
    context.create("only tried", context.new(name, 3), validate_only=True)
    context.ask(
        "is not there", METADATA, 9, topics=[METADATA.request.Topic(name=name)], allow_auto_topic_creation=False
    )
    placed = [CREATE_TOPICS.request.Assignment(partition_index=n, broker_ids=[1]) for n in range(3)]
    context.create("placed", context.new(context.name("placed"), -1, -1, assignments=placed))
    wrong = [CREATE_TOPICS.request.Assignment(partition_index=n, broker_ids=[1]) for n in (0, 2)]
    context.create("placed with a gap", context.new(context.name("gap"), -1, -1, assignments=wrong))
    context.create("placed and counted", context.new(context.name("both"), 3, 1, assignments=placed))
    longest = context.name("x") + "x" * 236
    context.create("a long name", context.new(longest[:249]), validate_only=True)
    mixed = [context.new(context.name("good")), context.new("not good")]
    context.create("one of two", *mixed, version=4)


@script
def topics_are_deleted(context: ScriptContext) -> None:
    topic, other = context.topic(), context.topic(word="other")
    number = context.topic_id(other)
    context.ask("by name", DELETE_TOPICS, 5, topic_names=[topic], timeout_ms=20_000)
    context.until(METADATA, 9, lambda seen: seen.topics[0].error_code, topics=[METADATA.request.Topic(name=topic)], allow_auto_topic_creation=False)  # fmt: skip  # noqa: E501
    context.ask("again", DELETE_TOPICS, 5, topic_names=[topic], timeout_ms=20_000)
    named = DELETE_TOPICS.request.Topic
    context.ask("by id", DELETE_TOPICS, 6, topics=[named(topic_id=number)], timeout_ms=20_000)
    context.ask(
        "an id that is not there", DELETE_TOPICS, 6, topics=[named(topic_id=bytes(15) + b"\7")], timeout_ms=20_000
    )
    context.ask("a bad name", DELETE_TOPICS, 6, topics=[named(name="not good")], timeout_ms=20_000)
    context.ask("nothing", DELETE_TOPICS, 6, topics=[], timeout_ms=20_000)
    context.produce("write to it", topic, batch_of(RECORDS))
    context.fetch("read from it", topic, 0)
    context.create("make it again", context.new(topic), version=4)
    until(lambda: context.raw.leads(topic, 1), "it is there")
    context.produce("it is empty", topic, batch_of(RECORDS))


@script
def partitions_are_added(context: ScriptContext) -> None:
    topic = context.topic(2)
    kind = CREATE_PARTITIONS.request.Topic

    def add(what: str, *topics: Any, validate_only: bool = False) -> None:
        fields = {"timeout_ms": 20_000, "validate_only": validate_only}
        context.ask(what, CREATE_PARTITIONS, 3, topics=list(topics), **fields)

    add("as many", kind(name=topic, count=2, assignments=None))
    add("fewer", kind(name=topic, count=1, assignments=None))
    add("none", kind(name=topic, count=0, assignments=None))
    add("negative", kind(name=topic, count=-1, assignments=None))
    add("a topic that is not there", kind(name=context.name("missing"), count=3, assignments=None))
    add("only tried", kind(name=topic, count=9, assignments=None), validate_only=True)
    placed = CREATE_PARTITIONS.request.Assignment
    add("placed", kind(name=topic, count=3, assignments=[placed(broker_ids=[1])]))
    add("placed too few", kind(name=topic, count=6, assignments=[placed(broker_ids=[1])]))
    add("more", kind(name=topic, count=5, assignments=None))
    add("twice in one request", *[kind(name=topic, count=7, assignments=None)] * 2)
    seen = context.until(METADATA, 9, lambda seen: len(seen.topics[0].partitions) == 5, topics=[METADATA.request.Topic(name=topic)])  # fmt: skip  # noqa: E501
    context.note("five", [each.partition_index for each in seen.topics[0].partitions])
    until(lambda: context.raw.leads(topic, 5), "all are served")
    context.produce("write to the last", topic, batch_of(RECORDS), 4)


DESCRIBED = [
    "cleanup.policy",
    "delete.retention.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
]


@script
def settings_are_described(context: ScriptContext) -> None:
    topic = context.topic(retention_ms="123456789", cleanup_policy="compact,delete")
    for name, told in values(context, topic, *DESCRIBED).items():
        context.note(name, told)
    context.note("what is not there", values(context, topic, "no.such.setting"))

    def describe(what: str, kind: int, name: str, version: int = 4) -> None:
        resource = DESCRIBE_CONFIGS.request.Resource(
            resource_type=kind, resource_name=name, configuration_keys=["cleanup.policy"]
        )
        answer = context.raw.ask(DESCRIBE_CONFIGS, version, resources=[resource], include_synonyms=True)
        for each in answer.results:
            for config in each.configs:
                config.synonyms = [(synonym.value, synonym.source) for synonym in config.synonyms]
        context.note(what, answer)

    for version in range(1, 5):
        describe(f"v{version}", TOPIC, topic, version)
    describe("a topic that is not there", TOPIC, context.name("missing"))
    describe("a bad name", TOPIC, "not good")
    describe("a broker that is not there", BROKER, "77")
    describe("a broker that is no number", BROKER, "one")
    describe("an odd kind", 99, topic)


@script
def settings_are_changed(context: ScriptContext) -> None:
    topic = context.topic()

    def change(
        what: str, *entries: tuple[str, int, str | None], name: str = topic, kind: int = TOPIC, dry: bool = False
    ) -> None:
        configs = [
            INCREMENTAL_ALTER_CONFIGS.request.Config(name=each, config_operation=how, value=value)
            for each, how, value in entries
        ]
        resource = INCREMENTAL_ALTER_CONFIGS.request.Resource(resource_type=kind, resource_name=name, configs=configs)
        answer = context.ask(what, INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=dry)
        if answer and not answer.responses[0].error_code and not dry and kind == TOPIC:
            # What a broker says it has changed, it may see a moment later.
            wanted = {each: value for each, how, value in entries if how == SET}
            until(lambda: all(values(context, topic, n)[n][0] == v for n, v in wanted.items()), f"{wanted} is seen")

    change("set", ("retention.ms", SET, "5000"), ("segment.bytes", SET, "2000000"))
    change("tried", ("retention.ms", SET, "7000"), dry=True)
    context.note("is set", values(context, topic, "retention.ms", "segment.bytes"))
    change("append", ("cleanup.policy", APPEND, "compact"))
    until(lambda: "compact" in values(context, topic, "cleanup.policy")["cleanup.policy"][0], "appended")
    context.note("is appended", values(context, topic, "cleanup.policy"))
    change("append again", ("cleanup.policy", APPEND, "compact"))
    change("subtract", ("cleanup.policy", SUBTRACT, "delete"))
    until(lambda: "delete" not in values(context, topic, "cleanup.policy")["cleanup.policy"][0], "subtracted")
    context.note("is subtracted", values(context, topic, "cleanup.policy"))
    change("append to a number", ("retention.ms", APPEND, "1"))
    change("delete", ("retention.ms", DELETE, None))
    until(lambda: values(context, topic, "retention.ms")["retention.ms"][1] == 5, "deleted")
    change("delete again", ("retention.ms", DELETE, None))
    change("set to null", ("retention.ms", SET, None))
    change("odd value", ("retention.ms", SET, "soon"), ("segment.bytes", SET, "3000000"))
    context.note("nothing of it is set", values(context, topic, "segment.bytes"))
    change("unknown setting", ("no.such.setting", SET, "1"))
    change("out of range", ("segment.bytes", SET, "1"))
    change("an odd operation", ("retention.ms", 9, "1"))
    change("twice", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    change("nothing")
    change("a topic that is not there", ("retention.ms", SET, "1"), name=context.name("missing"))
    change("an odd kind", ("retention.ms", SET, "1"), kind=99)


@script
def settings_are_replaced(context: ScriptContext) -> None:
    topic = context.topic(segment_bytes="2000000")

    def replace(what: str, name: str, *entries: tuple[str, str | None], dry: bool = False) -> None:
        configs = [ALTER_CONFIGS.request.Config(name=each, value=value) for each, value in entries]
        resource = ALTER_CONFIGS.request.Resource(resource_type=TOPIC, resource_name=name, configs=configs)
        context.ask(what, ALTER_CONFIGS, 2, resources=[resource], validate_only=dry)

    replace("tried", topic, ("retention.ms", "1"), dry=True)
    replace("replaced", topic, ("retention.ms", "5000"))
    until(lambda: values(context, topic, "retention.ms")["retention.ms"][0] == "5000", "replaced")
    context.note("the other is gone", values(context, topic, "retention.ms", "segment.bytes"))
    replace("odd value", topic, ("retention.ms", "soon"))
    replace("unknown setting", topic, ("no.such.setting", "1"))
    replace("null", topic, ("retention.ms", None))
    replace("a topic that is not there", context.name("missing"), ("retention.ms", "1"))


@script
def a_limit_that_changes_counts(context: ScriptContext) -> None:
    topic = context.topic()
    context.produce("before", topic, batch_of([(None, b"x" * 2000, (), 1_700_000_000_000)]))
    config = INCREMENTAL_ALTER_CONFIGS.request.Config(name="max.message.bytes", config_operation=SET, value="1000")
    resource = INCREMENTAL_ALTER_CONFIGS.request.Resource(resource_type=TOPIC, resource_name=topic, configs=[config])
    context.ask("changed", INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    until(lambda: values(context, topic, "max.message.bytes")["max.message.bytes"][0] == "1000", "seen")
    large = batch_of([(None, b"x" * 2000, (), 1_700_000_000_000)])

    def refused() -> int:
        """Kafka's log hears of it a moment later."""
        part = PRODUCE.request.Partition(index=0, records=large)
        data = [PRODUCE.request.Topic(name=topic, partition_data=[part])]
        answer = context.raw.ask(PRODUCE, 9, acks=-1, timeout_ms=20_000, topic_data=data)
        return int(answer.responses[0].partition_responses[0].error_code)

    context.note("after", until(refused, "it is refused"))


@script
def a_topic_has_a_codec(context: ScriptContext) -> None:
    def codecs(topic: str) -> list[int]:
        asked = [FETCH.request.Partition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        topics = [FETCH.request.Topic(topic=topic, partitions=asked)]
        (told,) = context.raw.ask(FETCH, 12, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics).responses
        return [header.attributes & 7 for header in walk(told.partitions[0].records)]

    for word in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"):
        topic = context.topic(word=word, compression_type=word)
        for codec in range(5):
            context.produce(f"{word}: {codec}", topic, batch_of(RECORDS, codec))
        context.fetch(f"{word}: read", topic, 0)
        context.note(f"{word}: codecs", codecs(topic))
    small = context.topic(word="small", compression_type="uncompressed", max_message_bytes="500")
    context.produce("too large when it is not packed", small, batch_of([(None, b"x" * 5000, (), NOW)], 1))
    names = ("compression.type", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level")
    context.note("settings", values(context, topic, *names))
    levels = context.topic(
        word="levels", compression_gzip_level="9", compression_lz4_level="17", compression_zstd_level="-5"
    )
    context.note("levels", values(context, levels, *names))
    for name, value in (
        ("gzip.level", "0"),
        ("gzip.level", "10"),
        ("lz4.level", "18"),
        ("zstd.level", "23"),
        ("type", "x"),
    ):
        config = CREATE_TOPICS.request.Config(name=f"compression.{name}", value=value)
        new = CREATE_TOPICS.request.Topic(
            name=context.name("bad"), num_partitions=1, replication_factor=1, configs=[config]
        )
        context.ask(f"{name} {value}", CREATE_TOPICS, 7, topics=[new], timeout_ms=30_000)
