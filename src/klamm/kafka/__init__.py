"""The Kafka door, for any client that speaks Kafka's protocol. So far: its messages, and its groups; no server yet.

wire/          bytes <-> messages, by version
error_codes    Kafka's
coordinator    groups, as Kafka's clients form them: a state machine without a socket or a clock
"""
