"""What a user does first, with Klamm as it is installed: run by release/build_wheels.py in an empty environment, and by
cibuildwheel.

Each step prints a line. An AssertionError or an exit code that is not 0 is a wheel that must not be released.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import klamm

PYTHON = os.environ.get("KLAMM_SMOKE_PYTHON", sys.executable)  # an emulated one is started by a program of its own


# The program that pip installs, if it is there; in an emulated environment only its module is.
KLAMM = [program] if (program := shutil.which("klamm")) else [PYTHON, "-m", "klamm"]


def klamm_command(*arguments: str) -> str:
    """Run the command line and return what it prints."""
    done = subprocess.run([*KLAMM, *arguments], text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, f"klamm {' '.join(arguments)}: {done.returncode}: {done.stderr}"
    return done.stdout


def main() -> None:
    """Do each step in a store of its own."""
    with tempfile.TemporaryDirectory(prefix="klamm-smoke-") as temporary:
        os.environ["KLAMM_STORE"] = f"{temporary}/events"
        try_embedded(f"{temporary}/events")
        if importlib.util.find_spec("typer"):
            try_command_line()
            try_server(f"{temporary}/events")
            if importlib.util.find_spec("uvicorn"):
                try_console(f"{temporary}/events")
        else:
            try_without_extra()
        if importlib.util.find_spec("pytest"):
            try_fixture(Path(temporary))


def say(line: str) -> None:
    """Print a line about a step that passed."""
    print(f"smoke: {line}", flush=True)


def try_embedded(path: str) -> None:
    """Append in every codec, in a transaction and in a group; read it all."""
    with klamm.open(path) as store:
        store.topics.create("orders", partitions=2)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            with store.producer(compression=codec) as producer:
                for number in range(100):
                    producer.send("orders", b"%d" % number, key=b"%d" % (number % 10))
        with store.transaction() as tx:
            tx.send("orders", b"in a transaction")
        with store.consumer("orders", group="smoke", wait=0) as consumer:
            assert sum(1 for _ in consumer) == 501
        assert store.check().ok
    say(f"embedded: 501 records, {klamm.__version__}, Python {sys.version.split()[0]}, {os.uname().machine}")


def try_without_extra() -> None:
    """Call the command line without the packages that it needs."""
    done = subprocess.run([*KLAMM, "topic", "list"], text=True, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, ""), (done.returncode, done.stdout)
    assert "pip install 'klamm[cli]'" in done.stderr, done.stderr
    say(f"without the extra cli, exit code 2: {done.stderr.strip()}")


def try_command_line() -> None:
    """Send and tail."""
    klamm_command("send", "orders", "one coffee", "--key", "alice")
    assert "one coffee" in klamm_command("tail", "orders", "-n", "1", "--from", "last 1")
    assert "orders" in klamm_command("topic", "list")
    assert klamm_command("--version") == f"klamm {klamm.__version__}\n"
    say("klamm send, tail, topic list, --version")


def try_server(path: str) -> None:
    """Start `klamm serve`; produce and consume by kcat if it is there; stop the server by SIGTERM."""
    server = subprocess.Popen(
        [*KLAMM, "serve", path, "--kafka", "0"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        serving = re.match(r"klamm: serving \S+ at (\S+)", line)
        assert serving, f"{line!r}; {server.communicate(timeout=60)[1]}"
        if kcat := shutil.which("kcat"):
            broker = ["-b", serving[1], "-t", "orders"]
            subprocess.run([kcat, "-P", *broker], input=b"by kcat\n", check=True, timeout=60)
            read = subprocess.run([kcat, "-C", *broker, "-e", "-q"], capture_output=True, check=True, timeout=60)
            assert {b"by kcat", b"one coffee"} <= set(read.stdout.splitlines()), read.stdout[-200:]
            assert "by kcat" in klamm_command("tail", "orders", "-n", "3")
    finally:
        server.send_signal(signal.SIGTERM)
        errors = server.communicate(timeout=60)[1]
    assert server.returncode == 0, errors
    say("klamm serve, with kcat" if kcat else "klamm serve starts and stops; kcat is not installed")


def try_console(path: str) -> None:
    """Start `klamm console`, and fetch its first page, and the style and the script that this names."""
    console = subprocess.Popen(
        [*KLAMM, "console", path, "--port", "0"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert console.stdout is not None
        line = console.stdout.readline()
        address = re.search(r" at (http://\S+?)/?$", line)
        assert address, f"{line!r}; {console.communicate(timeout=60)[1]}"
        with urllib.request.urlopen(f"{address[1]}/", timeout=60) as page:
            text = page.read().decode()
        assert "orders" in text, text[:2000]
        files = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', text))
        assert len(files) >= 2, text[:2000]
        for name in sorted(files):
            with urllib.request.urlopen(f"{address[1]}{name}", timeout=60) as file:
                assert file.read(), name
    finally:
        console.send_signal(signal.SIGTERM)
        errors = console.communicate(timeout=60)[1]
    assert console.returncode == 0, errors
    say(f"klamm console: its first page, and {len(files)} files that this names")


def try_fixture(folder: Path) -> None:
    """Run a test that uses the pytest fixtures."""
    (folder / "test_smoke.py").write_text(
        "def test_both(klamm_store, klamm_server):\n"
        "    klamm_store.topics.create('t')\n"
        "    assert klamm_store.append('t', b'x') == 0\n"
        "    assert ':' in str(klamm_server)\n"
    )
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder / "test_smoke.py"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    say("pytest fixtures klamm_store and klamm_server")


if __name__ == "__main__":
    main()
