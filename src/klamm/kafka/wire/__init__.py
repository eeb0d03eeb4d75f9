"""Kafka's protocol as bytes: no sockets, no store.

messages    every API that we know, by name and by key
frames      what is around a message: size, header
codec       how a message is decoded and encoded; `notation`, `reading`, `writing`, `structs` are its parts
tables      fields, types and versions of all messages
"""

from klamm.kafka.wire.codec import Api, Message
from klamm.kafka.wire.errors import MalformedMessage, UnsupportedVersion
from klamm.kafka.wire.structs import Struct

__all__ = ["Api", "MalformedMessage", "Message", "Struct", "UnsupportedVersion"]
