"""Classes of Kafka's client integration tests, and why some of them, or some of their tests, cannot pass from outside.

A reason is about the test ("it looks into a broker") or about Klamm ("no quotas"); docs/reference/apache-kafka-tests.md
shows them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.interop.apache.junit import Result

__all__ = ["SUITES", "Suite", "reason_against"]


@dataclass(frozen=True)
class Suite:
    why_not: str | None = None
    """Why no test of it is run; None if tests of it are."""
    cannot_pass: dict[str, str] = field(default_factory=dict)
    """Methods that cannot pass, each with the reason."""


SUITES: dict[str, Suite] = {
    name: Suite()
    for name in (
        "consumer.PlaintextConsumerTest",
        "consumer.PlaintextConsumerAssignTest",
        "consumer.PlaintextConsumerCallbackTest",
        "consumer.PlaintextConsumerCloseTest",
        "consumer.PlaintextConsumerCommitTest",
        "consumer.PlaintextConsumerFetchTest",
        "consumer.PlaintextConsumerPollTest",
        "consumer.PlaintextConsumerSubscriptionTest",
        "consumer.ConsumerBounceTest",
        "consumer.ConsumerIntegrationTest",
        "consumer.ConsumerTopicCreationTest",
        "consumer.ConsumerWithLegacyMessageFormatIntegrationTest",
        "producer.ProducerCompressionTest",
        "producer.ProducerFailureHandlingTest",
        "producer.ProducerIdExpirationTest",
        "producer.ProducerIntegrationTest",
        "producer.ProducerSendWhileDeletionTest",
        "producer.SocketServerMemoryPoolTest",
        "admin.AdminClientWithPoliciesIntegrationTest",
        "admin.AdminFenceProducersTest",
        "admin.AutoTopicCreationTest",
        "admin.ClientTelemetryTest",
        "admin.ConcurrentListOffsetsRequestTest",
        "admin.DeleteTopicTest",
        "admin.DescribeAuthorizedOperationsTest",
        "admin.DescribeFeaturesTest",
        "admin.DescribeProducersWithBrokerIdTest",
        "admin.DynamicGroupConfigIntegrationTest",
        "admin.ListOffsetsIntegrationTest",
        "admin.RackAwareAutoTopicCreationTest",
        "admin.StaticBrokerConfigTest",
        "TransactionsExpirationTest",
        "TransactionsWithMaxInFlightOneTest",
    )
}


def reason_against(result: Result) -> str | None:
    """Return why this test cannot pass from outside; None if it should."""
    suite = SUITES.get(result.suite)
    return suite.cannot_pass.get(result.test.partition("[")[0]) if suite else None
