"""A store that lives: a Kafka server, the console, and orders that come in, are billed, shipped and sometimes fail.
Where Spark is installed, the game of life is played in it, too, some seconds later.

    python examples/live.py [DIRECTORY]

Without a directory it uses a temporary one, and removes it at the end. Ctrl-C ends it. Without a terminal it shows
itself for some seconds, and ends. Nothing leaves this machine.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import klamm

SECONDS_WITHOUT_TERMINAL = 4.0
READY_S = 30.0
PER_SECOND = 40
LIFE_AFTER_S = 5.0  # the page comes first
LIFE_SIZE = 128
GENERATIONS = 4_000
END_S = 10.0
CITIES = ("Graz", "Lisbon", "Osaka", "Quito", "Tromsø")
GOODS = ("book", "lamp", "chair", "kettle", "map")


class Service:
    """`klamm serve` with a console, as a process of its own; its first line says where they listen."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "klamm", *arguments]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        self.line = self._first_line()

    def _first_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise SystemExit(f"live: {' '.join(map(str, self._process.args))} ended with {code}")  # type: ignore[arg-type]
        return line

    @property
    def kafka(self) -> str:
        return self.line.split(" at ", 1)[1].split()[0]

    @property
    def console(self) -> str:
        return self.line.rsplit(" at ", 1)[1].strip().removesuffix(")")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Life:
    """The game of life, by Spark, as a process group of its own. It may be killed at any moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def is_installed() -> bool:
        has_java = "JAVA_HOME" in os.environ or shutil.which("java") is not None
        return has_java and all(find_spec(package) for package in ("pyspark", "pandas", "pyarrow"))

    def start(self) -> None:
        script = Path(__file__).parent / "life" / "life.py"
        command = [sys.executable, script, self._path, "--size", str(LIFE_SIZE), "--generations", str(GENERATIONS)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)

    def stop(self) -> None:
        """End it: at SIGTERM the JVM removes its files, and takes Spark's Python processes with it."""
        if self._process is None:
            return
        deadline = time.monotonic() + END_S
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, 0)
                time.sleep(0.05)
            os.killpg(self._process.pid, signal.SIGKILL)


