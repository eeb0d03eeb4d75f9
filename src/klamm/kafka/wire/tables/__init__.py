"""The fields of messages, as tables. Names are Kafka's; the notation is ours, see `notation`."""
