"""A client of gRPC's C++ core with xDS, under its Python surface. For each line of its input, a method,
it sends an RPC to the target and prints which backend has answered. The line may also have another
target, the value of the header "key" and a deadline in milliseconds. For the line "close TARGET", the
client closes the channel to a target. For the line "csds", it prints the address of its Client Status
Discovery Service."""

import concurrent.futures
import json
import sys

import grpc
from grpc._cython import cygrpc

DEADLINE_MS = 10000

channels = {}  # by target
servers = []


def call(method, target=sys.argv[1], key=None, deadline_ms=DEADLINE_MS):
    if target not in channels:
        channels[target] = grpc.insecure_channel(target)
    headers = [("key", key)] if key else None
    try:
        reply = channels[target].unary_unary(method)(b"", timeout=int(deadline_ms) / 1000, metadata=headers)
    except grpc.RpcError as error:
        return {"error": f"{error.code()}: {error.details()}", "code": error.code().value[0]}
    # The reply is a google.protobuf.StringValue: a tag, a length, the text.
    return {"backend": reply[2:].decode()}


def close(target):
    channels.pop(target).close()
    return {}


def serve_status():
    """Serves what the package grpcio-csds serves, which Debian does not have."""
    fetch = grpc.unary_unary_rpc_method_handler(lambda request, context: cygrpc.dump_xds_configs())
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([
        grpc.method_handlers_generic_handler(
            "envoy.service.status.v3.ClientStatusDiscoveryService", {"FetchClientStatus": fetch}),
    ])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    servers.append(server)  # a server that nothing refers to stops
    return {"csds": f"127.0.0.1:{port}"}


for line in iter(sys.stdin.readline, ""):
    words = line.split()
    if words[0] == "csds":
        answer = serve_status()
    elif words[0] == "close":
        answer = close(words[1])
    else:
        answer = call(*words)
    print(json.dumps(answer), flush=True)
