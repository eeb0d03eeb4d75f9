"""`klamm life`: the board of the game of life that examples/life plays in a store, as the console's page has it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from klamm.cli.maintenance import one_of
from klamm.cli.output import OutputOption
from klamm.cli.stores import PathArgument, StoreOption, check_directory, opened

__all__ = ["life"]

_HALVES = " ▀▄█"  # by whether the upper cell lives, and the lower one


def life(
    path: PathArgument = None,
    store: StoreOption = None,
    x: Annotated[int | None, typer.Option("--x", metavar="N", help="First column shown. [default: 0]", min=0)] = None,
    y: Annotated[int | None, typer.Option("--y", metavar="N", help="First row shown. [default: 0]", min=0)] = None,
    *,
    out: OutputOption,
) -> None:
    """Show the board of the game of life. It is there while examples/life plays it in the store."""
    check_directory(one_of(path, store), "life")
    from klamm.cli.views import console_of, read_view
    from klamm.console.pages.life import LIFE

    with opened(one_of(path, store), read_only=True) as events:
        console = console_of(events, one_of(path, store))
        board = read_view(console, LIFE, x=x, y=y)
        while board["is_behind"]:
            board = read_view(console, LIFE, x=x, y=y)
    if not out.is_table:
        out.print_object(board)
        return
    columns, rows = board["size"]
    out.print_object(
        {"generation": board["generation"], "alive": board["alive"], "board": f"{columns} x {rows}"},
    )
    for line in _lines(board):
        typer.echo(line)


def _lines(board: dict[str, Any]) -> list[str]:
    """Return the window of the board, two rows of cells to a line."""
    left, top, width, height = board["window"]
    alive = {(x, y) for x, y in board["cells"]}
    return [
        "".join(_HALVES[((x, y) in alive) + 2 * ((x, y + 1) in alive)] for x in range(left, left + width)).rstrip()
        for y in range(top, top + height, 2)
    ]
