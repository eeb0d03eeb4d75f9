"""Topics are copied between directories, servers and Kafka clusters.

copier              `klamm.copy`: which topics, from where, until when
chunk               what goes from a source to a target
directory_source, directory_target, kafka_source, kafka_target
copied_offsets      where records of a source are in a Kafka cluster
"""

from __future__ import annotations
