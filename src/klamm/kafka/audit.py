"""The audit log: who has done what, from where, and with which outcome, as records of a topic (`audit.topic`).

A record is JSON in the Open Cybersecurity Schema Framework (OCSF 1.3), without a key:

    Authentication   3002   logins by SASL, and certificates of clients
    Account Change   3001   credentials of users that are set or removed
    API Activity     6003   other changes (topics, settings, quotas, ACLs, groups), and requests that are denied
    Base Event          0   events that were dropped

The loop puts an event into a queue and goes on; a thread makes JSON of it and appends it. What embedded processes do is
not here, nor are records that are produced and fetched: so the log never records itself.

Promises
  AUD1  The loop never waits for the log. Beyond MAX_QUEUED events, and while the topic cannot be appended to, events
        are dropped; how many is a metric, a line of the server's log, and an event as soon as there can be one.
  AUD2  No event has a password, a key or a token.
  AUD3  Of the denials and failed changes of one principal, and of the logins that fail from one address,
        REFUSALS_PER_S a second are events, so that they do not displace those of others; the next one says how many
        were left out.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import klamm
from klamm.errors import KlammError, TopicExists, UnknownTopic
from klamm.kafka.audit_changes import changes_in
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.limited_log import LimitedLog

if TYPE_CHECKING:
    from klamm.kafka.call import Call
    from klamm.kafka.metrics import Metrics
    from klamm.kafka.wire.structs import Struct
    from klamm.log.partition import Partition
    from klamm.store.directory import Core

__all__ = ["MAX_QUEUED", "REFUSALS_PER_S", "Audit", "Origin"]

MAX_QUEUED = 10_000
REFUSALS_PER_S = 100
_MAX_COUNTED = 1000  # principals and addresses, whose refusals are counted
_SCHEMA = "1.3.0"
_AUTHENTICATION, _ACCOUNT_CHANGE, _API_ACTIVITY, _BASE = 3002, 3001, 6003, 0
_LOGON, _OTHER = 1, 99
_SUCCESS, _FAILURE = 1, 2
_JOIN_S = 5.0
_MAX_TEXT = 500
_DENIED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_ACTIVITIES = {"create": 1, "read": 2, "describe": 2, "write": 3, "alter": 3, "delete": 4}  # of API Activity

_log = logging.getLogger("klamm.kafka")

Event = dict[str, Any]


class Origin(Protocol):
    """The origin of an event, who and from where: a session, or a client of the metrics port."""

    @property
    def peer_host(self) -> str: ...
    @property
    def peer_port(self) -> int: ...
    @property
    def local_address(self) -> tuple[str, int]: ...
    @property
    def principal(self) -> str: ...


class Audit:
    """The audit log of one server. `start` and `close` it; the rest is for the loop. Without a topic, it is idle."""

    def __init__(self, core: Core, topic: str, metrics: Metrics) -> None:
        self._core = core
        self._topic = topic
        self._metrics = metrics
        self._queue: SimpleQueue[Event | None] = SimpleQueue()
        self._partition: Partition | None = None
        self._thread: threading.Thread | None = None
        self._failed = 0  # events that were dropped, of which none tells yet
        self._counts = threading.Lock()
        self._refusals: dict[str, tuple[int, int]] = {}  # by principal or address: the last second, and how many in it
        self._limited = LimitedLog(_log, "events that are not in the audit log", time.monotonic)
        self.is_active = False

    def start(self) -> None:
        """Open the topic, and make it if it is not there. In a thread."""
        if not self._topic:
            return
        try:
            self._core.topic(self._topic)
        except UnknownTopic:
            try:
                self._core.create_topic(self._topic, 1, {})
            except TopicExists:
                pass  # another process was faster
        self._partition = self._core.topic(self._topic).partition(0)
        self._thread = threading.Thread(target=self._run, name="klamm-audit", daemon=True)
        self._thread.start()
        self.is_active = True

    def close(self) -> None:
        """Append what is queued, within a few seconds."""
        self.is_active = False
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_JOIN_S)

    # ---- events

    def authenticated(self, session: Origin, mechanism: str, user: str, why: str = "") -> None:
        """Record that a client has logged in, or, if there is a reason `why` not, has failed to."""
        if not self.is_active:
            return
        left_out = self._refused(session.peer_host) if why else 0
        if left_out is None:
            return
        details: Event = {
            "user": {"name": user[:_MAX_TEXT]},
            "auth_protocol_id": _OTHER,
            "auth_protocol": mechanism,
            "is_remote": True,
        }
        self._put(session, _AUTHENTICATION, _LOGON, details | _unmapped(left_out), why)

    def denied(self, session: Origin, api: str, operation: str, resource_type: str, resource: str) -> None:
        """Record that a client may not do that: WRITE, TOPIC, orders."""
        if not self.is_active:
            return
        left_out = self._refused(session.principal)
        if left_out is not None:
            activity = _ACTIVITIES.get(operation.lower(), _OTHER)
            operation, resource_type = _spell(operation), _spell(resource_type)
            why = f"{session.principal} may not {operation} {resource_type}:{resource}"
            named = {"type": resource_type, "name": resource[:_MAX_TEXT]}
            self._put_activity(session, api, activity, named, why, "DENIED", left_out)

    def _refused(self, who: str) -> int | None:
        """Count a refusal of a principal or an address. Return how many were left out before it; None: so is it."""
        second = int(time.monotonic())
        last, count = self._refusals.get(who, (second, 0))
        left_out = 0
        if last != second:
            left_out, count = max(0, count - REFUSALS_PER_S), 0
        elif not count and len(self._refusals) >= _MAX_COUNTED:
            self._refusals.clear()
        self._refusals[who] = second, count + 1
        return left_out if count < REFUSALS_PER_S else None

    def changed(self, session: Origin, api: str, activity: str, resource_type: str, resource: str) -> None:
        """Record that a client has changed that; `activity`: create, alter or delete."""
        if self.is_active:
            named = {"type": resource_type, "name": resource[:_MAX_TEXT]}
            self._put_activity(session, api, _ACTIVITIES[activity], named, "", "")

    def responded(self, call: Call, response: Struct) -> Iterator[None]:
        """Record the changes that a request has made, or has failed to make: one when this is advanced."""
        for change in changes_in(call.api.key, call.version, call.request, response):
            yield
            if change.error_code in _DENIED:
                continue  # there is an event of that: see `denied`
            left_out = self._refused(call.session.principal) if change.error_code else 0
            if left_out is None:
                continue  # some changes fail before rights are checked: an id that no topic has
            why = "" if not change.error_code else change.error_message or ErrorCode(change.error_code).name
            code = ErrorCode(change.error_code).name if change.error_code else ""
            if change.resource_type == "User":
                details = {"actor": _actor(call.session), "user": {"name": change.resource[:_MAX_TEXT]}}
                activity = 3 if change.activity == "alter" else 6  # password change, or delete
                self._put(call.session, _ACCOUNT_CHANGE, activity, details | _unmapped(left_out), why, code)
            else:
                activity = _ACTIVITIES[change.activity]
                api, session = call.api.name, call.session
                resource: Event = {"type": change.resource_type, "name": change.resource[:_MAX_TEXT]}
                if change.detail:
                    resource["data"] = change.detail[:_MAX_TEXT]
                self._put_activity(session, api, activity, resource, why, code, left_out)

    def _put_activity(
        self,
        session: Origin,
        api: str,
        activity: int,
        resource: Event,
        why: str,
        code: str,
        left_out: int = 0,
    ) -> None:
        details: Event = {
            "actor": _actor(session),
            "api": {"operation": api, "service": {"name": "kafka"}},
            "resources": [resource],
        }
        self._put(session, _API_ACTIVITY, activity, details | _unmapped(left_out), why, code)

    def _put(self, session: Origin, kind: int, activity: int, details: Event, why: str = "", code: str = "") -> None:
        if self._queue.qsize() >= MAX_QUEUED:
            self._drop(1, "the queue is full")
            return
        event = _event(kind, activity, why, code)
        host, port = session.local_address
        event["src_endpoint"] = {"ip": session.peer_host, "port": session.peer_port}
        event["dst_endpoint"] = {"ip": host, "port": port}
        self._queue.put(event | details)

    def _drop(self, count: int, why: str) -> None:
        with self._counts:
            self._metrics.audit_dropped += count
            self._failed += count
        self._limited.warning("audit: %d events dropped: %s", count, why)

    # ---- the thread

    def _run(self) -> None:
        while True:
            event = self._queue.get()
            events = [] if event is None else [event]
            while event is not None and len(events) < MAX_QUEUED:
                try:
                    event = self._queue.get_nowait()
                except Empty:
                    break
                if event is not None:
                    events.append(event)
            self._append(events)
            if event is None:
                return

    def _append(self, events: Iterable[Event]) -> None:
        events = list(events)
        with self._counts:
            failed, self._failed = self._failed, 0
        if failed:
            event = _event(_BASE, _OTHER, f"{failed} events were dropped", "DROPPED")
            events.insert(0, event | {"unmapped": {"dropped": failed}})
        partition = self._partition
        assert partition is not None
        for at, event in enumerate(events):
            try:
                partition.append_one(None, json.dumps(event, ensure_ascii=False).encode("utf-8", "replace"))
                if at + 1 == len(events):
                    partition.sync(partition.snapshot().next_offset)
            except (KlammError, OSError) as error:
                self._metrics.audit_events += at
                self._drop(len(events) - at, str(error))
                with suppress(KlammError, OSError):  # it may have been deleted, and made again
                    self._partition = self._core.topic(self._topic).partition(0)
                return
        self._metrics.audit_events += len(events)


def _event(kind: int, activity: int, why: str, code: str) -> Event:
    """Return what each event has."""
    event: Event = {
        "class_uid": kind,
        "category_uid": kind // 1000,
        "activity_id": activity,
        "type_uid": kind * 100 + activity,
        "time": time.time_ns() // 1_000_000,
        "severity_id": 3 if why else 1,  # medium, informational
        "status_id": _FAILURE if why else _SUCCESS,
        "metadata": {
            "version": _SCHEMA,
            "product": {"name": "Klamm", "vendor_name": "Klamm", "version": klamm.__version__},
        },
    }
    if why:
        event["status_detail"] = why[:_MAX_TEXT]
    if code:
        event["status_code"] = code
    return event


def _unmapped(left_out: int) -> Event:
    return {"unmapped": {"left_out": left_out}} if left_out else {}


def _spell(name: str) -> str:
    """Return a name as Kafka's tools print it: TransactionalId for TRANSACTIONAL_ID."""
    return name.replace("_", " ").title().replace(" ", "")


def _actor(session: Origin) -> Event:
    return {"user": {"name": session.principal.removeprefix("User:")}}
