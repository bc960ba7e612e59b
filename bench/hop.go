package main

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// The hop: a gRPC server that forwards each stream to another server, message by message. It
// shows the least cost of a hop.

func runHop(spec *Spec) error {
	conn, err := dial(spec.Upstream, insecure.NewCredentials())
	if err != nil {
		return err
	}
	address, err := serve(grpc.NewServer(append(serverOptions(), grpc.UnknownServiceHandler(func(_ any, g grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(g)
		ctx, cancel := context.WithCancel(g.Context())
		defer cancel()
		up, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			return err
		}
		go func() {
			defer cancel()
			_ = forward(g, up) // the client has left
		}()
		return forward(up, g)
	}))...))
	if err != nil {
		return err
	}
	return serveCommands(answer{Address: address}, func(*command) (answer, error) { return answer{}, nil })
}

func forward(from interface{ RecvMsg(any) error }, to interface{ SendMsg(any) error }) error {
	for {
		var in raw
		if err := from.RecvMsg(&in); err != nil {
			return err
		}
		if err := to.SendMsg(&ready{mem.BufferSlice{mem.SliceBuffer(in.data)}}); err != nil {
			return err
		}
	}
}
