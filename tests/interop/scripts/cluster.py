"""What a broker says of itself, and how it takes what it does not understand."""

from __future__ import annotations

from klamm.kafka.wire.frames import read_response, request_frame
from klamm.kafka.wire.messages import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_TOPIC_PARTITIONS,
    METADATA,
    SASL_HANDSHAKE,
)
from tests.interop.scripts import RECORDS, ScriptContext, batch_of, script


@script
def versions(context: ScriptContext) -> None:
    known = {"client_software_name": "script", "client_software_version": "1.0"}
    for version in range(5):
        answer = context.raw.ask(API_VERSIONS, version, **known)
        context.note(f"v{version}", [answer.error_code, len(answer.api_keys) > 30])
    answer = context.raw.ask(API_VERSIONS, 3, client_software_name="no good!", client_software_version="1.0")
    context.note("an odd name", [answer.error_code, len(answer.api_keys) > 0])
    # From the future: answered in version 0, so that the client can try again.
    data = b"".join(request_frame(API_VERSIONS, 3, 77, None, API_VERSIONS.request(**known)))
    number, answer = read_response(API_VERSIONS, 0, context.ask_bytes("future", data[:6] + b"\0\x63" + data[8:]) or b"")
    mine = [(each.api_key, each.min_version) for each in answer.api_keys if each.api_key == API_VERSIONS.key]
    context.note("from the future", [number, answer.error_code, mine])


@script
def requests_that_nobody_understands(context: ScriptContext) -> None:
    context.ask_bytes("an API that is not there", b"\0\0\0\x0a\x03\xe7\0\0\0\0\0\1\xff\xff")
    context.ask_bytes("a version that is not there", b"\0\0\0\x0a\0\x03\0\x63\0\0\0\1\xff\xff")
    context.ask_bytes("a size below zero", b"\xff\xff\xff\xff")
    context.ask_bytes("a size beyond all", b"\x7f\xff\xff\xff" + bytes(100))
    context.ask_bytes("an empty frame", bytes(4))
    context.ask_bytes("half a request", b"\0\0\0\x0c\0\x03\0\1\0\0\0\1\xff\xff\x7f\xff")
    context.ask_bytes("an array too long", b"\0\0\0\x0e\0\x03\0\1\0\0\0\1\xff\xff\x7f\xff\xff\xff")
    context.ask_bytes("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    context.ask("and it still answers", DESCRIBE_CLUSTER, 1)


@script
def a_request_with_too_much_behind_it(context: ScriptContext) -> None:
    data = b"".join(request_frame(API_VERSIONS, 0, 5, None, API_VERSIONS.request())) + b"rubbish"
    answer = context.ask_bytes("rubbish behind it", (len(data) - 4).to_bytes(4, "big") + data[4:])
    context.note("is answered", answer is not None)


@script
def metadata_of_topics(context: ScriptContext) -> None:
    topic, missing = context.topic(2), context.name("missing")
    kind = METADATA.request.Topic
    for version in range(14):
        fields = {"allow_auto_topic_creation": False} if version >= 4 else {}
        if version:  # in version 0, no topics are all topics
            context.ask(f"v{version}, none", METADATA, version, topics=[], **fields)
        context.ask(f"v{version}", METADATA, version, topics=[kind(name=topic)], **fields)
    no_more = {"allow_auto_topic_creation": False}
    context.ask("not there", METADATA, 9, topics=[kind(name=missing)], **no_more)
    for what, name in {"a space": "no space", "no name": "", "a dot": ".", "long": "x" * 250}.items():
        context.ask(what, METADATA, 9, topics=[kind(name=name)], **no_more)
    context.ask("by id", METADATA, 12, topics=[kind(topic_id=context.topic_id(topic), name=None)], **no_more)
    context.ask(
        "by an id that is not there", METADATA, 12, topics=[kind(topic_id=bytes(15) + b"\7", name=None)], **no_more
    )
    context.ask("twice", METADATA, 9, topics=[kind(name=topic), kind(name=topic)], **no_more)
    rights = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    context.ask("with rights", METADATA, 9, topics=[kind(name=topic)], **rights, **no_more)
    everything = context.raw.ask(METADATA, 9, topics=None, **no_more)
    context.note("all", [topic in {each.name for each in everything.topics}, everything.controller_id])
    old = context.raw.ask(METADATA, 0, topics=[])
    context.note("all, old", topic in {each.name for each in old.topics})


@script
def metadata_makes_topics(context: ScriptContext) -> None:
    name = context.name("auto")
    asked = [METADATA.request.Topic(name=name)]
    context.ask("not allowed", METADATA, 9, topics=asked, allow_auto_topic_creation=False)
    context.raw.ask(METADATA, 9, topics=asked, allow_auto_topic_creation=True)
    seen = context.until(METADATA, 9, lambda seen: not seen.topics[0].error_code, topics=asked)
    context.note("is made", seen)
    context.ask("a bad name", METADATA, 9, topics=[METADATA.request.Topic(name="no good")])


@script
def the_cluster(context: ScriptContext) -> None:
    for version in range(3):
        context.ask(f"v{version}", DESCRIBE_CLUSTER, version)
    context.ask("controllers", DESCRIBE_CLUSTER, 1, endpoint_type=2)
    context.ask("of an odd kind", DESCRIBE_CLUSTER, 1, endpoint_type=9)


@script
def partitions_of_topics(context: ScriptContext) -> None:
    topic, missing = context.topic(3), context.name("missing")
    kind = DESCRIBE_TOPIC_PARTITIONS.request.Topic
    context.ask("all", DESCRIBE_TOPIC_PARTITIONS, 0, topics=[kind(name=topic)])
    context.ask("two at most", DESCRIBE_TOPIC_PARTITIONS, 0, topics=[kind(name=topic)], response_partition_limit=2)
    cursor = DESCRIBE_TOPIC_PARTITIONS.request.Cursor(topic_name=topic, partition_index=2)
    context.ask("the rest", DESCRIBE_TOPIC_PARTITIONS, 0, topics=[kind(name=topic)], cursor=cursor)
    context.ask("not there", DESCRIBE_TOPIC_PARTITIONS, 0, topics=[kind(name=missing)])
    context.ask("a bad name", DESCRIBE_TOPIC_PARTITIONS, 0, topics=[kind(name="no good")])


@script
def directories(context: ScriptContext) -> None:
    topic = context.topic()
    context.produce(None, topic, batch_of(RECORDS))
    kind = DESCRIBE_LOG_DIRS.request.Topic
    for version in range(1, 6):
        answer = context.raw.ask(DESCRIBE_LOG_DIRS, version, topics=[kind(topic=topic, partitions=[0, 5])])
        (found,) = answer.results
        parts = [
            (part.partition_index, part.partition_size > 100, part.offset_lag) for part in found.topics[0].partitions
        ]
        context.note(f"v{version}", [found.error_code, len(found.topics), parts])


@script
def nobody_need_say_who_he_is(context: ScriptContext) -> None:
    context.ask("a mechanism", SASL_HANDSHAKE, 1, mechanism="PLAIN")
