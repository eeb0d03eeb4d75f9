"""The thread of `klamm serve` that records the history of groups, as long as no console does.

It looks seldom, and works a hundredth of the time at most: clients come first.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from klamm.errors import KlammError

__all__ = ["HistoryThread"]

START_AFTER_S = 10.0  # nothing is imported or opened while the server starts
SHARE = 0.01

_log = logging.getLogger("klamm.console")


class HistoryThread:
    """Started and stopped once, while a server of the store runs in this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="klamm-history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join(5)

    def _run(self) -> None:
        if self._is_over.wait(START_AFTER_S):
            return
        from klamm.api.functions import open as open_store
        from klamm.console.history import EVERY_S, Recorder
        from klamm.console.sampler import Sampler

        try:
            with open_store(self._path) as store:
                recorder = Recorder(store)
                sampler = Sampler(
                    store,
                    interval_s=EVERY_S,
                    share=SHARE,
                    history=2,
                    is_wanted=recorder.is_recorder,
                    on_look=recorder.record,
                )
                sampler.start()
                self._is_over.wait()
                sampler.stop()
        except (KlammError, OSError) as error:
            _log.warning("the history of groups is not recorded: %s", error)
