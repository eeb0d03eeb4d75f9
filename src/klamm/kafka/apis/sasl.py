"""SaslHandshake and SaslAuthenticate: how a client of a SASL listener logs in, and logs in again (KIP-368).

SaslHandshake     Version 0, after which tokens come without a header, is UNSUPPORTED_VERSION: clients since Kafka 1.0
                  use 1. It is advertised all the same, because librdkafka logs in only where it is.
SaslAuthenticate  A login that fails gets SASL_AUTHENTICATION_FAILED, late, and the connection is closed then.

On a listener without SASL both are ILLEGAL_SASL_STATE, as in Kafka.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from klamm.kafka.call import AUTHENTICATE, LOOP, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.security.login import LoginFailed
from klamm.kafka.wire.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.call import Call
    from klamm.kafka.wire.structs import Struct

__all__ = ["HANDLERS"]


async def sasl_handshake(broker: Broker, call: Call) -> Struct:
    login = call.session.login
    if login is None:
        return SASL_HANDSHAKE.response(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    if call.version < 1:
        return SASL_HANDSHAKE.response(error_code=ErrorCode.UNSUPPORTED_VERSION, mechanisms=list(broker.mechanisms))
    is_there = login.choose(call.request.mechanism)
    code = ErrorCode.NONE if is_there else ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return SASL_HANDSHAKE.response(error_code=code, mechanisms=list(broker.mechanisms))


async def sasl_authenticate(broker: Broker, call: Call) -> Struct:
    login = call.session.login
    if login is None or not login.has_mechanism:
        return SASL_AUTHENTICATE.response(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication"
            if login is not None and login.is_logged_in
            else "there was no SaslHandshake before",
            auth_bytes=b"",
        )
    mechanism = login.mechanism
    try:
        token, is_logged_in = await login.step(call.request.auth_bytes)
    except LoginFailed as failure:
        call.session.login_failed(failure)
        await asyncio.sleep(broker.settings.connection_failed_authentication_delay_ms / 1000)
        return SASL_AUTHENTICATE.response(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=failure.message, auth_bytes=b""
        )
    if is_logged_in:
        call.session.logged_in()
        broker.audit.authenticated(call.session, mechanism, login.user)
    lifetime_ms = login.lifetime_ms if is_logged_in else 0
    return SASL_AUTHENTICATE.response(
        error_code=0, error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms
    )


HANDLERS = (
    SupportedApi(
        SASL_HANDSHAKE,
        0,
        1,
        sasl_handshake,
        needs_catalog=False,
        notes="Version 0, with tokens that have no header, is refused with an error.",
    ),
    SupportedApi(SASL_AUTHENTICATE, 0, 2, sasl_authenticate, runs=(LOOP, AUTHENTICATE), needs_catalog=False),
)
