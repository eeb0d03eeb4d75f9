"""No bytes make native code touch memory that is not its own: hostile records and side files under AddressSanitizer."""

from __future__ import annotations

import pytest

from tests import asan

pytestmark = pytest.mark.skipif(asan.library() is None, reason="gcc with AddressSanitizer is not here")

TABLE = "tests/log/test_producer_table.py::test_no_table_of_producers_crashes_a_process_that_uses_it"
PRODUCE, FETCH = "tests/kafka/test_ordinary_produce.py", "tests/kafka/test_ordinary_fetch.py"
CUT = "tests/log/test_cut.py"
HOSTILE = ["tests/batch/test_hostile.py", "tests/batch/test_decoder.py", "tests/log/test_side_files.py", TABLE]
HOSTILE += [PRODUCE, FETCH]
SERVER = ["tests/batch/test_scan.py", "tests/log/test_sync_thread.py", "tests/log/test_bell_thread.py", CUT]
ENGINE = ["tests/client/test_read_engine.py", "tests/client/test_closing.py", "tests/client/test_waiting.py"]
WAITING = ["tests/disk/test_bell.py", "tests/disk/test_os.py"]
ALL = [
    "tests/batch",
    "tests/log",
    PRODUCE,
    FETCH,
    "tests/crash/test_damage.py",
    "--deselect=tests/batch/test_codecs.py",
]


def check(arguments: list[str], examples: int) -> None:
    result = asan.run(arguments, examples)
    report = result.stdout + result.stderr
    found = report.find("ERROR: AddressSanitizer")
    report = report[found : found + 8000] if found >= 0 else report[-8000:]
    assert "Sanitizer" not in report and "runtime error" not in report, report
    assert result.returncode == 0, report


def test_hostile_bytes_and_what_a_server_scans_are_read_within_their_buffers() -> None:
    """In one process: a pytest under AddressSanitizer takes seconds to start."""
    check([*HOSTILE, *SERVER], 50)


def test_the_sanitizer_would_have_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Native code that looks one byte too far is noticed: the net has no hole where it matters most."""
    # A bytes object of its own, read behind its end by ctypes: what a missing check in a kernel would do.
    script = tmp_path_factory.mktemp("asan") / "test_beyond.py"
    script.write_text(
        "import ctypes\n"
        "from klamm.batch import _kernel\n"
        "from klamm.disk import _os\n"
        "from klamm.kafka import _fetch, _produce\n"
        "from klamm.log import _head\n"
        "native = (_kernel, _os, _fetch, _produce, _head)\n"
        f"assert all(each.__file__.startswith({str(asan.build())!r}) for each in native)\n"
        "def test_beyond():\n"
        "    data = bytes(100)\n"
        "    ctypes.memmove(ctypes.create_string_buffer(400), ctypes.c_char_p(data), 300)\n"
    )
    result = asan.run([str(script), "--rootdir", str(script.parent), "-c", "/dev/null"])
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stdout + result.stderr


@pytest.mark.soak
def test_everything_stays_within_its_buffers_for_long() -> None:
    check([*ALL, *WAITING], 20_000)


@pytest.mark.soak
def test_engines_and_pollers_stay_within_their_buffers() -> None:
    check(ENGINE, 100)
