package interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.TypeRegistry;
import com.google.protobuf.util.JsonFormat;
import io.envoyproxy.controlplane.cache.NodeGroup;
import io.envoyproxy.controlplane.cache.v3.SimpleCache;
import io.envoyproxy.controlplane.cache.v3.Snapshot;
import io.envoyproxy.controlplane.server.DiscoveryServerCallbacks;
import io.envoyproxy.controlplane.server.V3DiscoveryServer;
import io.envoyproxy.envoy.config.cluster.v3.Cluster;
import io.envoyproxy.envoy.config.core.v3.Node;
import io.envoyproxy.envoy.config.endpoint.v3.ClusterLoadAssignment;
import io.envoyproxy.envoy.config.listener.v3.Listener;
import io.envoyproxy.envoy.config.route.v3.RouteConfiguration;
import io.envoyproxy.envoy.extensions.clusters.aggregate.v3.ClusterConfig;
import io.envoyproxy.envoy.extensions.filters.http.router.v3.Router;
import io.envoyproxy.envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager;
import io.envoyproxy.envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext;
import io.envoyproxy.envoy.extensions.transport_sockets.tls.v3.Secret;
import io.envoyproxy.envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext;
import io.envoyproxy.envoy.service.discovery.v3.DeltaDiscoveryRequest;
import io.envoyproxy.envoy.service.discovery.v3.DeltaDiscoveryResponse;
import io.envoyproxy.envoy.service.discovery.v3.DiscoveryRequest;
import io.envoyproxy.envoy.service.discovery.v3.DiscoveryResponse;
import io.grpc.Context;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * java-control-plane with a SimpleCache. Its first argument is the form that it serves, "sotw", "delta" or "both". Its second argument says which snapshot a Node has: "all" for the same snapshot, or
 * "node.id" for the snapshot of its id.
 *
 * <p>The program prints a line for each request that it receives, for each response that it sends, and for each command.
 * Commands are lines of JSON: {"set": GROUP, "version": VERSION, "resources": [RESOURCE, ...]}, {"clear": GROUP} and
 * {"serve": ADDRESS}, whose line has the address with the port.
 */
public final class ControlPlane {
  private static final String ALL = "all";

  // The messages in the resources' Any fields.
  private static final TypeRegistry TYPES = TypeRegistry.newBuilder()
      .add(Cluster.getDescriptor())
      .add(ClusterLoadAssignment.getDescriptor())
      .add(Listener.getDescriptor())
      .add(RouteConfiguration.getDescriptor())
      .add(Secret.getDescriptor())
      .add(ClusterConfig.getDescriptor())
      .add(HttpConnectionManager.getDescriptor())
      .add(Router.getDescriptor())
      .add(DownstreamTlsContext.getDescriptor())
      .add(UpstreamTlsContext.getDescriptor())
      .build();

  private ControlPlane() {}

