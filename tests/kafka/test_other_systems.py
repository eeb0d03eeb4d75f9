"""The server where the system has less than Linux: no RWF_NOWAIT and preadv (macOS, a C library without preadv2), no
eventfd (macOS), no sendfile and pread (Windows).

The server is a process of its own, with a Python that has lost these attributes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from klamm.kafka.wire.messages import API_VERSIONS, FETCH
from tests.interop import confluents
from tests.interop.records import NOW, Written
from tests.kafka.asking import fetch, fetching, produce, sealed
from tests.kafka.dial import Raw
from tests.procs import Flag, until
from tests.serving import Serving, serving

MISSING = {
    "no RWF_NOWAIT": ["RWF_NOWAIT"],
    "macOS": ["RWF_NOWAIT", "preadv", "eventfd"],
    "Windows": ["RWF_NOWAIT", "preadv", "pread", "eventfd", "sendfile"],
}


@contextmanager
def serving_without(missing: list[str], tmp_path: Path, **environment: str) -> Iterator[Serving]:
    """A server whose `os` has none of `missing`."""
    startup = tmp_path / "startup"
    startup.mkdir()
    lines = ["import os", *(f"del os.{name}" for name in missing)]
    (startup / "sitecustomize.py").write_text("\n".join(lines))
    with serving(tmp_path / "events", PYTHONPATH=str(startup), **environment) as server:
        yield server
        assert "failed" not in server.stderr


@pytest.mark.parametrize("system", MISSING)
def test_a_client_produces_and_consumes_where_the_system_has_less_than_linux(system: str, tmp_path: Path) -> None:
    written = [Written(b"key", b"%d" % n * size, (), NOW) for n, size in enumerate((1, 1000, 100_000, 700_000, 10))]
    with serving_without(MISSING[system], tmp_path) as server:
        with Raw(server.address) as raw:
            raw.create("orders")
        producer = confluents.producer(server.address)
        confluents.produce(producer, "orders", written)
        with confluents.consumer(server.address) as consumer:
            consumer.subscribe(["orders"])
            found = confluents.read(consumer, len(written))
            assert [(each.key(), each.value()) for each in found] == [(each.key, each.value) for each in written]
            confluents.produce(producer, "orders", [Written(b"key", b"later", (), NOW)])  # wakes a fetch that waits
            assert [each.value() for each in confluents.read(consumer, 1)] == [b"later"]
        assert server.stop() == 0


@pytest.mark.parametrize("system", MISSING)
def test_a_slow_reader_gets_megabytes_where_the_system_has_less_than_linux(system: str, tmp_path: Path) -> None:
    batch = bytes(sealed(20, padding=900_000))
    with serving_without(MISSING[system], tmp_path) as server, Raw(server.address) as raw, Raw(server.address) as slow:
        raw.create("orders", max_message_bytes=str(50 << 20))
        produce(raw, "orders", batch)
        slow.send(FETCH, 12, **fetching({("orders", 0): 0}))
        assert raw.ask(API_VERSIONS, 0).error_code == 0  # its socket is full, and others are served
        assert batch[61:] in slow.receive()
        assert fetch(slow, "orders", 0).records[61:] == batch[61:]


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* Reads of a page or more from a segment wait as long as the file $HELD is there, and say so with the file $WAITS. */
static void wait_for(int fd, size_t size) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || size < 4096) return;
    path[length] = 0;
    if (!strstr(path, ".log")) return;
    while (access(getenv("HELD"), F_OK) == 0) {
        close(open(getenv("WAITS"), O_CREAT | O_WRONLY, 0600));
        usleep(1000);
    }
}
ssize_t pread(int fd, void *to, size_t size, off_t at) {
    wait_for(fd, size);
    return ((ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(fd, to, size, at);
}
ssize_t pread64(int fd, void *to, size_t size, off64_t at) {
    wait_for(fd, size);
    return ((ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64"))(fd, to, size, at);
}
"""


@pytest.mark.parametrize("size", [10_000, 100_000])
@pytest.mark.parametrize("system", MISSING)
def test_a_read_that_waits_for_the_disk_keeps_only_its_own_client_waiting(
    system: str, size: int, tmp_path: Path
) -> None:
    """Where no read can say that it would wait, a thread reads; never the loop."""
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    held, waits = Flag(tmp_path / "held"), Flag(tmp_path / "waits")
    environment = {"LD_PRELOAD": str(shim), "HELD": held.path, "WAITS": waits.path}
    batch = bytes(sealed(1, padding=size))
    with (
        serving_without(MISSING[system], tmp_path, **environment) as server,
        Raw(server.address) as raw,
        Raw(server.address) as reader,
    ):
        raw.create("orders")
        produce(raw, "orders", batch)
        held.up()
        reader.send(FETCH, 12, **fetching({("orders", 0): 0}))
        until(lambda: bool(waits), "the read waits")
        assert raw.ask(API_VERSIONS, 0).error_code == 0
        Path(held.path).unlink()
        assert batch[61:] in reader.receive()
