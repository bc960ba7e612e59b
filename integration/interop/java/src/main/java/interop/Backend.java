package interop;

import com.google.protobuf.Empty;
import com.google.protobuf.StringValue;
import io.grpc.MethodDescriptor;
import io.grpc.protobuf.ProtoUtils;

/** The methods of the backends. */
final class Backend {
  private Backend() {}

  /** Returns the method with a name such as "shop.Shop/Visit". A backend answers every method with its id. */
  static MethodDescriptor<Empty, StringValue> method(String name) {
    return MethodDescriptor.<Empty, StringValue>newBuilder()
        .setType(MethodDescriptor.MethodType.UNARY)
        .setFullMethodName(name)
        .setRequestMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
        .setResponseMarshaller(ProtoUtils.marshaller(StringValue.getDefaultInstance()))
        .build();
  }
}
