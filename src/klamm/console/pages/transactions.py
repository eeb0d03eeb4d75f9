"""Transactions that are not over, and ending one that holds readers up."""

from __future__ import annotations

from typing import Any

from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.pages.frame import Page, badge, cell, table
from klamm.console.pages.produce import check_changes
from klamm.html import Html, el, join

__all__ = ["TRANSACTIONS", "abort", "is_overdue", "read_transactions"]


def read_transactions(console: Console, visit: Visit) -> dict[str, Any]:
    return {
        "transactions": [
            {
                "producer_id": transaction.producer_id,
                "epoch": transaction.epoch,
                "name": transaction.name,
                "state": transaction.state,
                "age_ms": transaction.age_ms,
                "started_ms": transaction.started_ms,
                "timeout_ms": transaction.timeout_ms,
                "partitions": [f"{topic}/{number}" for topic, number in transaction.partitions],
            }
            for transaction in console.store.transactions
        ]
    }


def is_overdue(row: dict[str, Any]) -> bool:
    """Return whether a transaction is open for longer than its timeout, or since before the machine was booted."""
    return row["state"] == "ongoing" and (row["age_ms"] is None or row["age_ms"] > row["timeout_ms"])


def render_transactions(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    can_abort = console.options.allow_changes and not visit.is_saved
    rows = [
        el(
            "tr",
            cell(str(row["producer_id"]), kind="n"),
            cell(row["epoch"], kind="n"),
            cell(row["name"] or "–", kind="mono"),
            cell(badge(row["state"], "warn" if row["state"] == "ongoing" else ""), kind="fit"),
            cell(
                text.duration(row["age_ms"]) if row["age_ms"] is not None else "since before the last boot",
                [" ", badge("overdue", "bad")] if is_overdue(row) else None,
                kind="fit",
            ),
            cell(text.duration(row["timeout_ms"]), kind="n"),
            cell(", ".join(row["partitions"]) or "nothing yet", kind="mono"),
            cell(_abort_form(visit, row) if can_abort and row["state"] == "ongoing" else None, kind="fit"),
            data_key=f"transaction {row['producer_id']}",
        )
        for row in data["transactions"]
    ]
    return join(
        [
            el("h1", "Transactions"),
            el("p", "Readers of committed records wait in front of an open transaction.", class_="quiet"),
            table(
                ("producer id", "epoch", "transactional id", "state", "age", "timeout", "has appended to", ""),
                rows,
                caption="Open transactions",
                empty="No open transactions.",
                numeric="nn   n  ",
            ),
        ]
    )


def _abort_form(visit: Visit, row: dict[str, Any]) -> Html:
    return el(
        "form",
        el("input", type="hidden", name="csrf", value=visit.csrf),
        [
            el("input", type="hidden", name=name, value=str(row[name]))
            for name in ("producer_id", "epoch", "started_ms")
        ],
        el("button", "Abort", class_="danger", aria_label=f"Abort the transaction of producer {row['producer_id']}"),
        method="post",
        action="/transactions",
    )


def abort(console: Console, form: Visit) -> str:
    """Abort the transaction that was shown: its records are never read. RequestError if it is over by now."""
    check_changes(console)
    producer_id, epoch, started_ms = (
        form.number(name, -1, most=2**63 - 1) for name in ("producer_id", "epoch", "started_ms")
    )
    if not console.store._acquired().transactions.abort(producer_id, only=(epoch, started_ms)):
        raise RequestError(
            409, f"the transaction of producer {producer_id} that was shown is over", "load the page again"
        )
    return "/transactions"


TRANSACTIONS = Page(
    "/transactions",
    title=lambda visit: "Transactions",
    read=read_transactions,
    render=render_transactions,
    command=lambda console, visit: console.command("tx", "list"),
    is_live=True,
)
