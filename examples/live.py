"""A store that lives: a Kafka server, the console, and orders that come in, are billed, shipped and sometimes fail.
Where Spark is installed, the game of life is played in it, too, some seconds later.

    python examples/live.py [DIRECTORY]

Without a directory it uses a temporary one, and removes it at the end. Ctrl-C ends it, at any moment, and so does the
end of its terminal. Without a terminal it shows itself for some seconds, and ends. Nothing leaves this machine. What
goes wrong in the server is written to stderr.
"""

from __future__ import annotations

import json
import os
import random
import select
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
POLL_S = 0.1
LIFE_AFTER_S = 5.0  # the page comes first
LIFE_SIZE = 128
GENERATIONS = 4_000
END_S = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CITIES = ("Graz", "Lisbon", "Osaka", "Quito", "Tromsø")
GOODS = ("book", "lamp", "chair", "kettle", "map")


class End:
    """The end: a signal, or a part of the feed that fails. A signal leaves a note, for it comes at any moment: what
    has been started by then is ended in its order.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self._is_signalled = False
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # which nohup does
                signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self._is_signalled = True

    def __bool__(self) -> bool:
        return self._is_signalled or self.event.is_set()


class Service:
    """`klamm serve` with a console, as a process of its own; its first line says where they listen."""

    def __init__(self, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "klamm", *arguments]
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.line = ""

    def wait_for_line(self, end: End) -> bool:
        """Wait until it serves. Return False if everything is to end before that."""
        assert self._process.stdout is not None
        while not select.select([self._process.stdout], [], [], POLL_S)[0]:
            if end:
                return False
        self.line = self._process.stdout.readline()
        self.check()
        return True

    def check(self) -> None:
        """End with an error if it has ended, or does not say where it serves."""
        code = self._process.poll() if self.line else self._process.wait()
        if code is not None:
            raise SystemExit(f"live: {' '.join(self._command)} ended with exit code {code}")

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
            while time.monotonic() < deadline:
                self._process.poll()
                os.killpg(self._process.pid, 0)
                time.sleep(0.05)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


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
        if is_over.is_set():
            orders.stop()
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
        self._threads = [
            threading.Thread(target=self._run, args=(part,), name=part.__name__, daemon=True) for part in parts
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, part: Callable[[klamm.Store, threading.Event], None]) -> None:
        try:
            part(self._store, self._is_over)
        except BaseException as error:
            if not self._is_over.is_set():
                self.error = error
            self._is_over.set()
            raise

    def join(self) -> None:
        deadline = time.monotonic() + END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


# ---- all together


def show(path: Path, page: str, kafka: str, *, has_terminal: bool, has_life: bool) -> None:
    life = f"{page}life, once Spark is up" if has_life else "not played: it needs a terminal, Java, klamm[spark,table]"
    say(
        f"""
  The console     {page}
  Kafka clients   {kafka}
  The store       {path}
  Game of life    {life}

  Three commands to try in another terminal:

    {klamm_command()} tail orders -f --store {path}
    {klamm_command()} group list --store {path}
    {klamm_command()} topic show orders --store {path}

  The console only reads; one that may change the store, too:

    {klamm_command()} console {path} --allow-changes --port 8081

  {"Ctrl-C ends it." if has_terminal else f"No terminal: it ends in {SECONDS_WITHOUT_TERMINAL:.0f} seconds."}
"""
    )


def klamm_command() -> str:
    program = Path(sys.executable).with_name("klamm")
    return os.path.relpath(program) if program.exists() else "klamm"


def look(page: str) -> str:
    """Read the page as a browser does; return its title."""
    with urlopen(page, timeout=READY_S) as response:
        text = response.read().decode()
    return text.split("<title>", 1)[1].split("</title>", 1)[0]


def say(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError:  # the terminal is gone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the end


def wait(service: Service, end: End, seconds: float | None = None) -> bool:
    """Wait for the end, or so many seconds; return whether it is the end. End with an error if the server has ended."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while not end:
        service.check()
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def run(path: Path, end: End) -> None:
    has_terminal = sys.stdin.isatty()
    service: Service | None = None
    life = Life(path)
    has_life = has_terminal and life.is_installed()
    with klamm.open(path) as store:
        feed = Feed(store, end.event)
        try:
            ports = ("--kafka", free_port(9092), "--console", free_port(8080), "--metrics", free_port(9644))
            quiet = ("--log-level", "warning", "--set", "request.log.size=50")
            service = Service("serve", str(path), *ports, *quiet)
            if service.wait_for_line(end):
                show(path, service.console, service.kafka, has_terminal=has_terminal, has_life=has_life)
                if has_life and not wait(service, end, LIFE_AFTER_S):
                    life.start()
                if not wait(service, end, None if has_terminal else SECONDS_WITHOUT_TERMINAL):
                    say(f"live: {service.console} shows {look(service.console)!r}")
        finally:
            began = time.monotonic()
            end.event.set()
            life.stop()
            if service is not None:
                service.stop()
            feed.join()
            orders = store["orders"].info().count
            say(f"live: {orders:,} orders; ended in {time.monotonic() - began:.1f} s")
    if feed.error is not None:
        raise SystemExit(f"live: the feed failed: {feed.error}")


def main() -> None:
    end = End()
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]), end)
        return
    with tempfile.TemporaryDirectory(prefix="klamm-live-", ignore_cleanup_errors=True) as directory:
        run(Path(directory) / "events", end)


if __name__ == "__main__":
    main()
