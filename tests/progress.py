"""A plugin of pytest that writes what happens to a file, as it happens: tests/parts.py reads it.

    python -m pytest -p tests.progress --progress FILE …

A line of JSON for each event:

    {"collected": 2377}                           how many tests there are
    {"start": id}                                 a test begins
    {"end": id, "failed": false}                  it is over
    {"failure": id, "text": traceback, output}    it failed, or a file could not be collected

Tracebacks are printed there and not again at the end of pytest's own output.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator

import pytest

from tests.procs import die_with_parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--progress", metavar="FILE", help="write a line of JSON for each event to FILE")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.progress:
        config.pluginmanager.register(_Progress(config.option.progress))
        die_with_parent()  # nobody reads the file any more


class _Progress:
    def __init__(self, path: str) -> None:
        self._path = path
        self._failed = False

    def _write(self, **event: object) -> None:
        # Opened each time: tests close descriptors, count them, and fork.
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, json.dumps(event).encode() + b"\n")
        finally:
            os.close(file)

    def _fail(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        sections = [f"{' ' + title + ' ':-^80}\n{text}" for title, text in report.sections]
        self._write(failure=report.nodeid, text="\n".join([report.longreprtext, *sections]))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write(collected=len(session.items))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._fail(report)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._failed = False
        self._write(start=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = True
            self._fail(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write(end=nodeid, failed=self._failed)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        session.config.option.tbstyle = "no"  # for the summary, which has all tracebacks once more
        return (yield)
