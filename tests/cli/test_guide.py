"""Commands of the guide do what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.procs import PATIENCE
from tests.serving import KLAMM, serving

DOCS = Path(__file__).parent.parent.parent / "docs"
ENVIRONMENT = {**os.environ, "PATH": f"{KLAMM.parent}:{os.environ['PATH']}"}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def pasted(script: str, where: Path) -> str:
    """What a shell prints, if everything in it works and nothing is complained of."""
    command = ["bash", "-c", "set -eo pipefail\n" + script]
    done = subprocess.run(command, cwd=where, env=ENVIRONMENT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_commands_of_the_guide_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    told = pasted("".join(blocks("guide/command-line.md", "sh")).replace("-n 200000", "-n 2000"), tmp_path)
    assert re.search(r'\n\S+Z bob \{"id": 2, "total": 120\}\n', told)
    assert '{"who": "alice", "n": 2, "total": 103.5}' in told
    assert "who,n\nalice,2\nbob,1\n" in told
    assert (tmp_path / "today" / "klamm.db").exists()


def test_the_first_steps_work_one_after_the_other_on_one_directory(tmp_path: Path) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("there is no kcat on this machine: see `make tools`")
    install, commands, serve, client = blocks("start.md", "sh")
    assert "pip install '.[cli]'" in install and serve == "klamm serve events --kafka 9092\n"
    subprocess.run([sys.executable, "-c", blocks("start.md", "python")[0]], cwd=tmp_path, check=True, timeout=PATIENCE)
    told = pasted(commands, tmp_path)
    assert '"offsets": 1003' in told and '"key": "bob", "value": "/checkout"' in told
    with serving(tmp_path / "events") as server:
        read = pasted(client.replace("127.0.0.1:9092", server.address), tmp_path).splitlines()
    assert len(read) == 1005
    assert {"carol:/home", "bob:/checkout", "bob:/home", "alice:/item/999"} <= set(read)
