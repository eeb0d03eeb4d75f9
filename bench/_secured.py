"""Both servers with a listener for each security: plain (for what is not measured), TLS, and SASL with SCRAM.

The certificate is the same (ECDSA P-256), and so are the iterations of the user's password.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import _harness as harness
import _kafka as kafka
from klamm.kafka.wire.messages import ALTER_USER_SCRAM_CREDENTIALS
from tests.interop.raw import Raw
from tests.kafka.authorities import Authority

USER, PASSWORD = "alice", "wonderland"
ITERATIONS = 4096  # Kafka's


class Secured(NamedTuple):
    """A server, where its other listeners are, and the certificate of its authority."""

    server: kafka.Server
    tls: str
    sasl: str
    authority: str


def start_klamm(directory: str, keystore: Path, ports: list[int]) -> kafka.Server:
    plain, tls, sasl = ports
    listeners = f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls},SASL_PLAINTEXT://127.0.0.1:{sasl}"
    settings = [f"listeners={listeners}", f"ssl.keystore.location={keystore}", "max.connections=20000"]
    command = [sys.executable, "-m", "klamm", "serve", f"{directory}/store"]
    command += [word for setting in settings for word in ("--set", setting)]
    return kafka.Server("Klamm", command, plain, Path(directory, "klamm.log"))


def start_kafka(directory: str, keystore: Path, ports: list[int], *, quick: bool) -> kafka.Server:
    file = kafka.format_kafka(directory)
    text = Path(file).read_text()
    found = re.search(r"PLAINTEXT://127.0.0.1:(\d+)", text)
    assert found
    plain, (tls, sasl) = found[1], ports[1:]
    more = f",SSL://127.0.0.1:{tls},SASL_PLAINTEXT://127.0.0.1:{sasl}"
    text = text.replace(f"PLAINTEXT://127.0.0.1:{plain}", f"PLAINTEXT://127.0.0.1:{plain}{more}")
    text = text.replace("PLAINTEXT:PLAINTEXT,", "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,")
    text += f"""
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=\\
  org.apache.kafka.common.security.scram.ScramLoginModule required;
"""
    Path(file).write_text(text)
    return kafka.start_kafka(file, quick=quick)


@contextlib.contextmanager
def servers(*, quick: bool) -> Iterator[dict[str, Secured]]:
    """Both, listening, with the user."""
    kafka.version()
    with harness.folder() as path, contextlib.ExitStack() as stack:
        authority = Authority(Path(path, "authority"))
        keystore = authority.server()
        started = {}
        for name in ("kafka", "klamm"):
            directory = f"{path}/{name}"
            os.mkdir(directory)
            ports = [kafka.free_port() for _ in range(3)]
            server = (
                start_klamm(directory, keystore, ports)
                if name == "klamm"
                else start_kafka(directory, keystore, ports, quick=quick)
            )
            stack.callback(server.stop)
            addresses = [f"127.0.0.1:{port}" for port in ports[1:]]
            started[name] = Secured(server, *addresses, str(authority.path))
        for each in started.values():
            each.server.wait()
            add_user(each.server.address)
        yield started


def add_user(address: str) -> None:
    salt = os.urandom(20)
    upsertion = ALTER_USER_SCRAM_CREDENTIALS.request.Upsertion(
        name=USER,
        mechanism=1,
        iterations=ITERATIONS,
        salt=salt,
        salted_password=hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, ITERATIONS),
    )
    with Raw(address) as raw:
        (result,) = raw.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, upsertions=[upsertion]).results
        assert result.error_code == 0, result
