"""Messages of idempotent and transactional producers. The notation: see `notation`."""

from klamm.kafka.wire.codec import Api

__all__ = [
    "ADD_OFFSETS_TO_TXN",
    "ADD_PARTITIONS_TO_TXN",
    "DECIDE_TRANSACTIONS",
    "DESCRIBE_PRODUCERS",
    "DESCRIBE_TRANSACTIONS",
    "END_TXN",
    "INIT_PRODUCER_ID",
    "LIST_TRANSACTIONS",
    "TXN_OFFSET_COMMIT",
]

INIT_PRODUCER_ID = Api("""
    InitProducerId 22, versions 0-5, flexible 2-
    request
      transactional_id        string?
      transaction_timeout_ms  int32
      producer_id             int64     3-  =-1
      producer_epoch          int16     3-  =-1
    response
      throttle_time_ms  int32
      error_code        int16
      producer_id       int64     =-1
      producer_epoch    int16
""")

ADD_PARTITIONS_TO_TXN = Api("""
    AddPartitionsToTxn 24, versions 0-5, flexible 3-
    request
      transactions                   [Transaction]  4-
        transactional_id             string
        producer_id                  int64
        producer_epoch               int16
        verify_only                  bool
        topics                       [Topic]
          name                       string
          partitions                 [int32]
      v3_and_below_transactional_id  string         -3
      v3_and_below_producer_id       int64          -3
      v3_and_below_producer_epoch    int16          -3
      v3_and_below_topics            [Topic]        -3
    response
      throttle_time_ms               int32
      error_code                     int16          4-
      results_by_transaction         [Transaction]  4-
        transactional_id             string
        topic_results                [Topic]
          name                       string
          results_by_partition       [Partition]
            partition_index          int32
            partition_error_code     int16
      results_by_topic_v3_and_below  [Topic]        -3
""")

ADD_OFFSETS_TO_TXN = Api("""
    AddOffsetsToTxn 25, versions 0-4, flexible 3-
    request
      transactional_id  string
      producer_id       int64
      producer_epoch    int16
      group_id          string
    response
      throttle_time_ms  int32
      error_code        int16
""")

TXN_OFFSET_COMMIT = Api("""
    TxnOffsetCommit 28, versions 0-5, flexible 3-
    request
      transactional_id            string
      group_id                    string
      producer_id                 int64
      producer_epoch              int16
      generation_id               int32        3-  =-1
      member_id                   string       3-
      group_instance_id           string?      3-  =null
      topics                      [Topic]
        name                      string
        partitions                [Partition]
          partition_index         int32
          committed_offset        int64
          committed_leader_epoch  int32        2-  =-1
          committed_metadata      string?
    response
      throttle_time_ms     int32
      topics               [Topic]
        name               string
        partitions         [Partition]
          partition_index  int32
          error_code       int16
""")

END_TXN = Api("""
    EndTxn 26, versions 0-5, flexible 3-
    request
      transactional_id  string
      producer_id       int64
      producer_epoch    int16
      committed         bool
    response
      throttle_time_ms  int32
      error_code        int16
      producer_id       int64     5-  =-1
      producer_epoch    int16     5-  =-1
""")

DESCRIBE_TRANSACTIONS = Api("""
    DescribeTransactions 65, versions 0-0, flexible 0-
    request
      transactional_ids  [string]
    response
      throttle_time_ms             int32
      transaction_states           [Transaction]
        error_code                 int16
        transactional_id           string
        transaction_state          string
        transaction_timeout_ms     int32
        transaction_start_time_ms  int64
        producer_id                int64
        producer_epoch             int16
        topics                     [Topic]
          topic                    string
          partitions               [int32]
""")

LIST_TRANSACTIONS = Api("""
    ListTransactions 66, versions 0-2, flexible 0-
    request
      state_filters             [string]
      producer_id_filters       [int64]
      duration_filter           int64     1-  =-1
      transactional_id_pattern  string?   2-  =null
    response
      throttle_time_ms       int32
      error_code             int16
      unknown_state_filters  [string]
      transaction_states     [Transaction]
        transactional_id     string
        producer_id          int64
        transaction_state    string
""")

DECIDE_TRANSACTIONS = Api("""
    DecideTransactions 20000, versions 0-0, flexible 0-
    request
      writer              string
      scope               string
      transactions        [Transaction]
        transactional_id  string
        producer_id       int64
        producer_epoch    int16
      committed           bool
      topics              [Topic]
        topic_id          uuid
      number              Number?        =null
        target            string
        number            int64
        fingerprint       string
        note              string
        last_number       int64          =-1
        last_fingerprint  string
      validate_only       bool
      forgets_ids         bool
    response
      throttle_time_ms    int32
      error_code          int16
      error_message       string?        =null
      last_number         int64          =-1
      last_fingerprint    string
      last_note           string
""")
"""Klamm's own: several transactions have one end, and with it a writer's number is recorded. Kafka has no such API."""

DESCRIBE_PRODUCERS = Api("""
    DescribeProducers 61, versions 0-0, flexible 0-
    request
      topics               [Topic]
        name               string
        partition_indexes  [int32]
    response
      throttle_time_ms                int32
      topics                          [Topic]
        name                          string
        partitions                    [Partition]
          partition_index             int32
          error_code                  int16
          error_message               string?      =null
          active_producers            [Producer]
            producer_id               int64
            producer_epoch            int32
            last_sequence             int32        =-1
            last_timestamp            int64        =-1
            coordinator_epoch         int32
            current_txn_start_offset  int64        =-1
""")