def free_port(wanted: int) -> str:
    """Return that port, or "0", any other one, if it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return "0"
    return str(wanted)


# ---- the feed


def write_orders(store: klamm.Store, is_over: threading.Event) -> None:
    """Append orders, more at times and fewer at others."""
    draw = random.Random(22)
    number = store["orders"].info().count
    with store.producer(serde="json", acks=1) as producer:
        while not is_over.is_set():
            for _ in range(draw.randint(1, PER_SECOND // 5)):
                number += 1
                user = f"user-{draw.randrange(200):03}"
                order = {
                    "order": number,
                    "user": {"id": user, "city": draw.choice(CITIES)},
                    "items": [{"what": draw.choice(GOODS), "count": draw.randint(1, 3)}],
                    "total": round(draw.uniform(5, 250), 2),
                }
                producer.send("orders", order, key=user, headers={"source": draw.choice(("web", "shop"))})
            producer.flush()
            is_over.wait(0.2)


def bill(store: klamm.Store, is_over: threading.Event) -> None:
    """Turn orders into invoices, exactly once."""
    with store.consumer("orders", group="billing", serde="json", wait=0.5) as orders:
        while not is_over.is_set():
            for batch in orders.batches(200):
                with orders.transaction() as tx:
                    for record in batch:
                        invoice = {"order": record.value["order"], "due": record.value["total"]}
                        tx.send("invoices", json.dumps(invoice).encode(), key=record.key.encode())
                    tx.commit_offsets(batch)
                if is_over.is_set():
                    break


def ship(store: klamm.Store, is_over: threading.Event) -> None:
    """Read more slowly than orders come in, so that its lag can be seen to grow."""
    with store.consumer("orders", group="shipping", wait=0.5) as orders:
        while not is_over.is_set():
            for batch in orders.batches(PER_SECOND // 4):
                orders.commit(batch)
                is_over.wait(1.0)
                if is_over.is_set():
                    break


def send_mails(store: klamm.Store, is_over: threading.Event) -> None:
    """Fail for some orders: they become dead letters."""

    def send_mail(record: klamm.Record) -> None:
        if record.value["order"] % 97 == 0:
            raise ValueError(f"{record.value['user']['id']} has no address")

    while not is_over.is_set():
        with store.consumer("orders", group="mails", serde="json", wait=0.5) as orders:
            orders.run(send_mail, workers=2, retries=0, on_error="dead-letter")


class Feed:
    """The threads. One that fails ends everything."""

    def __init__(self, store: klamm.Store, is_over: threading.Event) -> None:
        self._store = store
        self._is_over = is_over
        self.error: BaseException | None = None
        store.topics.create("orders", partitions=3, exist_ok=True)
        store.topics.create("invoices", exist_ok=True)
        parts = (write_orders, bill, ship, send_mails)
        self._threads = [threading.Thread(target=self._run, args=(part,), name=part.__name__) for part in parts]
        for thread in self._threads:
            thread.start()

    def _run(self, part: Callable[[klamm.Store, threading.Event], None]) -> None:
        try:
            part(self._store, self._is_over)
        except BaseException as error:
            self.error = error
            self._is_over.set()
            raise

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)


# ---- all together


def show(path: Path, page: str, kafka: str, *, has_terminal: bool, has_life: bool) -> None:
    life = f"{page}life, once Spark is up" if has_life else "not played: it needs a terminal, Java, klamm[spark,table]"
    print(
        f"""
  The console     {page}
  Kafka clients   {kafka}
  The store       {path}
  Game of life    {life}

  Three commands to try in another terminal:

    {klamm_command()} tail orders -f --store {path}
    {klamm_command()} group list --store {path}
    {klamm_command()} topic show orders --store {path}

  {"Ctrl-C ends it." if has_terminal else f"No terminal: it ends in {SECONDS_WITHOUT_TERMINAL:.0f} seconds."}
""",
        flush=True,
    )


def klamm_command() -> str:
    program = Path(sys.executable).with_name("klamm")
    return os.path.relpath(program) if program.exists() else "klamm"


def look(page: str) -> str:
    """Read the page as a browser does; return its title."""
    with urlopen(page, timeout=READY_S) as response:
        text = response.read().decode()
    return text.split("<title>", 1)[1].split("</title>", 1)[0]


def run(path: Path) -> None:
    has_terminal = sys.stdin.isatty()
    is_over = threading.Event()
    service: Service | None = None
    life = Life(path)
    has_life = has_terminal and life.is_installed()
    with klamm.open(path) as store:
        feed = Feed(store, is_over)
        try:
            ports = ("--kafka", free_port(9092), "--console", free_port(8080), "--metrics", free_port(9644))
            service = Service("serve", str(path), *ports, "--set", "request.log.size=50")
            show(path, service.console, service.kafka, has_terminal=has_terminal, has_life=has_life)
            if has_life and not is_over.wait(LIFE_AFTER_S):
                life.start()
            if has_terminal:
                is_over.wait()
            else:
                is_over.wait(SECONDS_WITHOUT_TERMINAL)
                print(f"live: {service.console} shows {look(service.console)!r}")
        except KeyboardInterrupt:
            print()
        finally:
            began = time.monotonic()
            is_over.set()
            life.stop()
            if service is not None:
                service.stop()
            feed.join()
            orders = store["orders"].info().count
            print(f"live: {orders:,} orders; ended in {time.monotonic() - began:.1f} s", flush=True)
    if feed.error is not None:
        raise SystemExit(f"live: the feed failed: {feed.error}")


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory(prefix="klamm-live-", ignore_cleanup_errors=True) as directory:
        run(Path(directory) / "events")


if __name__ == "__main__":
    main()
