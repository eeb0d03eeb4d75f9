"""Views of the console, for the commands that print the same: what one shows is read by its own function.

Commands import this when they run, for the views import much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from klamm.cli.stores import path_of
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.options import ConsoleOptions
from klamm.console.sampler import Sampler
from klamm.errors import InvalidSetting

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.console.pages.frame import Page

__all__ = ["console_of", "read_view"]


def console_of(store: Store, given: str | None) -> Console:
    """Return a console of the store that no one visits. `given` is the path that the user gave."""
    return Console(store, path_of(given), ConsoleOptions(), Sampler(store))


def read_view(console: Console, page: Page, params: Mapping[str, str] | None = None, **query: object) -> dict[str, Any]:
    """Return what a view shows: its JSON twin. `params` are what its path names, `query` what its form has."""
    fields = {name: [str(value)] for name, value in query.items() if value is not None}
    try:
        return page.twin(console, Visit(page.path, params or {}, fields))
    except RequestError as error:
        raise InvalidSetting(error.problem, hint=error.hint or None) from None
