"""DecideTransactions: an API of Klamm's own. Several transactions have one end, and a writer's number with them.

Who leads a job of many tasks (Spark's driver) sends it when all tasks have written, each in a transaction of its own:
store/joint_decision.py. Its key lies beyond those of Kafka, so a client sees in ApiVersions whether a server has it.

    writer          of the number, and how the scope begins
    scope           how the transactional ids begin: the writer, a slash, anything, a slash
    transactions    those that are decided; all others of the scope that are ongoing are aborted
    committed       their end
    topics          by id, that have to be there, else UNKNOWN_TOPIC_ID: what is in a deleted topic would be lost
    number          recorded with a commit, if the last one is still (last_number, last_fingerprint), and below it; -1:
                    there was none. Else INVALID_UPDATE_VERSION. The response has the last number as it was before
    validate_only   change nothing, and return the last number
    forgets_ids     transactional ids of the scope whose transactions are over are forgotten

A user needs TwoPhaseCommit on two transactional ids: the one that is called as the writer, and the one that is called
as the scope. One rule for names that begin with the writer's gives both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.errors import KlammError
from klamm.kafka.api_error import ApiError, code_and_message
from klamm.kafka.call import TRANSACT, Call, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import DECIDE_TRANSACTIONS
from klamm.store import joint_decision
from klamm.store.acl import Operation, ResourceType
from klamm.store.joint_decision import Decision
from klamm.store.once import WriterNumber

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.wire.structs import Struct

__all__ = ["HANDLERS"]

_MAX_NAME = 4096


async def decide_transactions(broker: Broker, call: Call) -> Struct:
    request, response = call.request, DECIDE_TRANSACTIONS.response
    try:
        _check(request)
        for name in (request.writer, request.scope):
            call.check(Operation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, name)
        if request.validate_only:
            last = await broker.transact(request.scope, _find_last, broker, request.writer, request.number.target)
            return response(**_last_fields(last))
        for topic in request.topics:
            if broker.topics.by_id(bytes(topic.topic_id)) is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {bytes(topic.topic_id).hex()} was deleted")
        code, decided = await broker.transact(
            request.scope, broker.transaction_coordinator.decide, _decision_of(request)
        )
    except (ApiError, KlammError) as error:
        failure, why = code_and_message(error)
        return response(error_code=failure, error_message=why)
    if decided is None:
        return response(error_code=code, error_message="another request is at one of its transactions")
    fields = _last_fields(decided.last)
    if decided.conflict:
        conflict = f"{decided.conflict}: nothing was done"
        return response(error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=conflict, **fields)
    message = f"{decided.name}: {decided.outcome.value}: nothing was done" if code else None
    return response(error_code=code, error_message=message, **fields)


def _check(request: Struct) -> None:
    """Raise ApiError for a request that means nothing."""
    writer, scope, number = request.writer, request.scope, request.number
    names = [each.transactional_id for each in request.transactions]
    problem = ""
    if not 0 < len(writer) <= _MAX_NAME:
        problem = "the writer has no name, or one that is too long"
    elif not (scope.startswith(f"{writer}/") and scope.endswith("/") and len(writer) + 1 < len(scope) <= _MAX_NAME):
        problem = f"the scope {scope[:100]!r} is not of the writer {writer[:100]!r}"
    elif any(not name.startswith(scope) or len(name) > _MAX_NAME for name in names):
        problem = f"a transactional id does not begin with {scope[:100]!r}"
    elif len({*names}) < len(names):
        problem = "a transactional id is named twice"
    elif number is None and request.validate_only:
        problem = "no number is asked for"
    elif number is not None and number.number < 0 and not request.validate_only:
        problem = f"the number is {number.number}"
    elif number is not None and not request.committed and not request.validate_only:
        problem = "a number is for a commit"
    if problem:
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)


def _decision_of(request: Struct) -> Decision:
    number, last = None, None
    if request.number is not None:
        given = request.number
        number = WriterNumber(request.writer, given.target, given.number, given.fingerprint, given.note)
        last = None if given.last_number < 0 else (given.last_number, given.last_fingerprint)
    return Decision(
        request.writer,
        request.scope,
        {each.transactional_id: (each.producer_id, each.producer_epoch) for each in request.transactions},
        request.committed,
        number,
        last,
        request.forgets_ids,
    )


def _find_last(broker: Broker, writer: str, target: str) -> WriterNumber | None:
    """Read the last number, in a thread."""
    with broker.core.catalog.database.reading() as execute:
        return joint_decision.find_last(execute, writer, target)


def _last_fields(last: WriterNumber | None) -> dict[str, Any]:
    if last is None:
        return {}
    return {"last_number": last.number, "last_fingerprint": last.fingerprint, "last_note": last.note}


HANDLERS = (
    SupportedApi(
        DECIDE_TRANSACTIONS,
        0,
        0,
        decide_transactions,
        runs=(TRANSACT,),
        rights=("TwoPhaseCommit TransactionalId",),
        max_response_bytes=4 * 65_536,
        notes="Klamm's own: several transactions have one end, and a writer's number with them.",
    ),
)
