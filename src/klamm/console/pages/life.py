"""The game of life, live: the board that examples/life plays in the topic "life"."""

from __future__ import annotations

from typing import Any

from klamm.console import text
from klamm.console.board import LIFE_TOPIC
from klamm.console.context import Console, Visit
from klamm.console.pages.frame import Page, card, note, topic_address
from klamm.html import Html, el, join

__all__ = ["LIFE"]

_WINDOW = 160  # cells in each direction that are drawn


def read_life(console: Console, visit: Visit) -> dict[str, Any]:
    """Return the generation, and the cells that live within a window of the board."""
    board = console.board
    left, top = visit.number("x", 0, most=10**6), visit.number("y", 0, most=10**6)
    alive = board.look()
    width, height = min(_WINDOW, max(0, board.width - left)), min(_WINDOW, max(0, board.height - top))
    cells = sorted((y, x) for x, y in alive if left <= x < left + width and top <= y < top + height)
    return {
        "topic": LIFE_TOPIC,
        "generation": board.generation,
        "size": [board.width, board.height],
        "alive": len(alive),
        "is_behind": board.is_behind,
        "window": [left, top, width, height],
        "cells": [[x, y] for y, x in cells],
    }


def _path(data: dict[str, Any]) -> str:
    """Return the cells as a path of SVG: one rectangle for each run of neighbours in a row."""
    left, top, _, _ = data["window"]
    runs: list[list[int]] = []
    for x, y in data["cells"]:
        if runs and runs[-1][1] == y and runs[-1][0] + runs[-1][2] == x:
            runs[-1][2] += 1
        else:
            runs.append([x, y, 1])
    return "".join(f"M{x - left} {y - top}h{length}v1h-{length}z" for x, y, length in runs)


def render_life(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    left, top, width, height = data["window"]
    share = data["alive"] / max(1, data["size"][0] * data["size"][1])
    drawn = el(
        "svg",
        el("path", d=_path(data)),
        viewBox=f"0 0 {max(1, width)} {max(1, height)}",
        shape_rendering="crispEdges",
        role="img",
        aria_label=f"Generation {data['generation']}: {data['alive']} cells live",
    )
    return join(
        [
            el("h1", "Life", el("small", "the topic ", el("a", LIFE_TOPIC, href=topic_address(LIFE_TOPIC)))),
            el(
                "dl",
                card("Generation", text.count(data["generation"])),
                card("Alive", text.count(data["alive"]), f"{share:.1%} of the cells"),
                card("Board", f"{data['size'][0]} × {data['size'][1]}"),
                card("Shown", f"{width} × {height}", f"from {left}, {top}"),
                class_="cards",
            ),
            note("There is more to read: the board is not up to date yet.") if data["is_behind"] else None,
            el("div", drawn, class_="board"),
        ]
    )


LIFE = Page(
    "/life",
    title=lambda visit: "Life",
    read=read_life,
    render=render_life,
    command=lambda console, visit: text.command(
        *("klamm", "life", console.path),
        *(word for name in ("x", "y") if visit.one(name) for word in (f"--{name}", visit.one(name))),
    ),
    is_live=True,
)
