"""Certificate and key of the server, and the authorities of its clients: PEM files, loaded again when they change.

    ssl.keystore.location     the private key, which is not encrypted, and the certificate with its chain
    ssl.key.location          the private key, if it is in a file of its own
    ssl.truststore.location   certificates of the authorities whose clients are let in (ssl.client.auth)

Promises
  TLS1  When the files change, new connections get the new certificate within about a second; connections that are there
        stay as they are. Files that cannot be loaded change nothing, and the log says so.
  TLS2  No version below TLS 1.2 is spoken, and there is no renegotiation.
"""

from __future__ import annotations

import logging
import os
import ssl
from typing import TYPE_CHECKING

from klamm.errors import InvalidSetting
from klamm.kafka.security.principals import PrincipalRules

if TYPE_CHECKING:
    from klamm.kafka.settings import ServerSettings

__all__ = ["Certificates"]

_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

_log = logging.getLogger("klamm.kafka")

Files = tuple[tuple[int, int, int] | None, ...]


class Certificates:
    """The certificates of one server. Loaded by threads; the loop uses what is there."""

    def __init__(self, settings: ServerSettings) -> None:
        """Load the files. Raise InvalidSetting, with the setting, if that is not possible."""
        self._keystore = settings.ssl_keystore_location
        self._key = settings.ssl_key_location
        self._truststore = settings.ssl_truststore_location
        self._client_auth = _CLIENT_AUTH[settings.ssl_client_auth]
        self.rules = PrincipalRules(settings.ssl_principal_mapping_rules)
        self.reloads = 0
        self.failed_reloads = 0
        if not self._keystore:
            raise InvalidSetting(
                "is empty, and a listener has TLS",
                setting="ssl.keystore.location",
                hint="expected a PEM file with private key and certificate",
            )
        if self._client_auth != ssl.CERT_NONE and not self._truststore:
            raise InvalidSetting(
                f"is empty, and ssl.client.auth is {settings.ssl_client_auth}",
                setting="ssl.truststore.location",
                hint="expected a PEM file with the certificates of authorities",
            )
        self._files = self._look()
        self._contexts = self._load()

    def context(self, protocol: str) -> ssl.SSLContext:
        """Return what a new connection of a listener of that protocol begins with."""
        return self._contexts[protocol]

    def reload_if_changed(self) -> None:
        """Load the files again if they are others now. In a thread."""
        files = self._look()
        if files == self._files:
            return
        self._files = files
        try:
            self._contexts = self._load()
        except InvalidSetting as error:
            self.failed_reloads += 1
            _log.error("certificates have changed, and cannot be loaded: %s; those from before stay in use", error)
        else:
            self.reloads += 1
            _log.info("certificates have changed: new connections get those of %s", self._keystore)

    def _look(self) -> Files:
        found: list[tuple[int, int, int] | None] = []
        for path in (self._keystore, self._key, self._truststore):
            try:
                status = os.stat(path) if path else None
            except OSError:
                status = None
            found.append(None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)

    def _load(self) -> dict[str, ssl.SSLContext]:
        """Return a context for each protocol. Kafka's clients that log in need no certificate."""
        return {"SSL": self._make(self._client_auth), "SASL_SSL": self._make(ssl.CERT_NONE)}

    def _make(self, client_auth: ssl.VerifyMode) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        try:
            context.load_cert_chain(self._keystore, self._key or None, password=_raise_encrypted)
        except (OSError, ValueError) as error:
            raise InvalidSetting(
                f"{self._keystore}: {_reason(error)}",
                setting="ssl.keystore.location",
                hint="expected a PEM file with certificate and private key, not encrypted, which belong together",
            ) from None
        context.verify_mode = client_auth
        if client_auth != ssl.CERT_NONE:
            try:
                context.load_verify_locations(self._truststore)
            except (OSError, ValueError) as error:
                raise InvalidSetting(
                    f"{self._truststore}: {_reason(error)}",
                    setting="ssl.truststore.location",
                    hint="expected a PEM file with the certificates of authorities",
                ) from None
        return context


def _raise_encrypted() -> str:
    raise ValueError("the private key is encrypted")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is not PEM").lower().replace("_", " ")
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
