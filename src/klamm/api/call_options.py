"""The options of calls on a store that make something: which there are, and the store's serdes among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from klamm.client.consume.consumer_options import ConsumerOptions
from klamm.client.options import check_options
from klamm.client.pipe.pipe_options import PipeOptions
from klamm.client.produce.producer_options import ProducerOptions, TransactionOptions
from klamm.client.serde import Serdes

__all__ = ["checked"]

_OPTIONS = {
    "consumer": ConsumerOptions,
    "pipe": PipeOptions,
    "producer": ProducerOptions,
    "transaction": TransactionOptions,
}


def checked(call: str, options: Mapping[str, Any], defaults: Serdes) -> dict[str, Any]:
    """Return the options of `call`, with the serdes of its store where it has none of its own.

    Raise TypeError, which names the nearest option, if there is no such option.
    """
    check_options(f"{call}()", options, _OPTIONS[call].__annotations__)
    serdes = Serdes(options.get("serde"), options.get("key_serde")).over(defaults)
    return {**options, **serdes._asdict()}