  public static void main(String[] args) throws IOException {
    NodeGroup<String> groups = args[1].equals(ALL)
        ? node -> ALL
        : node -> node.getId();
    SimpleCache<String> cache = new SimpleCache<>(groups);
    V3DiscoveryServer discovery = new V3DiscoveryServer(new Printer(), cache);
    Form form = new Form(args[0]);

    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      JsonObject command = JsonParser.parseString(line).getAsJsonObject();
      Lines.print(command.has("serve")
          ? serve(discovery, form, command.get("serve").getAsString())
          : run(cache, command));
    }
    System.exit(0);
  }

  private static Map<String, ?> serve(V3DiscoveryServer discovery, Form form, String address) throws IOException {
    int colon = address.lastIndexOf(':');
    String host = address.substring(0, colon);
    int port = Integer.parseInt(address.substring(colon + 1));
    Server server = NettyServerBuilder.forAddress(new InetSocketAddress(host, port))
        .addService(discovery.getAggregatedDiscoveryServiceImpl())
        .intercept(form)
        .build()
        .start();
    return Map.of("address", host + ":" + server.getPort());
  }

  private static Map<String, ?> run(SimpleCache<String> cache, JsonObject command) {
    try {
      if (command.has("clear")) {
        return Map.of("done", cache.clearSnapshot(command.get("clear").getAsString()));
      }
      Snapshot snapshot = snapshot(command.getAsJsonArray("resources"), command.get("version").getAsString());
      cache.setSnapshot(command.get("set").getAsString(), snapshot);
      return Map.of("done", true);
    } catch (InvalidProtocolBufferException e) {
      return Map.of("done", false, "error", e.toString());
    }
  }

  private static Snapshot snapshot(JsonArray resources, String version) throws InvalidProtocolBufferException {
    List<Any> all = new ArrayList<>();
    for (JsonElement resource : resources) {
      Any.Builder any = Any.newBuilder();
      JsonFormat.parser().usingTypeRegistry(TYPES).merge(resource.toString(), any);
      all.add(any.build());
    }
    return Snapshot.create(
        select(all, Cluster.class),
        select(all, ClusterLoadAssignment.class),
        select(all, Listener.class),
        select(all, RouteConfiguration.class),
        select(all, Secret.class),
        version);
  }

  private static <M extends Message> List<M> select(List<Any> all, Class<M> type)
      throws InvalidProtocolBufferException {
    List<M> selected = new ArrayList<>();
    for (Any any : all) {
      if (any.is(type)) {
        selected.add(any.unpack(type));
      }
    }
    return selected;
  }

  /** Answers UNIMPLEMENTED to the streams of the other form. */
  private record Form(String form) implements ServerInterceptor {
    @Override
    public <Q, P> ServerCall.Listener<Q> interceptCall(
        ServerCall<Q, P> call, Metadata headers, ServerCallHandler<Q, P> next) {
      boolean delta = call.getMethodDescriptor().getBareMethodName().startsWith("Delta");
      if (form.equals(delta ? "sotw" : "delta")) {
        call.close(Status.UNIMPLEMENTED.withDescription("this control plane speaks " + form), new Metadata());
        return new ServerCall.Listener<>() {};
      }
      return next.startCall(call, headers);
    }
  }

  /** Prints the requests and the responses, and when a stream ends. */
  private static final class Printer implements DiscoveryServerCallbacks {
    private final Set<Long> streams = ConcurrentHashMap.newKeySet();

    // java-control-plane has no callback for a stream that the client cancels.
    private void watch(long stream) {
      if (streams.add(stream)) {
        Context.current().addListener(context -> Lines.print(Map.of("ended", stream)), Runnable::run);
      }
    }

    @Override
    public void onV3StreamRequest(long stream, DiscoveryRequest request) {
      watch(stream);
      Map<String, Object> line = line(stream, request.getNode(), request.getTypeUrl(), request.getResponseNonce());
      line.put("names", request.getResourceNamesList());
      if (request.hasErrorDetail()) {
        line.put("error", request.getErrorDetail().getMessage());
      }
      Lines.print(Map.of("request", line));
    }

    @Override
    public void onV3StreamDeltaRequest(long stream, DeltaDiscoveryRequest request) {
      watch(stream);
      Map<String, Object> line = line(stream, request.getNode(), request.getTypeUrl(), request.getResponseNonce());
      line.put("subscribe", request.getResourceNamesSubscribeList());
      line.put("unsubscribe", request.getResourceNamesUnsubscribeList());
      if (request.hasErrorDetail()) {
        line.put("error", request.getErrorDetail().getMessage());
      }
      Lines.print(Map.of("request", line));
    }

    @Override
    public void onV3StreamResponse(long stream, DiscoveryRequest request, DiscoveryResponse response) {
      Lines.print(Map.of("response", line(stream, request.getNode(), response.getTypeUrl(), response.getNonce())));
    }

    @Override
    public void onV3StreamDeltaResponse(long stream, DeltaDiscoveryRequest request, DeltaDiscoveryResponse response) {
      Lines.print(Map.of("response", line(stream, request.getNode(), response.getTypeUrl(), response.getNonce())));
    }

    private static Map<String, Object> line(long stream, Node node, String type, String nonce) {
      Map<String, Object> line = new LinkedHashMap<>();
      line.put("stream", stream);
      line.put("node", node.getId());
      line.put("type", type);
      line.put("nonce", nonce);
      return line;
    }
  }
}
