"""The location of a pipeline's store: a directory, or a server.

    events/                            a directory, which this machine and all workers see
    klamm://host:9092                  klamm serve
    kafka://host:9092,host:9092        the same, or an Apache Kafka, which is read like klamm serve and never written to
    klamm://host:9092?security.protocol=SASL_SSL&sasl.mechanism=…     how to log in: server/address.py

A server is spoken to by the source and the sink of format("klamm"), and without Spark, never by Spark's Kafka
connector: so micro-batches are the same, and known by the same offsets, whichever way the store is reached. How to log
in is in no file of a pipeline.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from klamm.cluster.address import split_options
from klamm.errors import InvalidSetting, Unsupported
from klamm.spark.option_names import check_names
from klamm.spark.pipelines.pipeline_directory import local
from klamm.spark.server.address import SECURITY_OPTIONS, SERVER, ServerAddress
from klamm.spark.server.decision import can_decide
from klamm.spark.server.remote_store import ServerStore
from klamm.store.directory import Core, opened

__all__ = ["StoreLocation", "is_address"]

_SCHEMES = ("klamm://", "kafka://")


def is_address(text: str) -> bool:
    """Return whether it is the address of a server, and not a directory."""
    return text.startswith(_SCHEMES)


@dataclass(frozen=True)
class StoreLocation:
    """The location of a store."""

    path: str
    """The directory, absolute; of a server, its address without options."""
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The options of the address."""
    server: ServerAddress | None = None
    """None: it is a directory."""

    @staticmethod
    def of(store: str | os.PathLike[str]) -> StoreLocation:
        """Return where `store` is, without looking there. Raise InvalidSetting if it is neither of both."""
        text = os.fspath(store)
        if not is_address(text):
            return StoreLocation(local(text))
        plain, given = split_options(text)
        login = check_names(given, SECURITY_OPTIONS)
        server = ServerAddress.parse({SERVER: plain.partition("://")[2].rstrip("/"), **login})
        return StoreLocation(str(server), login, server)

    @property
    def options(self) -> dict[str, str]:
        """Those of format("klamm") that name the store."""
        return {"path": self.path, **self.login}

    @contextmanager
    def opened(self) -> Iterator[Core]:
        """Hold the store open, or what stands for it behind a server, for a `with` block."""
        if self.server is None:
            with opened(self.path) as core:
                yield core
        else:
            store: Any = ServerStore(self.server)
            with closing(store):
                yield store

    def check_writes_once(self, what: str, hint: str) -> None:
        """Raise Unsupported if `what` cannot be written exactly once there: on an Apache Kafka."""
        if self.server is None:
            return
        with closing(ServerStore(self.server)) as store:
            if not can_decide(store.client):
                hosts = self.path.partition("://")[2]
                raise Unsupported(f"{hosts}: is not klamm serve, so {what} could be there twice, or in part", hint=hint)

    def folder(self, name: str, given: str | os.PathLike[str] | None, option: str) -> str:
        """Return the folder of a pipeline that writes to a topic: the one given, else one of its own in the store."""
        if given is not None:
            return local(given)
        if self.server is not None:
            raise InvalidSetting(
                f"{option}: is missing: a store behind an address has no folder for this pipeline's progress",
                hint=f"give {option} a folder of its own, which the driver and all workers see",
            )
        return f"{self.path}/pipelines/{name}"
