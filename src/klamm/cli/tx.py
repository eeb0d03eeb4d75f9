"""`klamm tx`: transactions that are open, and ending one that holds readers up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.output import OutputOption, confirm, identifier, since
from klamm.cli.stores import StoreOption, opened
from klamm.errors import TransactionError

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.types import TransactionInfo

__all__ = ["app", "transaction_row"]

app = typer.Typer(name="tx", help="Transactions: list, abort.", no_args_is_help=True)


def transaction_row(transaction: TransactionInfo) -> dict[str, Any]:
    """Return a transaction as a row."""
    age_ms = transaction.age_ms
    return {
        "producer_id": identifier(transaction.producer_id),
        "epoch": transaction.epoch,
        "name": transaction.name,
        "state": transaction.state,
        "since": None if age_ms is None else since(time.time_ns() // 1_000_000 - age_ms),
        "timeout_ms": transaction.timeout_ms,
        "partitions": [f"{topic}/{number}" for topic, number in transaction.partitions],
    }


@app.command("list")
def list_transactions(store: StoreOption = None, *, out: OutputOption) -> None:
    """List all transactions that are not over. Takes no lock, and ends none of them."""
    with opened(store, read_only=True) as events:
        rows = [transaction_row(transaction) for transaction in events.transactions]
    out.print_rows(rows, empty="no open transactions")


@app.command()
def abort(
    which: Annotated[str, typer.Argument(metavar="PRODUCER_ID|NAME", help="Producer id or transactional id.")],
    store: StoreOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    *,
    out: OutputOption,
) -> None:
    """Abort an open transaction. Its records are never read, and its producer gets an error when it goes on."""
    with opened(store, read_only=True) as events:  # to open it for writing ends those of dead processes
        transaction = _find(events, which)
    written = ", ".join(transaction_row(transaction)["partitions"]) or "nothing yet"
    confirm(f"The transaction of {which} would be aborted; it may have appended to: {written}", yes=yes)
    with opened(store) as events:
        was_open = events.transactions.abort(transaction.producer_id)
    what = f"aborted the transaction of {which}" if was_open else f"the transaction of {which} had ended by itself"
    out.report(what, {"producer_id": transaction.producer_id, "aborted": was_open})


def _find(store: Store, which: str) -> TransactionInfo:
    transactions = list(store.transactions)
    by_id = [info for info in transactions if str(info.producer_id) == which]
    for transaction in by_id or [info for info in transactions if info.name == which]:
        if transaction.state == "prepared_commit":
            raise TransactionError(f"the transaction of {which} is committed", hint="it cannot be aborted any more")
        return transaction
    raise TransactionError(f"there is no open transaction of {which!r}", hint="klamm tx list shows those that are open")
