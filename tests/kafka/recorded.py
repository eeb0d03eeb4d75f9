"""Requests that real clients have sent, as seeds for the fuzzer: `requests.jsonl`, a line each.

    {"client": "java", "api": "Fetch", "version": 17, "frame": "0001…"}      without its size, in hex

`python -m tests.kafka.recorded` records them again: each client logs in, sends a record and reads it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import klamm
from klamm.kafka.session import Session
from klamm.kafka.wire.frames import read_request_header
from klamm.store.users import Users
from tests.interop.login import Login
from tests.interop.secured import CLIENTS
from tests.kafka.connect import served

__all__ = ["RecordedRequest", "load"]

PATH = Path(__file__).with_name("requests.jsonl")
MAX_BYTES = 4096


class RecordedRequest(NamedTuple):
    client: str
    api: str
    version: int
    frame: bytes


def load() -> list[RecordedRequest]:
    """Return all requests."""
    rows = map(json.loads, PATH.read_text().splitlines())
    return [RecordedRequest(row["client"], row["api"], row["version"], bytes.fromhex(row["frame"])) for row in rows]


def record() -> None:
    found: dict[tuple[str, str, int], str] = {}
    client = ""
    handle = Session.handle

    def recording(self: Session, frame: memoryview) -> None:
        header = read_request_header(frame)
        if len(frame) <= MAX_BYTES:
            found.setdefault((client, header.api.name, header.version), bytes(frame).hex())
        handle(self, frame)

    Session.handle = recording  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store"
        with klamm.open(path) as store:
            Users(store._acquired().catalog).add("alice", "wonderland")
            settings: dict[str, Any] = {"listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"}
            with served(path, **settings) as server:
                plain, guarded = (f"127.0.0.1:{endpoint.port}" for endpoint in server.server.endpoints)
                for client, exchange in CLIENTS.items():
                    store.topics.create(client)
                    where = Path(directory) / client
                    where.mkdir()
                    exchange(plain, Login("PLAINTEXT"), client, where)
                    exchange(guarded, Login("SASL_PLAINTEXT", "SCRAM-SHA-256", "alice", "wonderland"), client, where)
    with PATH.open("w") as lines:
        for (client, api, version), frame in sorted(found.items()):
            print(json.dumps({"client": client, "api": api, "version": version, "frame": frame}), file=lines)
    print(f"{len(found)} requests of {len({client for client, _, _ in found})} clients", file=sys.stderr)


if __name__ == "__main__":
    record()
