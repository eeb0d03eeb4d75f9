"""The consumers that take part in a transaction, from its beginning: their groups' offsets are committed in it.

If it is aborted, they go back to what their groups have committed. So no consumer takes part in two open transactions:
one that was neither committed nor aborted would leave it behind records that are in no output.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.client.consume.consumer import Consumer, session_of
from klamm.errors import GroupError, TransactionError

if TYPE_CHECKING:
    from klamm.client.consume.session import Session
    from klamm.client.groups.commits import PendingCommit
    from klamm.store.directory import Core

__all__ = ["pending_commits_of"]


def pending_commits_of(consumers: Consumer | Iterable[Consumer], core: Core) -> dict[Session, PendingCommit]:
    """Return an empty pending commit for each consumer that takes part; raise for one that cannot.

    A transaction that it takes part in already is aborted: TransactionError.
    """
    pending_commits: dict[Session, PendingCommit] = {}
    for consumer in (consumers,) if isinstance(consumers, Consumer) else consumers:
        if not isinstance(consumer, Consumer):
            raise TypeError(f"consumers: expected a Consumer or several, not {type(consumer).__name__}")
        session = session_of(consumer)
        if session.core is not core:
            raise GroupError(
                f"consumers: {consumer!r} does not read {core.path}", hint="begin it with consumer.transaction()"
            )
        pending_commits[session] = session.commits.pending_commit()
        if session.commits.is_automatic:
            raise GroupError(
                f"consumers: {consumer!r} commits its offsets itself",
                hint="make it without enable_auto_commit: the transaction commits them",
            )
    for session in pending_commits:
        if session.transaction is not None:
            session.transaction.abort()
            raise TransactionError(
                "the consumer's last transaction was neither committed nor aborted",
                hint="it is aborted now, and the consumer has gone back: poll again, and use `with`",
            )
    return pending_commits
