"""What mkdocs asks while it builds the site (`hooks` of release/mkdocs.yml)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

NAME_IN_TABLE = re.compile(r"(?<=<code>)[^<]{16,}(?=</code>)")


def on_config(config: Any) -> Any:
    """Add the pages of docs/decisions to the navigation, the latest first; mkdocs.yml names all others."""
    folder = Path(config["docs_dir"])
    pages = sorted((folder / "docs" / "decisions").glob("20*.md"), reverse=True)
    listed = [{_title(page): page.relative_to(folder).as_posix()} for page in pages]
    config["nav"].append({"Decisions": [{"All decisions": "docs/decisions/README.md"}, *listed]})
    return config


def _title(page: Path) -> str:
    """Return the heading of a decision without its date, which its page has, too."""
    return re.sub(r"^# ([\d-]+: )?", "", page.read_text().splitlines()[0]).replace("`", "")


def on_page_content(html: str, **_: Any) -> str:
    """Let long names in tables break after dots, slashes, underscores and hyphens, so that no column is too wide."""
    return re.sub(r"<td.*?</td>", lambda cell: NAME_IN_TABLE.sub(_with_breaks, cell[0]), html, flags=re.DOTALL)


def _with_breaks(name: re.Match[str]) -> str:
    return re.sub(r"(?<=[^\W_])([._/-]+)(?=[^\W_])", r"\1<wbr>", name[0])
