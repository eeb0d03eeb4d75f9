"""Messages about users. The notation: see `notation`."""

from klamm.kafka.wire.codec import Api

__all__ = ["ALTER_USER_SCRAM_CREDENTIALS", "DESCRIBE_USER_SCRAM_CREDENTIALS"]

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
