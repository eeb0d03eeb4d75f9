"""No byte sequence makes the kernel touch memory that is not its own: the hostile tests, under AddressSanitizer."""

from __future__ import annotations

import pytest

from tests.batch import asan

pytestmark = pytest.mark.skipif(asan.library() is None, reason="gcc with AddressSanitizer is not here")

READERS = ["tests/batch/test_hostile.py"]
ALL = ["tests/batch", "--ignore=tests/batch/test_asan.py", "--ignore=tests/batch/test_codecs.py"]


def check(arguments: list[str], examples: int) -> None:
    result = asan.run(arguments, examples)
    report = (result.stdout + result.stderr)[-8000:]
    assert "Sanitizer" not in report and "runtime error" not in report, report
    assert result.returncode == 0, report


def test_readers_stay_within_their_buffers() -> None:
    check(READERS, 50)


def test_the_sanitizer_would_have_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A kernel that looks one byte too far is noticed: the net has no hole where it matters most."""
    place = asan.build()
    # A bytes object of its own, read behind its end by ctypes: what a missing check in the kernel would do.
    script = tmp_path_factory.mktemp("asan") / "test_beyond.py"
    script.write_text(
        "import ctypes\n"
        "from klamm.batch import _kernel\n"
        f"assert _kernel.__file__.startswith({str(place)!r})\n"
        "def test_beyond():\n"
        "    data = bytes(100)\n"
        "    ctypes.memmove(ctypes.create_string_buffer(400), ctypes.c_char_p(data), 300)\n"
    )
    result = asan.run([str(script), "--rootdir", str(script.parent), "-c", "/dev/null"])
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stdout + result.stderr


@pytest.mark.soak
def test_everything_stays_within_its_buffers_for_long() -> None:
    check(ALL, 20_000)
