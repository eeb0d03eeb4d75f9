"""Classes of Kafka's client integration tests, and why some of them, or some of their tests, cannot pass from outside.

A reason is about the test ("looks into a broker") or about Klamm ("has no quotas"). They are all in
docs/reference/apache-kafka-tests.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.interop.apache.junit import Result

__all__ = ["SUITES", "Suite", "reason_against"]

LOOKS_INSIDE = "looks into a broker"
SECOND_BROKER = "waits for another broker to take over; there is one"
KIP_848 = "uses `group.protocol=consumer` (KIP-848)"
REPLICAS = "counts two replicas; there is one"
REASSIGNMENT = "moves replicas between brokers; there is one"
BROKER_DEFAULT = "sets the default of a topic's setting for the broker; Klamm has such settings for topics only"
TELEMETRY = "Klamm does not collect metrics of clients (KIP-714)"
OLDER_TRANSACTIONS = "counts epochs as with `transaction.version` 0 or 1; here it is always 2"


@dataclass(frozen=True)
class Suite:
    why_not: str | None = None
    """Why no test of it is run; None if tests of it are."""
    cannot_pass: dict[str, str] = field(default_factory=dict)
    """Methods that cannot pass, each with the reason."""


SUITES: dict[str, Suite] = {
    "consumer.PlaintextConsumerTest": Suite(
        cannot_pass={
            "testClassicConsumerCoordinatorFailover": SECOND_BROKER,
            "testClassicConsumerCloseOnBrokerShutdown": LOOKS_INSIDE,
            "testClassicConsumerListTopics": "counts `__consumer_offsets`; offsets are in klamm.db",
            "testClassicConsumerQuotaMetricsNotCreatedIfNoQuotasConfigured": LOOKS_INSIDE,
        }
    ),
    "consumer.PlaintextConsumerAssignTest": Suite(),
    "consumer.PlaintextConsumerCallbackTest": Suite(),
    "consumer.PlaintextConsumerCloseTest": Suite(),
    "consumer.PlaintextConsumerCommitTest": Suite(),
    "consumer.PlaintextConsumerFetchTest": Suite(),
    "consumer.PlaintextConsumerPollTest": Suite(),
    "consumer.PlaintextConsumerSubscriptionTest": Suite(
        cannot_pass={
            "testRe2JPatternSubscriptionInvalidRegex": KIP_848,
            "testRe2JPatternSubscriptionAndTopicSubscription": KIP_848,
            "testTopicIdSubscriptionWithRe2JRegexAndOffsetsFetch": KIP_848,
        }
    ),
    "consumer.ConsumerBounceTest": Suite("a thread of it stops and starts brokers through their objects"),
    "consumer.ConsumerIntegrationTest": Suite(
        cannot_pass={
            "testRackAwareAssignment": "wants three brokers in three racks",
            "testSingleCoordinatorOwnershipAfterPartitionReassignment": REASSIGNMENT,
            "testFetchPartitionsWithAlwaysFailedListenerWithGroupProtocolConsumer": KIP_848,
            "testFetchPartitionsAfterFailedListenerWithGroupProtocolConsumer": KIP_848,
            "testLeaderEpoch": SECOND_BROKER,
        }
    ),
    "consumer.ConsumerTopicCreationTest": Suite(),
    "consumer.ConsumerWithLegacyMessageFormatIntegrationTest": Suite("writes old formats into the log of a broker"),
    "consumer.SaslPlainPlaintextConsumerTest": Suite(
        cannot_pass={"testClassicConsumerCoordinatorFailover": SECOND_BROKER}
    ),
    "consumer.ShareConsumerTest": Suite("Klamm has no share groups"),
    "consumer.ShareConsumerRackAwareTest": Suite("Klamm has no share groups"),
    "producer.ProducerCompressionTest": Suite(),
    "producer.ProducerFailureHandlingTest": Suite(
        cannot_pass={
            "testCannotSendToInternalTopic": LOOKS_INSIDE,
            "testNotEnoughReplicasAfterBrokerShutdown": LOOKS_INSIDE,
            "testTooLargeRecordWithAckOne": f"{BROKER_DEFAULT} (`message.max.bytes`)",
        }
    ),
    "producer.ProducerIdExpirationTest": Suite(
        cannot_pass={
            "testDynamicProducerIdExpirationMs": LOOKS_INSIDE,
        }
    ),
    "producer.ProducerIntegrationTest": Suite(cannot_pass={"testUniqueProducerIds": LOOKS_INSIDE}),
    "producer.ProducerSendWhileDeletionTest": Suite(
        cannot_pass={
            "testSendWithTopicDeletionMidWay": REASSIGNMENT,
            "testSendWithTopicReassignmentIsMidWay": REASSIGNMENT,
            "testSendWithRecreatedTopic": LOOKS_INSIDE,
        }
    ),
    "producer.SocketServerMemoryPoolTest": Suite("looks at the memory pool of a broker"),
    "admin.AdminClientWithPoliciesIntegrationTest": Suite("policies are classes that a broker loads"),
    "admin.AdminFenceProducersTest": Suite(),
    "admin.AutoTopicCreationTest": Suite(
        cannot_pass={
            "testAutoCreateTopicWithImplicitBrokerConfig": REPLICAS,
            "testAutoCreateTopicWithMixedConfig": REPLICAS,
            "testAutoCreateTopicWithExplicitBrokerConfig": REPLICAS,
        }
    ),
    "admin.ClientTelemetryTest": Suite(
        cannot_pass={"testIntervalMsParser": TELEMETRY, "testClientInstanceId": TELEMETRY}
    ),
    "admin.ConcurrentListOffsetsRequestTest": Suite(),
    "admin.DeleteTopicTest": Suite(
        cannot_pass={
            "testRecreateTopicAfterDeletion": LOOKS_INSIDE,
            "testIncreasePartitionCountDuringDeleteTopic": LOOKS_INSIDE,
            "testDeleteTopicDuringAddPartition": LOOKS_INSIDE,
            "testDeleteTopicWithCleaner": LOOKS_INSIDE,
            "testResumeDeleteTopicWithRecoveredFollower": LOOKS_INSIDE,
            "testPartitionReassignmentDuringDeleteTopic": LOOKS_INSIDE,
            "testAddPartitionDuringDeleteTopic": LOOKS_INSIDE,
            "testDeleteNonExistingTopic": LOOKS_INSIDE,
            "testDisableDeleteTopic": LOOKS_INSIDE,
        }
    ),
    "admin.DescribeAuthorizedOperationsTest": Suite(),
    "admin.DescribeFeaturesTest": Suite("asks a controller for its features"),
    "admin.DescribeProducersWithBrokerIdTest": Suite(
        cannot_pass={
            "testDescribeProducersFromFollower": "looks for a follower; there is one broker",
            "testDescribeProducersWithInvalidBrokerId": "looks for a second broker; there is one",
        }
    ),
    "admin.DynamicGroupConfigIntegrationTest": Suite(
        "sets settings of a group (resource type 32), which belong to KIP-848 and share groups"
    ),
    "admin.ListOffsetsIntegrationTest": Suite(
        cannot_pass={
            f"testThree{records}Records{batches}{server}": "passes for one leader, then wants a second broker"
            for records, batches, server in (
                ("NonCompressed", "InOneBatch", ""),
                ("NonCompressed", "InSeparateBatch", ""),
                ("Compressed", "InOneBatch", ""),
                ("Compressed", "InSeparateBatch", ""),
                ("", "InOneBatch", "HavingDifferentCompressionTypeWithServer"),
                ("", "InSeparateBatch", "HavingDifferentCompressionTypeWithServer"),
            )
        }
    ),
    "admin.RackAwareAutoTopicCreationTest": Suite("wants brokers in three racks"),
    "admin.StaticBrokerConfigTest": Suite("asks a controller, or counts settings of topics: Klamm has two of its own"),
    "TransactionsExpirationTest": Suite(
        cannot_pass={
            "testTransactionAfterProducerIdExpiresWithTV1": OLDER_TRANSACTIONS,
        }
    ),
    "TransactionsWithMaxInFlightOneTest": Suite(),
}


def reason_against(result: Result) -> str | None:
    """Return why this test cannot pass from outside; None if it should."""
    suite = SUITES.get(result.suite)
    return suite.cannot_pass.get(result.test.partition("[")[0]) if suite else None
