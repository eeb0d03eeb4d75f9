"""A store on a Kafka server or cluster: what `klamm.open("kafka://host:9092")` stands on.

    address             kafka://host:port,…?option=value
    cluster_core        the core of such a store, with its topics (cluster_topics, cluster_partition)
    parts               what client/ asks a core for that is not a directory
    cluster_engine      the reading engine, by a consumer of librdkafka that was assigned its partitions
    group_member        membership of a group, by a second one that subscribes and never fetches
    group_store         offsets and members of groups, as the cluster has them
    group_clients       consumers that read and set offsets of groups
    cluster_producer, cluster_transaction    records, sent
    kafka_admin         librdkafka's admin client
    kafka_errors        what librdkafka reports, as errors of ours

Kafka is spoken by librdkafka (extra `kafka`), which is imported when an address says kafka://. Consumers, workers,
pipes and serdes are those of client/. docs/decisions/2026-11-18-a-core-that-is-not-a-directory.md says why it is cut
here.
"""

from __future__ import annotations
