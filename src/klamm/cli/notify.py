"""Notify systemd of readiness, when it listens: one datagram to the socket in $NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket

__all__ = ["notify"]


def notify(*lines: str) -> bool:
    """Return whether systemd was notified; a socket that does not work counts as none."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name or not hasattr(socket, "AF_UNIX"):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.connect("\0" + name[1:] if name.startswith("@") else name)
            manager.send("\n".join(lines).encode())
    except OSError:
        return False
    return True
