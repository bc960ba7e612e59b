package interop;

import com.google.protobuf.Empty;
import com.google.protobuf.StringValue;
import io.grpc.HandlerRegistry;
import io.grpc.InsecureServerCredentials;
import io.grpc.Server;
import io.grpc.ServerMethodDefinition;
import io.grpc.stub.ServerCalls;
import io.grpc.xds.XdsServerBuilder;
import java.net.InetSocketAddress;
import java.util.Map;

/**
 * A server of grpc-java with xDS, on a free port of 127.0.0.1. It answers every method with the id in its first
 * argument. Whenever its serving status changes, it prints a line with the port, which is then another one, or with the
 * error.
 */
public final class XdsServer {
  private XdsServer() {}

  public static void main(String[] args) throws Exception {
    StringValue id = StringValue.of(args[0]);
    Status status = new Status();
    status.server = XdsServerBuilder.forAddress(
            new InetSocketAddress("127.0.0.1", 0), InsecureServerCredentials.create())
        .xdsServingStatusListener(status)
        .fallbackHandlerRegistry(new HandlerRegistry() {
          @Override
          public ServerMethodDefinition<Empty, StringValue> lookupMethod(String method, String authority) {
            return ServerMethodDefinition.create(Backend.method(method), ServerCalls.asyncUnaryCall((request, reply) -> {
              reply.onNext(id);
              reply.onCompleted();
            }));
          }
        })
        .build();
    status.server.start().awaitTermination();
  }

  /** Prints the serving status. */
  private static final class Status implements XdsServerBuilder.XdsServingStatusListener {
    private volatile Server server;

    @Override
    public void onServing() {
      Lines.print(Map.of("serving", true, "port", server.getPort()));
    }

    @Override
    public void onNotServing(Throwable error) {
      Lines.print(Map.of("serving", false, "error", error.toString()));
    }
  }
}
