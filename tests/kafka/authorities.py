"""Certificates for tests, by trustme: an authority, servers and clients of it, strangers, and what has expired."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization

from tests.interop.raw import Raw

__all__ = ["Authority", "TlsRaw"]


class Authority:
    """An authority of its own, whose files lie in a directory."""

    def __init__(self, where: Path, name: str = "authority") -> None:
        self._authority = trustme.CA()
        self._where = where
        where.mkdir(parents=True, exist_ok=True)
        self.path = where / f"{name}.pem"
        self._authority.cert_pem.write_to_path(str(self.path))

    def server(self, name: str = "server", *, is_expired: bool = False) -> Path:
        """Make a certificate for this machine, and return the file with it and its key. Replaces one of that name."""
        return self._write(name, self._authority.issue_cert("localhost", "127.0.0.1", **_lifetime(is_expired)))

    def client(self, name: str, *, unit: str = "billing", is_expired: bool = False) -> Path:
        """Make a certificate for a client: CN=name,OU=unit,O=Example."""
        made = self._authority.issue_cert(
            f"{name}@example.com", common_name=name, organization_unit_name=unit, organization_name="Example",
            **_lifetime(is_expired),
        )  # fmt: skip
        return self._write(name, made)

    def _write(self, name: str, made: trustme.LeafCert) -> Path:
        path = self._where / f"{name}.pem"
        key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
        private = key.private_bytes(  # Java reads no other format
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        chain = b"".join(each.bytes() for each in made.cert_chain_pems)
        path.with_suffix(".new").write_bytes(private + chain)
        path.with_suffix(".new").rename(path)
        return path

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        """Return what a client that trusts the authority begins with."""
        context = ssl.create_default_context(cafile=str(self.path))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


def _lifetime(is_expired: bool) -> dict[str, Any]:
    if not is_expired:
        return {}
    now = datetime.datetime.now(datetime.UTC)
    return {"not_before": now - datetime.timedelta(days=2), "not_after": now - datetime.timedelta(days=1)}


class TlsRaw(Raw):
    """Kafka's protocol by hand, over TLS."""

    def __init__(self, address: str, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
        """`session`: an earlier one, to resume."""
        super().__init__(address)
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname="localhost", session=session)
        except BaseException:
            self._socket.close()
            raise

    @property
    def tls(self) -> ssl.SSLSocket:
        assert isinstance(self._socket, ssl.SSLSocket)
        return self._socket
