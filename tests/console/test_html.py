"""HTML, text and values: what comes out of records is shown, never obeyed."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from klamm.console import text
from klamm.console.pages.record_html import hex_dump, value_html
from klamm.html import Html, el, join, visible


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.data = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.data += data


def parsed(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    tags.close()
    return tags


@given(st.text(), st.text())
@example("<b>bold</b>", '"><b>')
def test_text_is_never_markup(child: str, attribute: str) -> None:
    tags = parsed(el("p", child, title=attribute))
    assert tags.tags == ["p"] and tags.attributes == ["title"]
    assert tags.data == visible(child)


@given(st.binary(max_size=300))
@pytest.mark.parametrize("view", ["auto", "json", "text", "hex"])
def test_no_value_adds_an_element_of_its_own(view: str, data: bytes) -> None:
    allowed = {"pre", "div", "span", "details", "summary", "p"}
    assert set(parsed(value_html(data, view)).tags) <= allowed
    assert set(parsed(value_html(b'{"k":"%s"}' % data.hex().encode(), view)).tags) <= allowed


def test_characters_that_hide_or_reorder_text_are_spelled_out() -> None:
    assert visible("a\x00b\u202ec\u200bd\x1b[31m\te\n") == "a\\u0000b\\u202ec\\u200bd\\u001b[31m\te\n"


def test_half_of_a_surrogate_pair_is_spelled_out_and_can_be_encoded() -> None:
    html = el("p", "a\ud800", title="\udfff")
    assert html.encode() == b'<p title="\\udfff">a\\ud800</p>'
    assert value_html(b'{"a\\ud800": "\\udfff"}', "json").encode().count(b"\\ud") == 2


@pytest.mark.parametrize("tag", ["pre", "textarea"])
def test_a_newline_that_a_value_begins_with_is_not_dropped_by_the_browser(tag: str) -> None:
    assert el(tag, "\na") == f"<{tag}>\n\na</{tag}>" and el(tag, "a") == f"<{tag}>a</{tag}>"


def test_children_and_attributes_of_all_kinds() -> None:
    assert el("td", [1234567, None, ["a", Html("<b>")]], class_="n", hidden=True, data_key=None) == (
        '<td class="n" hidden>1,234,567a<b></td>'
    )
    assert join([el("br"), "&"]) == "<br>&amp;"


def test_deep_json_and_large_json_are_shown_as_text() -> None:
    deep = b"[" * 500 + b"]" * 500
    large = b"[" + b",".join(b"%d" % n for n in range(5_000)) + b"]"
    for data in (deep, large):
        tags = parsed(value_html(data, "json"))
        assert tags.tags == ["pre"] and tags.data == data.decode()


def test_hex_has_position_bytes_and_ascii() -> None:
    first, second = hex_dump(bytes(range(60, 80))).splitlines()
    assert first == "00000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK"
    assert second.startswith("00000010  4c 4d 4e 4f ") and second.endswith(" LMNO")


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (None, "–"),
        (0, "0 s"),
        (850, "850 ms"),
        (4_240, "4.2 s"),
        (59_900, "60 s"),
        (200_000, "3 min 20 s"),
        (3_600_000, "1 h"),
        (7_500_000, "2 h 5 min"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_durations_are_short(milliseconds: int | None, shown: str) -> None:
    assert text.duration(milliseconds) == shown


def test_sizes_rates_and_counts() -> None:
    assert [text.size(n) for n in (None, 0, 1023, 1536, 5 << 30)] == ["–", "0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
    assert [text.rate(n) for n in (None, 0, 0.01, 3.21, 12_345.6)] == ["–", "0/s", "<0.1/s", "3.2/s", "12,346/s"]
    assert [text.count(1, "record"), text.count(2000, "record")] == ["1 record", "2,000 records"]
    assert text.command("klamm", "tail", "a b", None) == "klamm tail 'a b'"
