package interop;

import com.google.protobuf.Empty;
import com.google.protobuf.StringValue;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.xds.CsdsService;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * A client of grpc-java with xDS. For each line of its input, a method, it sends an RPC to the target and prints
 * which backend has answered. The line may also have another target, the value of the header "key" and a deadline
 * in milliseconds. For the line "close TARGET", the client closes the channel to a target. For the line "csds", it
 * prints the address of its Client Status Discovery Service.
 */
public final class Client {
  private static final long DEADLINE_MS = 10_000;
  private static final Metadata.Key<String> KEY = Metadata.Key.of("key", Metadata.ASCII_STRING_MARSHALLER);

  private final Map<String, ManagedChannel> channels = new HashMap<>();
  private Server csds;

  private Client() {}

  public static void main(String[] args) throws IOException {
    Client client = new Client();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      Lines.print(client.answer(line.split(" "), args[0]));
    }
    System.exit(0);
  }

  private Map<String, ?> answer(String[] words, String defaultTarget) throws IOException {
    return switch (words[0]) {
      case "csds" -> csds();
      case "close" -> close(words[1]);
      default -> call(words, defaultTarget);
    };
  }

  private Map<String, ?> call(String[] words, String defaultTarget) {
    String target = words.length > 1 ? words[1] : defaultTarget;
    long deadlineMs = words.length > 3 ? Long.parseLong(words[3]) : DEADLINE_MS;
    Channel channel = channels.computeIfAbsent(
        target, t -> Grpc.newChannelBuilder(t, InsecureChannelCredentials.create()).build());
    if (words.length > 2) {
      Metadata headers = new Metadata();
      headers.put(KEY, words[2]);
      channel = ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(headers));
    }
    try {
      StringValue reply = ClientCalls.blockingUnaryCall(
          channel,
          Backend.method(words[0].substring(1)),
          CallOptions.DEFAULT.withDeadlineAfter(deadlineMs, TimeUnit.MILLISECONDS),
          Empty.getDefaultInstance());
      return Map.of("backend", reply.getValue());
    } catch (StatusRuntimeException e) {
      Status status = e.getStatus();
      return Map.of("error", status.getCode() + ": " + status.getDescription(), "code", status.getCode().value());
    }
  }

  private Map<String, ?> close(String target) {
    ManagedChannel channel = channels.remove(target);
    if (channel != null) {
      channel.shutdownNow();
    }
    return Map.of();
  }

  private Map<String, ?> csds() throws IOException {
    if (csds == null) {
      csds = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", 0))
          .addService(CsdsService.newInstance())
          .build()
          .start();
    }
    return Map.of("csds", "127.0.0.1:" + csds.getPort());
  }
}
