"""The examples of the guide's pages on pipelines, which start with a session that tests have already."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).parents[3] / "docs" / "guide"


def run(page: str) -> dict[str, Any]:
    """The first example of a page, in the current directory: what its names stand for then."""
    block = re.search(r"^```py\n(.*?)^```", (GUIDE / page).read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {}
    exec(compile(block[1], page, "exec"), names)
    return names
