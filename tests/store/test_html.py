"""What a notebook shows of a store, a topic and a group: small tables, in which nothing is taken for HTML."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import klamm
from klamm.types import Committed, GroupInfo, GroupOffset, PartitionInfo, TopicId, TopicInfo


def read(html: str) -> tuple[str, list[list[str]]]:
    """Its caption and its rows, the names of the columns first."""
    table = ElementTree.fromstring(html)  # well-formed, or it fails
    caption = table.findtext("caption")
    assert table.tag == "table" and caption is not None
    return caption, [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]


def test_a_store_shows_its_topics(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "a<b>&c") as store:
        store.topics.create("users", 3)
        store.append_many("users", [(b"%d" % n, b"v") for n in range(2000)])
        store.topics.create("empty")
        title, rows = read(store._repr_html_())
        assert title == repr(store) and "<b>" not in store._repr_html_()
        assert rows[0] == ["topic", "partitions", "offsets", "bytes"]
        assert rows[1] == ["empty", "1", "0", "0"]
        assert rows[2][:3] == ["users", "3", "2,000"]
    title, rows = read(store._repr_html_())
    assert "closed" in title and len(rows) == 1


def test_a_topic_shows_its_partitions() -> None:
    partitions = (PartitionInfo(0, 0, 5, 0, 400), PartitionInfo(1, 1000, 2500, 0, 1_000_000))
    info = TopicInfo("orders", TopicId("id"), partitions, {"cleanup.policy": "<script>"}, 0)
    title, rows = read(info._repr_html_())
    assert title == "topic orders, cleanup.policy=<script>" and "<script>" not in info._repr_html_()
    assert rows == [
        ["partition", "start", "end", "bytes"],
        ["0", "0", "5", "400"],
        ["1", "1,000", "2,500", "1,000,000"],
    ]


def test_a_group_shows_where_it_stands() -> None:
    offsets = (
        GroupOffset("orders", 0, Committed(3), 10, 7, 0),
        GroupOffset("orders", 1, None, 4, 4, None),
    )
    info = GroupInfo("<b>illing & co", "empty", "klamm", (), offsets, 0)
    title, rows = read(info._repr_html_())
    assert title == "group <b>illing & co: empty, members: 0, lag: 11"
    assert rows[1:] == [["orders", "0", "3", "10", "7"], ["orders", "1", "–", "4", "4"]]
