package org.apache.kafka.common.test.junit;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.AbstractMap;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import kafka.server.ControllerServer;
import kafka.server.KafkaBroker;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.JaasUtils;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.apache.kafka.server.fault.FaultHandlerException;

/**
 * A cluster of one node: a process of `klamm serve` with a store of its own.
 *
 * System properties: klamm.command, the program; klamm.settings and klamm.store.settings, the names of the server's and of the store's
 * settings, separated by commas; klamm.stores, a directory for stores and logs. Properties of the cluster that are settings go there. Whatever looks into a broker throws
 * UnsupportedOperationException.
 */
final class KlammCluster implements ClusterInstance {
    private static final int NODE = 0; // as Kafka's test kit numbers the first broker
    private static final String FOREIGN_REPLICAS = "foreign.replicas.enable";
    private static final long WAIT_MS = 60_000;
    private static final Pattern READY = Pattern.compile("klamm: serving .+ at (\\S+):(\\d+) ");
    private static final Set<String> SETTINGS = names("klamm.settings");
    private static final Set<String> STORE_SETTINGS = names("klamm.store.settings");

    private final ClusterConfig config;
    private Path directory;
    private Process process;
    private int port = 0; // any at first; the same one when the server starts again
    private boolean started = false;
    private boolean stopped = false;

    KlammCluster(ClusterConfig config) {
        this.config = config;
    }

    private static Set<String> names(String property) {
        return Set.copyOf(Arrays.asList(System.getProperty(property).split(",")));
    }

    private static UnsupportedOperationException inside(String what) {
        return new UnsupportedOperationException(what + ": not to be had from outside of a server");
    }

    @Override
    public void start() {
        if (started) return;
        try {
            directory = Files.createTempDirectory(Path.of(System.getProperty("klamm.stores")), "cluster");
            launch();
            started = true;
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private void launch() throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of(System.getProperty("klamm.command"), "serve", directory.resolve("store").toString()));
        command.addAll(List.of("--kafka", String.valueOf(port), "--log-level", "warning", "--set", "node-id=" + NODE));
        if (config.numBrokers() > 1 && SETTINGS.contains(FOREIGN_REPLICAS)) command.addAll(List.of("--set", FOREIGN_REPLICAS + "=true"));
        // One node is all of the cluster: it has what is set for any node, and rather what is set for the first broker.
        Map<String, String> properties = new TreeMap<>(config.serverProperties());
        config.perServerOverrideProperties().values().forEach(properties::putAll);
        properties.putAll(config.perServerOverrideProperties().getOrDefault(NODE, Map.of()));
        if (hasLogins()) {
            addUsers();
            // As Kafka's test kit has it.
            properties.put("listeners", "SASL_PLAINTEXT://127.0.0.1:" + port);
            properties.putIfAbsent("sasl.enabled.mechanisms", "PLAIN");
            properties.putIfAbsent("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer");
            properties.putIfAbsent("super.users", "User:" + JaasUtils.KAFKA_PLAIN_ADMIN);
        }
        properties.forEach((name, value) -> {
            String setting = name.equals("num.partitions") ? "default-partitions" : name;
            if (SETTINGS.contains(setting)) command.addAll(List.of("--set", setting + "=" + value));
        });
        Path output = directory.resolve("stdout");
        process = new ProcessBuilder(command)
            .redirectOutput(output.toFile())
            .redirectError(ProcessBuilder.Redirect.appendTo(directory.resolve("stderr").toFile()))
            .start();
        await("klamm serve is ready", () -> {
            Matcher ready = READY.matcher(Files.readString(output));
            if (!ready.find()) {
                if (!process.isAlive()) throw new IllegalStateException(Files.readString(directory.resolve("stderr")));
                return false;
            }
            port = Integer.parseInt(ready.group(2));
            return true;
        });
        alterStore(properties);
    }

    private boolean hasLogins() {
        return config.brokerSecurityProtocol() == SecurityProtocol.SASL_PLAINTEXT;
    }

    private void addUsers() throws IOException, InterruptedException {
        if (started) return; // the store has them
        addUser(JaasUtils.KAFKA_PLAIN_ADMIN, JaasUtils.KAFKA_PLAIN_ADMIN_PASSWORD);
        addUser(JaasUtils.KAFKA_PLAIN_USER1, JaasUtils.KAFKA_PLAIN_USER1_PASSWORD);
    }

    private void addUser(String name, String password) throws IOException, InterruptedException {
        Path secret = Files.writeString(directory.resolve("password"), password);
        String store = directory.resolve("store").toString();
        Process added = new ProcessBuilder(System.getProperty("klamm.command"), "user", "add", name, "--store", store, "--create",
            "--password-file", secret.toString()).redirectErrorStream(true).redirectOutput(directory.resolve("users").toFile()).start();
        if (added.waitFor() != 0) throw new IllegalStateException(Files.readString(directory.resolve("users")));
    }

