"""One Chromium and one console for all tests of this folder: Debian's browser, driven by Playwright."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import klamm
from tests.console.conftest import FOREVER
from tests.console.content import content
from tests.console.process import ConsoleProcess

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--process-per-site", "--renderer-process-limit=1", "--in-process-gpu"),  # processes take half of the CPU
)
SIZE: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
MANY = 1_000_000
LARGE = b'{"text": "' + b"x" * (1 << 20) + b'"}'
STRANGE = {
    b"megabyte": LARGE,
    b"not utf-8": b"\xff\xfe\x80 \xc3(",
    b"control": b"\x1b[31mred\x07\x00\r\x08gone",
    b"right to left": "\u202egnp.exe \u05d0\u05d1\u05d2 \u200b".encode(),
    b"deep": b"[" * 5000 + b"]" * 5000,
    b"wide": b"x" * 5000 + " \u4e16\u754c ".encode() * 500,
    b"nothing": None,
    b"empty": b"",
}
HOSTILE = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 2</script>'
T0 = 1_790_000_000_000


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[klamm.Store]:
    """Topics that tests look at; each test that changes something has a topic of its own."""
    with klamm.open(tmp_path_factory.mktemp("browser") / "events") as opened:
        opened.topics.create("orders", partitions=2, settings=FOREVER)
        records = [
            (b"k%d" % (n % 5), json.dumps({"n": n, "user": {"id": n % 7}}).encode(), None, T0 + n) for n in range(120)
        ]
        opened.append_many("orders", records, acks=1)
        opened.topics.create("hostile", settings={"max.message.bytes": 4 << 20})
        opened.append("hostile", HOSTILE.encode(), key=HOSTILE.encode(), headers={"h": HOSTILE}, acks=1)
        opened.append_many("hostile", list(STRANGE.items()), acks=1)
        opened.topics.create("many")
        opened.append_many("many", [(b"rare" if n == 7 else None, b"v") for n in range(MANY)], acks=1)
        opened.groups.reset("billing", "orders", to="earliest")
        opened.topics.create("life")
        opened.append_many("life", [(b"%d,%d" % (n % 40, n // 3), b"0 born") for n in range(90)], acks=1)

        def fail(record: klamm.Record) -> None:
            if record.offset < 2:
                raise ValueError(HOSTILE)

        with opened.consumer("orders", group="mails", wait=0) as consumer:
            consumer.run(fail, workers=1, retries=0, on_error="dead-letter")
        yield opened


@pytest.fixture(scope="session")
def metrics(store: klamm.Store) -> Iterator[str]:
    """The metrics port of a server of the store, which has something on every page."""
    with content(store) as address:
        yield address


@pytest.fixture(scope="session")
def served(store: klamm.Store, metrics: str) -> Iterator[ConsoleProcess]:
    console = ConsoleProcess(store.path, "--allow-changes", "--server", metrics)
    yield console
    console.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Debian's chromium is not installed; make tools installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield launched
        launched.close()


class Tab:
    """A page, in `context` or in a window of its own. Errors of scripts, and what the content policy forbids, are
    collected.
    """

    def __init__(self, browser: Any, base: str, *, context: Any = None, **options: Any) -> None:
        self.base = base
        self._owns_context = context is None
        self.context = context or browser.new_context(**{**SIZE, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)

    def goto(self, address: str) -> Any:
        self.page.goto(self.base + address, wait_until="load")
        return self.page

    def close(self) -> None:
        if self._owns_context:
            self.context.close()
        else:
            self.page.close()
            self.context.clear_cookies()


@pytest.fixture(scope="session")
def window(browser: Any) -> Any:
    """A window for most tests: to open one costs three times as much as a page in it."""
    return browser.new_context(**SIZE)


@pytest.fixture
def tab(browser: Any, window: Any, served: ConsoleProcess) -> Iterator[Tab]:
    opened = Tab(browser, served.address, context=window)
    yield opened
    opened.close()
    assert opened.errors == []
