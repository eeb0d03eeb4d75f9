"""What a run tells of its records: hooks, counters; and which errors it tries again."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

import klamm
from klamm.types import RunReport
from tests.client.conftest import fill
from tests.client.handlers import refuse
from tests.client.test_workers import fail_at, running
from tests.procs import until


def test_hooks_are_called_with_each_attempt(orders: klamm.Store) -> None:
    fill(orders, 3)
    done: list[klamm.Attempt] = []
    failed: list[klamm.Attempt] = []
    dead: list[klamm.Attempt] = []
    with orders.consumer("orders", wait=0, serde="json") as consumer:
        consumer.run(
            lambda record: 1 / (record.value - 1),
            1,
            on_error="dead-letter",
            retries=1,
            backoff=timedelta(milliseconds=1),
            on_done=done.append,
            on_failed=failed.append,
            on_dead_letter=dead.append,
        )
    assert [(each.record.value, each.number, each.error, each.retry_in) for each in done] == [
        (b"0", 1, None, None),
        (b"2", 1, None, None),
    ]
    assert [(each.record.offset, each.number, each.retry_in) for each in failed] == [(1, 1, 0.001), (1, 2, None)]
    assert all(isinstance(each.error, ZeroDivisionError) and 0 <= each.seconds < 60 for each in failed)
    assert dead == failed[1:]


@pytest.mark.parametrize("hook", ["on_done", "on_failed", "on_dead_letter", "on_progress"])
def test_a_hook_that_raises_ends_the_run(orders: klamm.Store, hook: str) -> None:
    fill(orders, 10)

    def oops(given: object) -> None:
        raise LookupError(hook)

    options: Any = {"on_error": "dead-letter", "retries": 0, hook: oops, "commit_every": 0}
    with orders.consumer("orders", group="g", wait=0) as consumer, pytest.raises(LookupError, match=hook):
        consumer.run(fail_at(b"5"), 1, **options)


def test_hooks_of_worker_processes_run_in_the_reading_process(orders: klamm.Store) -> None:
    fill(orders, 1)
    failed: list[klamm.Attempt] = []
    with orders.consumer("orders", wait=0) as consumer:
        consumer.run(refuse, 1, processes=True, on_error="dead-letter", retries=0, on_failed=failed.append)
    assert isinstance(failed[0].error, ValueError)


def test_progress_is_reported_while_it_goes_on(orders: klamm.Store) -> None:
    fill(orders, 10)
    go = threading.Event()
    reports: list[RunReport] = []

    def handle(record: klamm.Record) -> None:
        assert record.offset < 5 or go.wait(60)

    consumer = orders.consumer("orders", group="g", wait=0)
    with consumer, running(consumer, handle, 1, commit_every=0.01, on_progress=reports.append) as outcome:
        until(lambda: RunReport(5, 0, 0) in reports, "five are done")
        go.set()
    assert reports[-1] == outcome["report"] == RunReport(10, 0, 0)
    assert sorted(set(reports), key=lambda each: each.done) == reports  # each once


# ---- retries by type


class Temporary(Exception): ...


class Permanent(Temporary): ...


@pytest.mark.parametrize(
    ("options", "error", "attempts"),
    [
        ({}, ValueError, 3),
        ({"retry_on": Temporary}, Temporary, 3),
        ({"retry_on": Temporary}, ValueError, 1),
        ({"retry_on": (Temporary, ValueError)}, ValueError, 3),
        ({"retry_on": [Temporary], "give_up_on": Permanent}, Permanent, 1),
        ({"give_up_on": [Permanent, ValueError]}, Temporary, 3),
        ({"give_up_on": [Permanent, ValueError]}, ValueError, 1),
    ],
    ids=repr,
)
def test_errors_are_tried_again_by_their_type(
    orders: klamm.Store, options: Any, error: type[Exception], attempts: int
) -> None:
    fill(orders, 1)

    def handle(record: klamm.Record) -> None:
        raise error

    with orders.consumer("orders", wait=0) as consumer:
        report = consumer.run(handle, 1, on_error="dead-letter", retries=2, backoff=0, **options)
    assert report == RunReport(0, attempts, 1)


def test_a_timeout_can_be_an_error_that_is_not_tried_again(orders: klamm.Store) -> None:
    fill(orders, 1)
    go = threading.Event()
    try:
        with orders.consumer("orders", wait=0) as consumer, pytest.raises(TimeoutError):
            consumer.run(lambda record: go.wait(60), 1, timeout=0.05, on_error="retry", give_up_on=TimeoutError)
    finally:
        go.set()
