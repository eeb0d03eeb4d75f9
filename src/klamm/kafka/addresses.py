"""The addresses of a server: how a host and a port are written, and the errors when they cannot be had."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Sequence
from typing import Any

__all__ = ["CANNOT_LISTEN", "is_loopback", "is_this_machine", "plain", "refused", "spelled"]

# What binding to an address may fail with.
CANNOT_LISTEN = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EAFNOSUPPORT, socket.EAI_NONAME})


def spelled(host: str, port: int) -> str:
    """Format an address: 127.0.0.1:9092, [::1]:9092."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to an address that a socket is bound to."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def is_this_machine(host: str) -> bool:
    """Return whether an address or a name leads to this machine, whatever a resolver says."""
    try:
        return is_loopback(host)
    except ValueError:
        return host == "localhost"


def plain(name: Sequence[Any] | None) -> tuple[str, int]:
    """Return host and port of a socket's end. A socket for both kinds of addresses calls 10.0.0.1 ::ffff:10.0.0.1."""
    if not name:
        return "", 0
    host = str(name[0])
    return host.removeprefix("::ffff:") if "." in host else host, int(name[1])


def refused(error: OSError, setting: str, host: str, port: int) -> OSError:
    """Return the same error, with the address and the setting to change."""
    number = error.errno or 0
    if isinstance(error, socket.gaierror):
        what, hint = "there is no such host", "choose another with --host"
    elif number == errno.EADDRINUSE:
        what, hint = "another process listens there", f"choose another port with --{setting}; 0 takes any that is free"
    elif number == errno.EADDRNOTAVAIL:
        what, hint = "this machine has no such address", "choose another with --host; 0.0.0.0 means all of them"
    elif number == errno.EACCES:
        what, hint = "not allowed", f"choose a port above 1023 with --{setting}"
    else:
        what, hint = os.strerror(number) if number > 0 else str(error), f"see host and {setting}"
    return OSError(number, f"{spelled(host, port)}: cannot listen: {what} ({hint})")
