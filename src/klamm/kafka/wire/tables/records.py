"""Messages that carry records or ask about offsets of a log. The notation: see `notation`."""

from klamm.kafka.wire.codec import Api

__all__ = [
    "DELETE_RECORDS",
    "FETCH",
    "LIST_OFFSETS",
    "OFFSET_FOR_LEADER_EPOCH",
    "PRODUCE",
]

PRODUCE = Api("""
    Produce 0, versions 0-13, flexible 9-
    request
      transactional_id  string?      3-   =null
      acks              int16
      timeout_ms        int32
      topic_data        [Topic]
        name            string       -12
        topic_id        uuid         13-
        partition_data  [Partition]
          index         int32
          records       records?
    response
      responses                        [Topic]
        name                           string         -12
        topic_id                       uuid           13-
        partition_responses            [Partition]
          index                        int32
          error_code                   int16
          base_offset                  int64
          log_append_time_ms           int64          2-   =-1
          log_start_offset             int64          5-   =-1
          record_errors                [RecordError]  8-
            batch_index                int32
            batch_index_error_message  string?             =null
          error_message                string?        8-   =null
          current_leader               Leader         10-  #0
            leader_id                  int32               =-1
            leader_epoch               int32               =-1
      throttle_time_ms                 int32          1-
      node_endpoints                   [Node]         10-  #0
        node_id                        int32
        host                           string
        port                           int32
        rack                           string?             =null
""")

FETCH = Api("""
    Fetch 1, versions 4-18, flexible 12-
    request
      cluster_id                string?           12-   =null #0
      replica_id                int32             -14   =-1
      replica_state             ReplicaState      15-   #1
        replica_id              int32                   =-1
        replica_epoch           int64                   =-1
      max_wait_ms               int32
      min_bytes                 int32
      max_bytes                 int32                   =2147483647
      isolation_level           int8
      session_id                int32             7-
      session_epoch             int32             7-    =-1
      topics                    [Topic]
        topic                   string            -12
        topic_id                uuid              13-
        partitions              [Partition]
          partition             int32
          current_leader_epoch  int32             9-    =-1
          fetch_offset          int64
          last_fetched_epoch    int32             12-   =-1
          log_start_offset      int64             5-    =-1
          partition_max_bytes   int32
          replica_directory_id  uuid              17-   #0
          high_watermark        int64             18-   =9223372036854775807 #1
      forgotten_topics_data     [ForgottenTopic]  7-
        topic                   string            7-12
        topic_id                uuid              13-
        partitions              [int32]
      rack_id                   string            11-
    response
      throttle_time_ms            int32
      error_code                  int16                  7-
      session_id                  int32                  7-
      responses                   [Topic]
        topic                     string                 -12
        topic_id                  uuid                   13-
        partitions                [Partition]
          partition_index         int32
          error_code              int16
          high_watermark          int64
          last_stable_offset      int64                       =-1
          log_start_offset        int64                  5-   =-1
          diverging_epoch         EpochEnd               12-  #0
            epoch                 int32                       =-1
            end_offset            int64                       =-1
          current_leader          Leader                 12-  #1
            leader_id             int32                       =-1
            leader_epoch          int32                       =-1
          snapshot_id             Snapshot               12-  #2
            end_offset            int64                       =-1
            epoch                 int32                       =-1
          aborted_transactions    [AbortedTransaction]?
            producer_id           int64
            first_offset          int64
          preferred_read_replica  int32                  11-  =-1
          records                 records?
      node_endpoints              [Node]                 16-  #0
        node_id                   int32
        host                      string
        port                      int32
        rack                      string?                     =null
""")

LIST_OFFSETS = Api("""
    ListOffsets 2, versions 1-11, flexible 6-
    request
      replica_id                int32
      isolation_level           int8         2-
      topics                    [Topic]
        name                    string
        partitions              [Partition]
          partition_index       int32
          current_leader_epoch  int32        4-   =-1
          timestamp             int64
      timeout_ms                int32        10-
    response
      throttle_time_ms     int32        2-
      topics               [Topic]
        name               string
        partitions         [Partition]
          partition_index  int32
          error_code       int16
          timestamp        int64            =-1
          offset           int64            =-1
          leader_epoch     int32        4-  =-1
""")

OFFSET_FOR_LEADER_EPOCH = Api("""
    OffsetForLeaderEpoch 23, versions 2-4, flexible 4-
    request
      replica_id                int32        3-  =-2
      topics                    [Topic]
        topic                   string
        partitions              [Partition]
          partition             int32
          current_leader_epoch  int32            =-1
          leader_epoch          int32
    response
      throttle_time_ms  int32
      topics            [Topic]
        topic           string
        partitions      [Partition]
          error_code    int16
          partition     int32
          leader_epoch  int32        =-1
          end_offset    int64        =-1
""")

DELETE_RECORDS = Api("""
    DeleteRecords 21, versions 0-2, flexible 2-
    request
      topics               [Topic]
        name               string
        partitions         [Partition]
          partition_index  int32
          offset           int64
      timeout_ms           int32
    response
      throttle_time_ms     int32
      topics               [Topic]
        name               string
        partitions         [Partition]
          partition_index  int32
          low_watermark    int64
          error_code       int16
""")
