"""Commands of the guide do what it says."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.serving import KLAMM

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide" / "command-line.md"


def test_commands_of_the_guide_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "PATH": f"{KLAMM.parent}:{os.environ['PATH']}"}
    script = "set -eo pipefail\n" + "".join(blocks).replace("-n 200000", "-n 2000")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.search(r'\n\S+Z bob \{"id": 2, "total": 120\}\n', done.stdout)
    assert '{"who": "alice", "n": 2, "total": 103.5}' in done.stdout
    assert "who,n\nalice,2\nbob,1\n" in done.stdout
    assert (tmp_path / "today" / "klamm.db").exists()
