"""A client on OpenSSL itself, for what Python's `ssl` does not do: to change the keys of a connection (RFC 8446)."""

from __future__ import annotations

import ctypes
import ssl
from ctypes.util import find_library
from typing import Any

from tests.interop.raw import ConnectionEnded, Raw

__all__ = ["LibsslRaw"]

_REQUESTED = 1  # the other side changes its keys, too, and says so
_WANT_READ = 2


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(find_library(name) or f"lib{name}.so.{ssl.OPENSSL_VERSION_INFO[0]}")


def _declare(library: ctypes.CDLL, *functions: tuple[str, Any, list[Any]]) -> None:
    for name, result, arguments in functions:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


_pointer, _int = ctypes.c_void_p, ctypes.c_int
_ssl, _crypto = _library("ssl"), _library("crypto")
_declare(
    _ssl,
    ("TLS_client_method", _pointer, []),
    ("SSL_CTX_new", _pointer, [_pointer]),
    ("SSL_CTX_free", None, [_pointer]),
    ("SSL_new", _pointer, [_pointer]),
    ("SSL_free", None, [_pointer]),
    ("SSL_set_bio", None, [_pointer, _pointer, _pointer]),
    ("SSL_set_connect_state", None, [_pointer]),
    ("SSL_do_handshake", _int, [_pointer]),
    ("SSL_key_update", _int, [_pointer, _int]),
    ("SSL_read", _int, [_pointer, ctypes.c_char_p, _int]),
    ("SSL_write", _int, [_pointer, ctypes.c_char_p, _int]),
    ("SSL_get_error", _int, [_pointer, _int]),
)
_declare(
    _crypto,
    ("BIO_s_mem", _pointer, []),
    ("BIO_new", _pointer, [_pointer]),
    ("BIO_read", _int, [_pointer, ctypes.c_char_p, _int]),
    ("BIO_write", _int, [_pointer, ctypes.c_char_p, _int]),
    ("BIO_ctrl_pending", ctypes.c_size_t, [_pointer]),
)


class LibsslRaw(Raw):
    """Kafka's protocol by hand, over TLS; the server's certificate is not looked at."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._context = _ssl.SSL_CTX_new(_ssl.TLS_client_method())
        self._tls = _ssl.SSL_new(self._context)
        self._in, self._out = (_crypto.BIO_new(_crypto.BIO_s_mem()) for _ in range(2))
        _ssl.SSL_set_bio(self._tls, self._in, self._out)
        _ssl.SSL_set_connect_state(self._tls)
        self._plain = b""
        self.received: list[bytes] = []
        """All ciphertext that the server has sent."""
        while _ssl.SSL_do_handshake(self._tls) != 1:
            self._flush()
            self._receive_ciphertext()
        self._flush()

    def close(self) -> None:
        super().close()
        if self._tls:
            _ssl.SSL_free(self._tls)
            _ssl.SSL_CTX_free(self._context)
            self._tls = None

    def key_updates(self, count: int) -> bytes:
        """Return messages that change the keys so often, each of which the server has to answer by one of its own."""
        for _ in range(count):
            assert _ssl.SSL_key_update(self._tls, _REQUESTED) == 1
            assert _ssl.SSL_do_handshake(self._tls) == 1
        return self._ciphertext()

    def encrypt(self, data: bytes) -> bytes:
        assert _ssl.SSL_write(self._tls, data, len(data)) == len(data)
        return self._ciphertext()

    def send_bytes(self, data: bytes) -> None:
        super().send_bytes(self.encrypt(data))

    def send_ciphertext(self, data: bytes) -> None:
        super().send_bytes(data)

    def _exactly(self, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(1 << 14)
        while len(self._plain) < size:
            count = _ssl.SSL_read(self._tls, buffer, len(buffer))
            if count > 0:
                self._plain += buffer.raw[:count]
                continue
            assert _ssl.SSL_get_error(self._tls, count) == _WANT_READ
            self._receive_ciphertext()
        data, self._plain = self._plain[:size], self._plain[size:]
        return data

    def _ciphertext(self) -> bytes:
        size = _crypto.BIO_ctrl_pending(self._out)
        if not size:
            return b""
        buffer = ctypes.create_string_buffer(size)
        count = _crypto.BIO_read(self._out, buffer, size)
        return buffer.raw[:count]

    def _flush(self) -> None:
        self._socket.sendall(self._ciphertext())

    def _receive_ciphertext(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionEnded
        self.received.append(data)
        _crypto.BIO_write(self._in, data, len(data))
