"""`klamm` and `python -m klamm`: the command line, if what it needs is installed."""

from __future__ import annotations

import gc
import sys

from klamm.cli.codes import MISUSED

__all__ = ["main"]


def main() -> None:
    """Run the command line. Without the extra `cli`, print the line that installs it and exit with 2."""
    gc.disable()  # what is imported stays: to look for garbage among it takes a tenth of the time
    try:
        from klamm.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name != "typer":  # which brings rich
            raise
        print(f"klamm: {error.name} is not installed (pip install 'klamm[cli]')", file=sys.stderr)  # noqa: T201
        sys.exit(MISUSED)
    finally:
        gc.freeze()
        gc.enable()
    run()


if __name__ == "__main__":
    main()
