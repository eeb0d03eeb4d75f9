"""An S3 server for tests, and what archives in it have."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]
SECRET = "not-to-be-seen-anywhere"


class S3:
    """A server, and a bucket of it."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.options = {
            "aws_endpoint_url": self.endpoint,
            "aws_access_key_id": "klamm",
            "aws_secret_access_key": SECRET,
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }
        self._request("/lake", method="PUT")

    def _request(self, path: str, data: bytes | None = None, method: str | None = None) -> bytes:
        request = urllib.request.Request(f"{self.endpoint}{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())

    def faults(self, **faults: Any) -> None:
        """Let requests fail from now on; none, without any."""
        self._request("/_faults", json.dumps(faults).encode())

    def counts(self) -> dict[str, int]:
        """Return how many changes were asked for, and faults were made, since the last `faults`."""
        return dict(json.loads(self._request("/_faults")))

    def store(self) -> Any:
        from obstore.store import S3Store

        options: Any = {name: value for name, value in self.options.items() if name != "aws_allow_http"}
        return S3Store("lake", config=options, client_options={"allow_http": True})

    def objects(self, folder: str) -> dict[str, bytes]:
        """Return all that is in a folder, by name from there on."""
        import obstore

        store = self.store()
        objects = [each for chunk in obstore.list(store, prefix=f"{folder}/") for each in chunk]
        names = [each["path"] for each in objects if each["size"]]  # without what pyarrow puts for a folder
        return {name.removeprefix(f"{folder}/"): bytes(obstore.get(store, name).bytes()) for name in sorted(names)}

    def table(self, folder: str) -> Any:
        """Return the Delta table in a folder."""
        import deltalake

        return deltalake.DeltaTable(f"s3://lake/{folder}", storage_options=self.options)

    def iceberg_rows(self) -> list[Row]:
        """Return what readers of the Iceberg table find that the catalog `prod` has."""
        from pyiceberg.catalog import load_catalog

        names = {"s3.endpoint": self.endpoint, "s3.access-key-id": "klamm", "s3.secret-access-key": SECRET}
        catalog: Any = load_catalog("prod", **names, **{"s3.region": "us-east-1"})
        try:
            return _rows(catalog.load_table("lake.orders").scan().to_arrow().to_pylist())
        finally:
            catalog.engine.dispose()

    def rows(self, folder: str, kind: str = "parquet") -> list[Row]:
        """Return what readers find, as `topic_rows` has it; the partition column is the day."""
        import pyarrow.parquet as pq

        found: list[dict[str, Any]] = []
        if kind == "delta":
            found = self.table(folder).to_pyarrow_table().to_pylist()
        for name, data in self.objects(folder).items() if kind == "parquet" else ():
            if name.startswith("date="):
                day = date.fromisoformat(name[5:15])
                found += [{**row, "date": day} for row in pq.ParquetFile(BytesIO(data)).read().to_pylist()]
        return _rows(found)


def _rows(found: list[dict[str, Any]]) -> list[Row]:
    rows = []
    for row in found:
        assert row["date"] == row["timestamp"].date()
        where = row["partition"], row["offset"], int(row["timestamp"].timestamp() * 1000)
        headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
        rows.append((*where, row["key"], row["value"], headers, row["timestampType"]))
    return sorted(rows)


@contextmanager
def server() -> Iterator[S3]:
    command: list[str | Path] = [sys.executable, "-W", "ignore", Path(__file__).with_name("s3_server.py")]
    variables = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables) as process:
        try:
            assert process.stdout is not None
            yield S3(int(process.stdout.readline()))
        finally:
            process.kill()


# ---- processes to kill

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["pytest", "pyarrow.parquet", "obstore", "klamm.spark.pipelines", __name__])


def archiving(s3: S3, store: str, address: str, **options: Any) -> Any:
    """Return a process that archives `orders` without Spark; with `kill`, that is killed at such a change."""
    process = _forks.Process(target=_archive, args=(s3.endpoint, s3.options, store, address, options))
    process.start()
    return process


def _archive(endpoint: str, storage: dict[str, str], store: str, address: str, options: dict[str, Any]) -> None:
    from klamm.errors import StoreBusy
    from klamm.spark.pipelines import archive

    kill = options.pop("kill", None)
    if kill is not None:
        data = json.dumps({"kill": {**kill, "pid": os.getpid()}}).encode()
        urllib.request.urlopen(f"{endpoint}/_faults", data=data, timeout=60).close()
    try:
        archive(None, store, "orders", address, storage_options=storage, **options)
    except StoreBusy:
        sys.exit(BUSY)


BUSY = 75
