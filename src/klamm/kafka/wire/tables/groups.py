"""Messages of groups: membership, and offsets that they committed. The notation: see `notation`."""

from klamm.kafka.wire.codec import Api

__all__ = [
    "CONSUMER_GROUP_HEARTBEAT",
    "DELETE_GROUPS",
    "DESCRIBE_GROUPS",
    "FIND_COORDINATOR",
    "HEARTBEAT",
    "JOIN_GROUP",
    "LEAVE_GROUP",
    "LIST_GROUPS",
    "OFFSET_COMMIT",
    "OFFSET_DELETE",
    "OFFSET_FETCH",
    "SYNC_GROUP",
]

CONSUMER_GROUP_HEARTBEAT = Api("""
    ConsumerGroupHeartbeat 68, versions 0-1, flexible 0-
    request
      group_id                string
      member_id               string
      member_epoch            int32
      instance_id             string?            =null
      rack_id                 string?            =null
      rebalance_timeout_ms    int32              =-1
      subscribed_topic_names  [string]?          =null
      subscribed_topic_regex  string?        1-  =null
      server_assignor         string?            =null
      topic_partitions        [TopicPartitions]?  =null
        topic_id              uuid
        partitions            [int32]
    response
      throttle_time_ms        int32
      error_code              int16
      error_message           string?      =null
      member_id               string?      =null
      member_epoch            int32
      heartbeat_interval_ms   int32
      assignment              Assignment?  =null
        topic_partitions      [TopicPartitions]
          topic_id            uuid
          partitions          [int32]
""")

FIND_COORDINATOR = Api("""
    FindCoordinator 10, versions 0-6, flexible 3-
    request
      key               string    -3
      key_type          int8      1-
      coordinator_keys  [string]  4-
    response
      throttle_time_ms  int32          1-
      error_code        int16          -3
      error_message     string?        1-3
      node_id           int32          -3
      host              string         -3
      port              int32          -3
      coordinators      [Coordinator]  4-
        key             string
        node_id         int32
        host            string
        port            int32
        error_code      int16
        error_message   string?
""")

JOIN_GROUP = Api("""
    JoinGroup 11, versions 0-9, flexible 6-
    request
      group_id              string
      session_timeout_ms    int32
      rebalance_timeout_ms  int32       1-  =-1
      member_id             string
      group_instance_id     string?     5-  =null
      protocol_type         string
      protocols             [Protocol]
        name                string
        metadata            bytes
      reason                string?     8-  =null
    response
      throttle_time_ms     int32     2-
      error_code           int16
      generation_id        int32         =-1
      protocol_type        string?   7-  =null
      protocol_name        string?7
      leader               string
      skip_assignment      bool      9-
      member_id            string
      members              [Member]
        member_id          string
        group_instance_id  string?   5-  =null
        metadata           bytes
""")

SYNC_GROUP = Api("""
    SyncGroup 14, versions 0-5, flexible 4-
    request
      group_id           string
      generation_id      int32
      member_id          string
      group_instance_id  string?       3-  =null
      protocol_type      string?       5-  =null
      protocol_name      string?       5-  =null
      assignments        [Assignment]
        member_id        string
        assignment       bytes
    response
      throttle_time_ms  int32     1-
      error_code        int16
      protocol_type     string?   5-  =null
      protocol_name     string?   5-  =null
      assignment        bytes
""")

HEARTBEAT = Api("""
    Heartbeat 12, versions 0-4, flexible 4-
    request
      group_id           string
      generation_id      int32
      member_id          string
      group_instance_id  string?   3-  =null
    response
      throttle_time_ms  int32     1-
      error_code        int16
""")

LEAVE_GROUP = Api("""
    LeaveGroup 13, versions 0-5, flexible 4-
    request
      group_id             string
      member_id            string    -2
      members              [Member]  3-
        member_id          string
        group_instance_id  string?       =null
        reason             string?   5-  =null
    response
      throttle_time_ms     int32     1-
      error_code           int16
      members              [Member]  3-
        member_id          string
        group_instance_id  string?
        error_code         int16
""")

OFFSET_COMMIT = Api("""
    OffsetCommit 8, versions 2-10, flexible 8-
    request
      group_id                       string
      generation_id_or_member_epoch  int32             =-1
      member_id                      string
      group_instance_id              string?      7-   =null
      retention_time_ms              int64        -4   =-1
      topics                         [Topic]
        name                         string       -9
        topic_id                     uuid         10-
        partitions                   [Partition]
          partition_index            int32
          committed_offset           int64
          committed_leader_epoch     int32        6-   =-1
          committed_metadata         string?
    response
      throttle_time_ms     int32        3-
      topics               [Topic]
        name               string       -9
        topic_id           uuid         10-
        partitions         [Partition]
          partition_index  int32
          error_code       int16
""")

OFFSET_FETCH = Api("""
    OffsetFetch 9, versions 1-10, flexible 6-
    request
      group_id               string         -7
      topics                 [Topic]?2      -7
        name                 string
        partition_indexes    [int32]
      groups                 [Group]        8-
        group_id             string
        member_id            string?        9-   =null
        member_epoch         int32          9-   =-1
        topics               [GroupTopic]?
          name               string         8-9
          topic_id           uuid           10-
          partition_indexes  [int32]
      require_stable         bool           7-
    response
      throttle_time_ms              int32             3-
      topics                        [Topic]           -7
        name                        string
        partitions                  [Partition]
          partition_index           int32
          committed_offset          int64
          committed_leader_epoch    int32             5-7  =-1
          metadata                  string?
          error_code                int16
      error_code                    int16             2-7
      groups                        [Group]           8-
        group_id                    string
        topics                      [GroupTopic]
          name                      string            8-9
          topic_id                  uuid              10-
          partitions                [GroupPartition]
            partition_index         int32
            committed_offset        int64
            committed_leader_epoch  int32                  =-1
            metadata                string?
            error_code              int16
        error_code                  int16
""")

OFFSET_DELETE = Api("""
    OffsetDelete 47, versions 0-0
    request
      group_id             string
      topics               [Topic]
        name               string
        partitions         [Partition]
          partition_index  int32
    response
      error_code           int16
      throttle_time_ms     int32
      topics               [Topic]
        name               string
        partitions         [Partition]
          partition_index  int32
          error_code       int16
""")

DESCRIBE_GROUPS = Api("""
    DescribeGroups 15, versions 0-6, flexible 5-
    request
      groups                         [string]
      include_authorized_operations  bool      3-
    response
      throttle_time_ms         int32     1-
      groups                   [Group]
        error_code             int16
        error_message          string?   6-  =null
        group_id               string
        group_state            string
        protocol_type          string
        protocol_data          string
        members                [Member]
          member_id            string
          group_instance_id    string?   4-  =null
          client_id            string
          client_host          string
          member_metadata      bytes
          member_assignment    bytes
        authorized_operations  int32     3-  =-2147483648
""")

LIST_GROUPS = Api("""
    ListGroups 16, versions 0-5, flexible 3-
    request
      states_filter     [string]  4-
      types_filter      [string]  5-
    response
      throttle_time_ms  int32     1-
      error_code        int16
      groups            [Group]
        group_id        string
        protocol_type   string
        group_state     string    4-
        group_type      string    5-
""")

DELETE_GROUPS = Api("""
    DeleteGroups 42, versions 0-2, flexible 2-
    request
      groups_names      [string]
    response
      throttle_time_ms  int32
      results           [Group]
        group_id        string
        error_code      int16
""")