    /** Kafka's own looks into the authorizers of brokers. */
    @Override
    public void waitAcls(AclBindingFilter filter, Collection<AccessControlEntry> entries) throws InterruptedException {
        try (Admin admin = admin()) {
            await(filter + " has its entries", () -> {
                Set<AccessControlEntry> found = new HashSet<>();
                admin.describeAcls(filter).values().get().forEach(binding -> found.add(binding.entry()));
                return found.equals(new HashSet<>(entries));
            });
        }
    }

    /** Sets what is a setting of the store, which all processes that have it open share. */
    private void alterStore(Map<String, String> properties) throws InterruptedException {
        List<AlterConfigOp> changes = new ArrayList<>();
        properties.forEach((name, value) -> {
            if (STORE_SETTINGS.contains(name)) changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET));
        });
        if (changes.isEmpty()) return;
        try (Admin admin = admin()) {
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.BROKER, ""), changes)).all().get();
        } catch (ExecutionException error) {
            throw new IllegalStateException(error);
        }
    }

    private void end() throws InterruptedException {
        process.destroy();
        if (!process.waitFor(WAIT_MS, TimeUnit.MILLISECONDS)) process.destroyForcibly().waitFor();
    }

    @Override
    public void stop() {
        try {
            if (process != null) end();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        stopped = true;
    }

    @Override
    public boolean started() {
        return started;
    }

    @Override
    public boolean stopped() {
        return stopped;
    }

    @Override
    public void shutdownBroker(int id) {
        try {
            end();
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public void startBroker(int id) {
        try {
            launch();
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void await(String what, Callable<Boolean> condition) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(WAIT_MS);
        while (true) {
            try {
                if (condition.call()) return;
            } catch (RuntimeException error) {
                throw error;
            } catch (Exception error) {
                throw new IllegalStateException(what, error);
            }
            if (System.nanoTime() > deadline) throw new IllegalStateException("not within " + WAIT_MS + " ms: " + what);
            Thread.sleep(20);
        }
    }

    private static int partitionCount(Admin admin, String topic) throws ExecutionException, InterruptedException {
        try {
            return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof UnknownTopicOrPartitionException) return 0;
            throw error;
        }
    }

    @Override
    public void waitTopicCreation(String topic, int partitions) throws InterruptedException {
        try (Admin admin = admin()) {
            await(topic + " has " + partitions + " partitions", () -> partitionCount(admin, topic) == partitions);
        }
    }

    @Override
    public void waitTopicDeletion(String topic) throws InterruptedException {
        try (Admin admin = admin()) {
            await(topic + " is gone", () -> partitionCount(admin, topic) == 0);
        }
    }

    @Override
    public void waitForReadyBrokers() {} // one that has started is ready

    @Override
    public void ensureConsistentMetadata() {} // there is one node

    @Override
    public String clusterId() {
        try (Admin admin = admin()) {
            return admin.describeCluster().clusterId().get();
        } catch (ExecutionException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public Set<GroupProtocol> supportedGroupProtocols() {
        return Set.of(GroupProtocol.CLASSIC);
    }

    @Override
    public Type type() {
        return Type.KRAFT;
    }

    @Override
    public ClusterConfig config() {
        return config;
    }

    @Override
    public Set<Integer> brokerIds() {
        return Set.of(NODE);
    }

    @Override
    public Set<Integer> controllerIds() {
        return Set.of(NODE);
    }

    @Override
    public String bootstrapServers() {
        return "127.0.0.1:" + port;
    }

    @Override
    public List<Integer> brokerBoundPorts() {
        return List.of(port);
    }

    @Override
    public ListenerName clientListener() {
        return config.brokerListenerName();
    }

    @Override
    public ListenerName controllerListenerName() {
        throw inside("a controller's listener");
    }

    @Override
    public String bootstrapControllers() {
        throw inside("a controller's address");
    }

    @Override
    public Map<Integer, KafkaBroker> brokers() {
        return new Brokers();
    }

    @Override
    public Map<Integer, KafkaBroker> aliveBrokers() {
        return new Brokers();
    }

    @Override
    public Map<Integer, ControllerServer> controllers() {
        throw inside("controllers()");
    }

    @Override
    public Optional<FaultHandlerException> firstFatalException() {
        return Optional.empty();
    }

    @Override
    public Optional<FaultHandlerException> firstNonFatalException() {
        return Optional.empty();
    }

    /** One broker that can be counted, and has a number; but no object of it is in this JVM. */
    private static final class Brokers extends AbstractMap<Integer, KafkaBroker> {
        @Override
        public Set<Entry<Integer, KafkaBroker>> entrySet() {
            return Set.of(new Entry<>() {
                @Override
                public Integer getKey() {
                    return NODE;
                }

                @Override
                public KafkaBroker getValue() {
                    throw inside("a broker");
                }

                @Override
                public KafkaBroker setValue(KafkaBroker value) {
                    throw inside("a broker");
                }
            });
        }
    }
}
