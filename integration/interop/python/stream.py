"""A client of gRPC's C++ core, under its Python surface, that proves who it is: it opens one
stream to the relay over TLS, sends one request, and prints what comes of it, a line of JSON each."""

import json
import sys
import threading

import grpc

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"

options = json.loads(sys.argv[1])


def read(name):
    if name not in options:
        return None
    with open(options[name], "rb") as file:
        return file.read()


def requests():
    yield bytes.fromhex(options["request"])
    threading.Event().wait()  # the stream stays open


def say(event):
    print(json.dumps(event), flush=True)


credentials = grpc.ssl_channel_credentials(read("ca"), read("key"), read("cert"))
if "token" in options:
    token = grpc.access_token_call_credentials(options["token"])
    credentials = grpc.composite_channel_credentials(credentials, token)
channel = grpc.secure_channel(options["address"], credentials)
try:
    for response in channel.stream_stream(METHOD)(requests()):
        say({"received": len(response)})
except grpc.RpcError as error:
    say({"ended": error.code().value[0], "details": error.details()})
