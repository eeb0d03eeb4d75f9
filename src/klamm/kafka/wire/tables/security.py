"""Messages about users and ACLs. The notation: see `notation`."""

from klamm.kafka.wire.codec import Api

__all__ = [
    "ALTER_USER_SCRAM_CREDENTIALS",
    "CREATE_ACLS",
    "DELETE_ACLS",
    "DESCRIBE_ACLS",
    "DESCRIBE_USER_SCRAM_CREDENTIALS",
]

DESCRIBE_USER_SCRAM_CREDENTIALS = Api("""
    DescribeUserScramCredentials 50, versions 0-0, flexible 0-
    request
      users             [User]?
        name            string
    response
      throttle_time_ms    int32
      error_code          int16
      error_message       string?
      results             [Result]
        user              string
        error_code        int16
        error_message     string?
        credential_infos  [Credential]
          mechanism       int8
          iterations      int32
""")

ALTER_USER_SCRAM_CREDENTIALS = Api("""
    AlterUserScramCredentials 51, versions 0-0, flexible 0-
    request
      deletions         [Deletion]
        name            string
        mechanism       int8
      upsertions        [Upsertion]
        name            string
        mechanism       int8
        iterations      int32
        salt            bytes
        salted_password bytes
    response
      throttle_time_ms  int32
      results           [Result]
        user            string
        error_code      int16
        error_message   string?
""")

DESCRIBE_ACLS = Api("""
    DescribeAcls 29, versions 1-3, flexible 2-
    request
      resource_type_filter  int8
      resource_name_filter  string?
      pattern_type_filter   int8       =3
      principal_filter      string?
      host_filter           string?
      operation             int8
      permission_type       int8
    response
      throttle_time_ms      int32
      error_code            int16
      error_message         string?
      resources             [Resource]
        resource_type       int8
        resource_name       string
        pattern_type        int8       =3
        acls                [Acl]
          principal         string
          host              string
          operation         int8
          permission_type   int8
""")

CREATE_ACLS = Api("""
    CreateAcls 30, versions 1-3, flexible 2-
    request
      creations                [Creation]
        resource_type          int8
        resource_name          string
        resource_pattern_type  int8    =3
        principal              string
        host                   string
        operation              int8
        permission_type        int8
    response
      throttle_time_ms         int32
      results                  [Result]
        error_code             int16
        error_message          string?
""")

DELETE_ACLS = Api("""
    DeleteAcls 31, versions 1-3, flexible 2-
    request
      filters                  [Filter]
        resource_type_filter   int8
        resource_name_filter   string?
        pattern_type_filter    int8    =3
        principal_filter       string?
        host_filter            string?
        operation              int8
        permission_type        int8
    response
      throttle_time_ms         int32
      filter_results           [FilterResult]
        error_code             int16
        error_message          string?
        matching_acls          [MatchingAcl]
          error_code           int16
          error_message        string?
          resource_type        int8
          resource_name        string
          pattern_type         int8    =3
          principal            string
          host                 string
          operation            int8
          permission_type      int8
""")
