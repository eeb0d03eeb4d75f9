"""Messages about quotas of clients. The notation: see `notation`."""

from klamm.kafka.wire.codec import Api

__all__ = ["ALTER_CLIENT_QUOTAS", "DESCRIBE_CLIENT_QUOTAS"]

DESCRIBE_CLIENT_QUOTAS = Api("""
    DescribeClientQuotas 48, versions 0-1, flexible 1-
    request
      components        [Component]
        entity_type     string
        match_type      int8
        match           string?
      strict            bool
    response
      throttle_time_ms  int32
      error_code        int16
      error_message     string?
      entries           [Entry]?
        entity          [Entity]
          entity_type   string
          entity_name   string?
        values          [Value]
          key           string
          value         float64
""")

ALTER_CLIENT_QUOTAS = Api("""
    AlterClientQuotas 49, versions 0-1, flexible 1-
    request
      entries           [Entry]
        entity          [Entity]
          entity_type   string
          entity_name   string?
        ops             [Operation]
          key           string
          value         float64
          remove        bool
      validate_only     bool
    response
      throttle_time_ms  int32
      entries           [Result]
        error_code      int16
        error_message   string?
        entity          [Entity]
          entity_type   string
          entity_name   string?
""")
