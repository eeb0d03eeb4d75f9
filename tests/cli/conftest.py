"""A store that commands find by KLAMM_STORE, and commands run within this process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import klamm
from klamm.cli.main import run


class Said(NamedTuple):
    """What came of a command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Said]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the store is, or will be."""
    monkeypatch.setenv("KLAMM_STORE", str(tmp_path / "events"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "events"


@pytest.fixture
def cli(home: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command: cli("tail", "orders"). `code` is how it is to end; what it complains of is one line."""

    def call(*arguments: object, code: int = 0, stdin: bytes = b"") -> Said:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        ended = run([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        told = err.decode()
        assert ended == code, f"{arguments}: {ended}, {told}"
        if code in (1, 2):
            last = told.splitlines()[-1]
            assert last.startswith("klamm: ") and "Traceback" not in told and "should not have" not in told, told
        return Said(ended, out, told)

    return call


@pytest.fixture
def path(home: Path) -> Path:
    return home


def everything(home: Path, topic: str) -> list[tuple[Any, ...]]:
    """All records of a topic, but for their offsets."""
    with klamm.open(home, create=False) as store, store.consumer(topic, wait=0) as consumer:
        return sorted((r.partition, r.offset, r.timestamp, r.key, r.value, r.headers) for r in consumer)
