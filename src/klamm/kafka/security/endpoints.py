"""Endpoints: where a server listens, and what clients need there (`listeners` and its companions, as in Kafka).

    listeners                       NAME://host:port, …       NAME is a security protocol, or one of the map below
    listener.security.protocol.map  NAME:PROTOCOL, …
    advertised.listeners            NAME://host:port, …       what clients of that listener are told to connect to

Without `listeners`, `host` and `kafka` say where to listen: one listener, without security.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from klamm.errors import InvalidSetting

if TYPE_CHECKING:
    from klamm.kafka.settings import ServerSettings

__all__ = ["PLAINTEXT", "PROTOCOLS", "Endpoint", "endpoints_of", "is_guarded", "mechanisms_of", "strictest"]

PLAINTEXT = "PLAINTEXT"
PROTOCOLS = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")

_LISTENER = re.compile(r"(?P<name>\w+)://(?P<host>\[[^\]]*\]|[^\[\]:]*):(?P<port>\d{1,5})", re.ASCII)
_DEFAULT_HOST = "127.0.0.1"


class Endpoint(NamedTuple):
    """One listener."""

    name: str
    protocol: str
    host: str
    port: int
    advertised: tuple[str, int] | None = None
    """What its clients are told to connect to; None: what each has connected to."""

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def setting(self) -> str:
        """What to change if it is not possible to listen there."""
        return "kafka" if not self.name else "listeners"


def endpoints_of(settings: ServerSettings) -> tuple[Endpoint, ...]:
    """Return the listeners of a server. Raise InvalidSetting if they do not fit together."""
    protocols = _protocol_map(settings.listener_security_protocol_map)
    if not settings.listeners:
        for value, name in ((settings.advertised_listeners, "advertised.listeners"),):
            if value:
                raise InvalidSetting("is set, and listeners is not", setting=name, hint="set listeners, too")
        return (Endpoint("", PLAINTEXT, settings.host, settings.kafka, settings.advertised()),)
    if settings.advertise:
        raise InvalidSetting(
            "is for a server without listeners", setting="advertise", hint="set advertised.listeners instead"
        )
    advertised = {name: (host, port) for name, host, port in _parse("advertised.listeners", settings)}
    endpoints = []
    for name, host, port in _parse("listeners", settings):
        protocol = protocols.get(name, name if name in PROTOCOLS else "")
        if not protocol:
            raise InvalidSetting(
                f"{name} is not a security protocol",
                setting="listeners",
                hint=f"use {', '.join(PROTOCOLS)}, or name its protocol in listener.security.protocol.map",
            )
        endpoints.append(Endpoint(name, protocol, host or _DEFAULT_HOST, port, advertised.pop(name, None)))
    for name in advertised:
        raise InvalidSetting(f"{name} is not in listeners", setting="advertised.listeners")
    return tuple(endpoints)


def _authenticates(endpoint: Endpoint, settings: ServerSettings) -> bool:
    """Return whether a client needs a password, a token or a certificate."""
    return endpoint.uses_sasl or (endpoint.uses_tls and settings.ssl_client_auth == "required")


def strictest(endpoints: Sequence[Endpoint], settings: ServerSettings) -> Endpoint:
    """Return the first of the listeners at which clients need most: credentials first, then TLS."""
    return max(endpoints, key=lambda endpoint: (_authenticates(endpoint, settings), endpoint.uses_tls))


def is_guarded(settings: ServerSettings) -> bool:
    """Return whether some client that reaches the server may not do everything."""
    return bool(settings.authorizer_class_name) or any(
        _authenticates(endpoint, settings) for endpoint in endpoints_of(settings)
    )


def mechanisms_of(settings: ServerSettings) -> tuple[str, ...]:
    """Return the SASL mechanisms that are enabled. Raise InvalidSetting for one that there is not."""
    names = tuple(dict.fromkeys(each.strip() for each in settings.sasl_enabled_mechanisms.split(",") if each.strip()))
    for name in names:
        if name not in MECHANISMS:
            raise InvalidSetting(
                f"there is no mechanism {name!r}",
                setting="sasl.enabled.mechanisms",
                hint=f"expected {', '.join(MECHANISMS)}",
            )
    if not names:
        raise InvalidSetting("is empty", setting="sasl.enabled.mechanisms", hint=f"expected {', '.join(MECHANISMS)}")
    return names


def _protocol_map(text: str) -> dict[str, str]:
    protocols = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = (part.strip() for part in each.partition(":"))
        if not name or protocol not in PROTOCOLS:
            raise InvalidSetting(
                f"{each!r} is invalid",
                setting="listener.security.protocol.map",
                hint=f"expected NAME:PROTOCOL, with one of {', '.join(PROTOCOLS)}",
            )
        protocols[name] = protocol
    return protocols


def _parse(setting: str, settings: ServerSettings) -> list[tuple[str, str, int]]:
    """Return name, host and port of each."""
    parsed: list[tuple[str, str, int]] = []
    for each in filter(None, (part.strip() for part in settings[setting].split(","))):
        match = _LISTENER.fullmatch(each)
        least = 0 if setting == "listeners" else 1
        if match is None or not least <= int(match["port"]) <= 65535 or (least and not match["host"]):
            raise InvalidSetting(f"{each!r} is invalid", setting=setting, hint="expected NAME://host:port, …")
        name, host, port = match["name"], match["host"].strip("[]"), int(match["port"])
        if any(name == other for other, _, _ in parsed):
            raise InvalidSetting(
                f"{name} is listed twice", setting=setting, hint="each listener needs a name of its own"
            )
        if port and any((host, port) == where for _, *where_parts in parsed if (where := tuple(where_parts))):
            raise InvalidSetting(f"port {port} is used twice", setting=setting)
        parsed.append((name, host, port))
    return parsed
