"""The log of a server: one line an event, whatever is in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.kafka import logs


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("klamm")
    before = root.handlers[:], root.level, ours.level, logging.raiseExceptions
    yield
    root.handlers[:], root.level, ours.level, logging.raiseExceptions = before


def written(form: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.to_stderr(form, level, stream)
    return stream


def test_text_has_time_level_event_and_fields() -> None:
    stream = written("text")
    logs.event("listening", address="127.0.0.1:9092", store="my events", nothing=None)
    time, level, rest = stream.getvalue().split(maxsplit=2)
    assert time.endswith("Z") and len(time) == len("2026-11-15T18:20:03.123Z")
    assert level == "INFO" and rest == 'listening address=127.0.0.1:9092 store="my events"\n'


def test_json_has_the_same() -> None:
    stream = written("json")
    logs.event("closed", logging.WARNING, peer="1.2.3.4:5", bytes=17, level="mine")
    said = json.loads(stream.getvalue())
    assert list(said)[:3] == ["time", "level", "event"]
    assert said["level"] == "warning" and said["event"] == "closed"
    assert said["peer"] == "1.2.3.4:5" and said["bytes"] == 17


@given(event=st.text(), value=st.text())
def test_an_event_is_one_line_whatever_is_in_it(event: str, value: str) -> None:
    for form in logs.FORMATS:
        stream = written(form)
        logs.event(event, value=value)
        assert len(stream.getvalue().splitlines()) == 1
        if form == "json":
            said = json.loads(stream.getvalue())
            assert said["event"] == event and said["value"] == value


@pytest.mark.parametrize("form", logs.FORMATS)
def test_a_traceback_is_part_of_its_line(form: str) -> None:
    stream = written(form)
    try:
        raise ValueError("of mine")
    except ValueError as error:
        logs.event("failed", logging.ERROR, error=error)
    (line,) = stream.getvalue().splitlines()
    assert "Traceback" in line and "ValueError: of mine" in line


def test_what_other_parts_of_klamm_and_other_packages_log_is_there_too() -> None:
    stream = written("json")
    logging.getLogger("klamm.kafka").warning("%s: %d", "closed", 3)
    logging.getLogger("asyncio").error("never retrieved")
    logging.getLogger("asyncio").info("too quiet")
    ours, theirs = map(json.loads, stream.getvalue().splitlines())
    assert ours["event"] == "closed: 3" and "logger" not in ours
    assert theirs["event"] == "never retrieved" and theirs["logger"] == "asyncio"


def test_the_level_decides_what_is_said() -> None:
    stream = written("text", "error")
    logs.event("listening")
    assert stream.getvalue() == ""
    stream = written("text", "debug")
    logs.event("looked", logging.DEBUG)
    assert "DEBUG   looked" in stream.getvalue()


def test_a_stream_that_is_gone_does_not_matter(capsys: pytest.CaptureFixture[str]) -> None:
    stream = written("text")
    stream.close()
    logs.event("listening")
    assert capsys.readouterr() == ("", "")
