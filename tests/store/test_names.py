"""Names of topics are Kafka's."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.errors import InvalidTopic
from klamm.store import names
from klamm.types import TopicId

LEGAL = "ABCXYZabcxyz0189._-"


@given(
    st.text(LEGAL, min_size=1, max_size=249).filter(
        lambda name: name not in (".", "..") and not name.startswith("__klamm")
    )
)
def test_every_name_that_kafka_takes_is_taken(name: str) -> None:
    assert names.validate(name) == name


@given(st.text(st.one_of(st.sampled_from(LEGAL), st.characters()), max_size=300))
def test_a_name_is_taken_exactly_if_kafka_takes_it(name: str) -> None:
    taken = re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name, re.ASCII) and name not in (".", "..")
    if taken:
        assert names.validate(name, internal=True) == name
    else:
        with pytest.raises(InvalidTopic):
            names.validate(name, internal=True)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),  # Kafka's sentences
        (".", r"Topic name is invalid: '\.' is not allowed"),
        ("..", r"'\.\.' is not allowed"),
        ("a" * 250, "longer than the max allowed length 249"),
        ("a/b", "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics"),
        ("a b", "'a b' contains one or more characters"),
        ("orders\n", r"'orders\\n' contains one or more characters"),
        ("größe", "'größe' contains one or more characters"),
        ("__klamm-offsets", "reserved for Klamm's own"),
    ],
)
def test_a_refusal_says_which_rule_was_broken(name: str, why: str) -> None:
    with pytest.raises(InvalidTopic, match=why):
        names.validate(name)


def test_a_name_that_is_not_text_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="str, not bytes"):
        names.validate(b"orders")  # type: ignore[arg-type]


@given(st.text(LEGAL, min_size=1, max_size=249))
def test_the_directory_of_any_topic_has_a_name_that_file_systems_take(name: str) -> None:
    topic_id = TopicId("0123456789abcdef" * 2)
    directory = names.directory_name(name, topic_id)
    assert len(directory) <= 255
    assert directory.endswith("-" + topic_id)
    assert name.startswith(directory[: -len(topic_id) - 1])
    assert len(name) > 222 or directory == f"{name}-{topic_id}"


def test_the_nearest_name_is_proposed_and_a_far_one_is_not() -> None:
    assert names.nearest("odrers", ["users", "orders", "invoices"]) == "did you mean 'orders'?"
    assert names.nearest("xyzzy", ["users", "orders"]) is None
