package org.apache.kafka.common.test.junit;

import java.util.List;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.Extension;
import org.junit.jupiter.api.extension.TestTemplateInvocationContext;

/**
 * One invocation of a cluster test, on a fresh `klamm serve` instead of on brokers in this JVM.
 *
 * Apache Kafka's ClusterTestExtensions makes one of these, by this name, for each invocation: on the class path, this class precedes Kafka's.
 */
public class RaftClusterInvocationContext implements TestTemplateInvocationContext {
    private final String displayName;
    private final ClusterConfig config;

    public RaftClusterInvocationContext(String displayName, ClusterConfig config, boolean isCombined) {
        this.displayName = displayName;
        this.config = config;
    }

    @Override
    public String getDisplayName(int index) {
        return displayName;
    }

    @Override
    public List<Extension> getAdditionalExtensions() {
        KlammCluster cluster = new KlammCluster(config);
        BeforeEachCallback before = context -> {
            if (config.isAutoStart()) cluster.start();
        };
        AfterEachCallback after = context -> cluster.stop();
        return List.of(before, after, new ClusterInstanceParameterResolver(cluster));
    }
}
