"""Fixtures of this folder."""

from tests.interop.brokers import _apache_ahead, apache_broker, broker, klamm_broker, tools  # noqa: F401
