"""Messages that create, change and delete topics, and their settings. The notation: see `notation`."""

from klamm.kafka.wire.codec import Api

__all__ = [
    "ALTER_CONFIGS",
    "CREATE_PARTITIONS",
    "CREATE_TOPICS",
    "DELETE_TOPICS",
    "DESCRIBE_CONFIGS",
    "INCREMENTAL_ALTER_CONFIGS",
]

CREATE_TOPICS = Api("""
    CreateTopics 19, versions 2-7, flexible 5-
    request
      topics                [Topic]
        name                string
        num_partitions      int32
        replication_factor  int16
        assignments         [Assignment]
          partition_index   int32
          broker_ids        [int32]
        configs             [Config]
          name              string
          value             string?
      timeout_ms            int32         =60000
      validate_only         bool
    response
      throttle_time_ms           int32
      topics                     [Topic]
        name                     string
        topic_id                 uuid       7-
        error_code               int16
        error_message            string?
        topic_config_error_code  int16      5-  #0
        num_partitions           int32      5-  =-1
        replication_factor       int16      5-  =-1
        configs                  [Config]?  5-
          name                   string
          value                  string?
          read_only              bool
          config_source          int8           =-1
          is_sensitive           bool
""")

DELETE_TOPICS = Api("""
    DeleteTopics 20, versions 1-6, flexible 4-
    request
      topics            [Topic]   6-
        name            string?       =null
        topic_id        uuid
      topic_names       [string]  -5
      timeout_ms        int32
    response
      throttle_time_ms  int32
      responses         [Topic]
        name            string?6
        topic_id        uuid      6-
        error_code      int16
        error_message   string?   5-  =null
""")

CREATE_PARTITIONS = Api("""
    CreatePartitions 37, versions 0-3, flexible 2-
    request
      topics            [Topic]
        name            string
        count           int32
        assignments     [Assignment]?
          broker_ids    [int32]
      timeout_ms        int32
      validate_only     bool
    response
      throttle_time_ms  int32
      results           [Topic]
        name            string
        error_code      int16
        error_message   string?   =null
""")

DESCRIBE_CONFIGS = Api("""
    DescribeConfigs 32, versions 1-4, flexible 4-
    request
      resources              [Resource]
        resource_type        int8
        resource_name        string
        configuration_keys   [string]?
      include_synonyms       bool
      include_documentation  bool        3-
    response
      throttle_time_ms   int32
      results            [Resource]
        error_code       int16
        error_message    string?
        resource_type    int8
        resource_name    string
        configs          [Config]
          name           string
          value          string?
          read_only      bool
          config_source  int8            =-1
          is_sensitive   bool
          synonyms       [Synonym]
            name         string
            value        string?
            source       int8
          config_type    int8        3-
          documentation  string?     3-
""")

ALTER_CONFIGS = Api("""
    AlterConfigs 33, versions 0-2, flexible 2-
    request
      resources         [Resource]
        resource_type   int8
        resource_name   string
        configs         [Config]
          name          string
          value         string?
      validate_only     bool
    response
      throttle_time_ms  int32
      responses         [Resource]
        error_code      int16
        error_message   string?
        resource_type   int8
        resource_name   string
""")

INCREMENTAL_ALTER_CONFIGS = Api("""
    IncrementalAlterConfigs 44, versions 0-1, flexible 1-
    request
      resources             [Resource]
        resource_type       int8
        resource_name       string
        configs             [Config]
          name              string
          config_operation  int8
          value             string?
      validate_only         bool
    response
      throttle_time_ms  int32
      responses         [Resource]
        error_code      int16
        error_message   string?
        resource_type   int8
        resource_name   string
""")
