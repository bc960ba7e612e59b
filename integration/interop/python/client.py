"""A client of gRPC's C++ core with xDS, under its Python surface: for each line
that it is given, the method, it sends an RPC to the target and prints which
backend has answered."""

import json
import sys

import grpc

DEADLINE_SECONDS = 10

channel = grpc.insecure_channel(sys.argv[1])
for line in iter(sys.stdin.readline, ""):
    try:
        reply = channel.unary_unary(line.strip())(b"", timeout=DEADLINE_SECONDS)
        # The reply is a google.protobuf.StringValue: a tag, a length, the text.
        answer = {"backend": reply[2:].decode()}
    except grpc.RpcError as error:
        answer = {"error": f"{error.code()}: {error.details()}"}
    print(json.dumps(answer), flush=True)
