"""Messages about the server itself: versions, who asks, brokers, directories. The notation: see `notation`."""

from klamm.kafka.wire.codec import Api

__all__ = [
    "API_VERSIONS",
    "DESCRIBE_CLUSTER",
    "DESCRIBE_LOG_DIRS",
    "DESCRIBE_TOPIC_PARTITIONS",
    "METADATA",
    "SASL_AUTHENTICATE",
    "SASL_HANDSHAKE",
]

API_VERSIONS = Api("""
    ApiVersions 18, versions 0-4, flexible 3-
    request
      client_software_name     string    3-
      client_software_version  string    3-
    response
      error_code                int16
      api_keys                  [ApiVersion]
        api_key                 int16
        min_version             int16
        max_version             int16
      throttle_time_ms          int32               1-
      supported_features        [SupportedFeature]  3-  #0
        name                    string
        min_version             int16
        max_version             int16
      finalized_features_epoch  int64               3-  =-1 #1
      finalized_features        [FinalizedFeature]  3-  #2
        name                    string
        max_version_level       int16
        min_version_level       int16
      zk_migration_ready        bool                3-  #3
""")

SASL_HANDSHAKE = Api("""
    SaslHandshake 17, versions 0-1
    request
      mechanism         string
    response
      error_code        int16
      mechanisms        [string]
""")

SASL_AUTHENTICATE = Api("""
    SaslAuthenticate 36, versions 0-2, flexible 2-
    request
      auth_bytes        bytes
    response
      error_code           int16
      error_message        string?
      auth_bytes           bytes
      session_lifetime_ms  int64     1-
""")

METADATA = Api("""
    Metadata 3, versions 0-13, flexible 9-
    request
      topics                                 [Topic]?1
        topic_id                             uuid       10-
        name                                 string?10
      allow_auto_topic_creation              bool       4-    =true
      include_cluster_authorized_operations  bool       8-10
      include_topic_authorized_operations    bool       8-
    response
      throttle_time_ms               int32        3-
      brokers                        [Broker]
        node_id                      int32
        host                         string
        port                         int32
        rack                         string?      1-    =null
      cluster_id                     string?      2-    =null
      controller_id                  int32        1-    =-1
      topics                         [Topic]
        error_code                   int16
        name                         string?12
        topic_id                     uuid         10-
        is_internal                  bool         1-
        partitions                   [Partition]
          error_code                 int16
          partition_index            int32
          leader_id                  int32
          leader_epoch               int32        7-    =-1
          replica_nodes              [int32]
          isr_nodes                  [int32]
          offline_replicas           [int32]      5-
        topic_authorized_operations  int32        8-    =-2147483648
      cluster_authorized_operations  int32        8-10  =-2147483648
      error_code                     int16        13-
""")

DESCRIBE_TOPIC_PARTITIONS = Api("""
    DescribeTopicPartitions 75, versions 0-0, flexible 0-
    request
      topics                    [Topic]
        name                    string
      response_partition_limit  int32     =2000
      cursor                    Cursor?   =null
        topic_name              string
        partition_index         int32
    response
      throttle_time_ms               int32
      topics                         [Topic]
        error_code                   int16
        name                         string?
        topic_id                     uuid
        is_internal                  bool
        partitions                   [Partition]
          error_code                 int16
          partition_index            int32
          leader_id                  int32
          leader_epoch               int32        =-1
          replica_nodes              [int32]
          isr_nodes                  [int32]
          eligible_leader_replicas   [int32]?     =null
          last_known_elr             [int32]?     =null
          offline_replicas           [int32]
        topic_authorized_operations  int32        =-2147483648
      next_cursor                    Cursor?      =null
        topic_name                   string
        partition_index              int32
""")

DESCRIBE_CLUSTER = Api("""
    DescribeCluster 60, versions 0-2, flexible 0-
    request
      include_cluster_authorized_operations  bool
      endpoint_type                          int8      1-  =1
      include_fenced_brokers                 bool      2-
    response
      throttle_time_ms               int32
      error_code                     int16
      error_message                  string?       =null
      endpoint_type                  int8      1-  =1
      cluster_id                     string
      controller_id                  int32         =-1
      brokers                        [Broker]
        broker_id                    int32
        host                         string
        port                         int32
        rack                         string?       =null
        is_fenced                    bool      2-
      cluster_authorized_operations  int32         =-2147483648
""")

DESCRIBE_LOG_DIRS = Api("""
    DescribeLogDirs 35, versions 1-5, flexible 2-
    request
      topics            [Topic]?
        topic           string
        partitions      [int32]
    response
      throttle_time_ms       int32
      error_code             int16        3-
      results                [LogDir]
        error_code           int16
        log_dir              string
        topics               [Topic]
          name               string
          partitions         [Partition]
            partition_index  int32
            partition_size   int64
            offset_lag       int64
            is_future_key    bool
        total_bytes          int64        4-  =-1
        usable_bytes         int64        4-  =-1
        is_cordoned          bool         5-
""")
