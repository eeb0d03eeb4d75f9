"""The declarative example: run twice, with new records in between, everything is in its tables and topic once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import klamm
from tests.spark.classes import ENVIRONMENT

pytest.importorskip("pyspark")
pytest.importorskip("grpc")
pytest.importorskip("yaml")

RUN = Path(__file__).parents[3] / "examples" / "declarative" / "run.py"


def order(number: int) -> dict[str, Any]:
    return {"id": number, "customer": f"customer-{number % 3}", "amount": number * 10.0}


def append(store: klamm.Store, numbers: range) -> None:
    orders = [order(number) for number in numbers]
    store.append_many("orders", [(each["customer"].encode(), json.dumps(each).encode()) for each in orders])


def run(path: str) -> None:
    """To its end."""
    told = subprocess.run(
        [sys.executable, RUN, path], env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=300
    )
    assert told.returncode == 0 and "Run is COMPLETED" in told.stdout + told.stderr, told.stdout + told.stderr


def table(path: str, name: str) -> list[dict[str, Any]]:
    """The rows of a table, as any reader of Parquet finds them."""
    from pyarrow import dataset

    found: list[dict[str, Any]] = dataset.dataset(f"{path}/pipelines/shop/warehouse/{name}").to_table().to_pylist()
    return found


def compare(store: klamm.Store, count: int) -> None:
    orders = [order(number) for number in range(count)]
    rows = sorted(table(store.path, "orders"), key=lambda row: row["id"])
    assert [{name: row[name] for name in ("id", "customer", "amount")} for row in rows] == orders
    revenue: dict[str, list[float]] = defaultdict(list)
    for each in orders:
        revenue[each["customer"]].append(each["amount"])
    found = {row["customer"]: (row["orders"], row["amount"]) for row in table(store.path, "revenue")}
    assert found == {customer: (len(amounts), sum(amounts)) for customer, amounts in revenue.items()}
    with store.consumer("large-orders", wait=0) as consumer:
        large = [(record.key.decode(), json.loads(record.value)) for record in consumer]
    assert sorted(large, key=lambda each: each[1]["id"]) == [
        (each["customer"], each) for each in orders if each["amount"] >= 100
    ]


@pytest.mark.soak  # it starts two servers of Spark Connect, with a catalog on disk: a minute
@pytest.mark.timeout(600)
def test_a_second_run_takes_what_is_new_and_nothing_twice(store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    append(store, range(20))
    run(store.path)
    compare(store, 20)
    append(store, range(20, 33))
    run(store.path)
    compare(store, 33)
    assert klamm.check(store.path).ok
