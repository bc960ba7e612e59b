package downstream

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// What one client costs: see bench/README.md for many.

// silentSource feeds nothing.
type silentSource struct{}

// Start implements cache.Source.
func (silentSource) Start(cache.Key) {}

// Refresh implements cache.Source.
func (silentSource) Refresh(cache.Key) {}

// Stop implements cache.Source.
func (silentSource) Stop(cache.Key) {}

// sinkStream is a gRPC stream that takes everything and gives nothing.
type sinkStream struct{ ctx context.Context }

func (s sinkStream) SetHeader(metadata.MD) error  { return nil }
func (s sinkStream) SendHeader(metadata.MD) error { return nil }
func (s sinkStream) SetTrailer(metadata.MD)       {}
func (s sinkStream) Context() context.Context     { return s.ctx }
func (s sinkStream) SendMsg(any) error            { return nil }
func (s sinkStream) RecvMsg(any) error            { return nil }

func benchNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = benchName(i)
	}
	return names
}

func benchName(i int) string { return fmt.Sprintf("resource-%06d", i) }

// benchServer serves n endpoints of 1 KB.
func benchServer(b *testing.B, n int) (*Server, *cache.Cache, []string) {
	b.Helper()
	c := cache.New(silentSource{}, cache.Options{IdleEntries: 1 << 20})
	b.Cleanup(c.Close)
	server := NewServer(c, newClusterNames, Options{Log: slog.New(slog.DiscardHandler), MaxResponseBytes: DefaultMaxResponseBytes})
	names := benchNames(n)
	st := server.open(sinkStream{context.Background()}, nil, "delta", "")
	ask(b, st, deltaForm, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names})
	u := cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType}
	for _, name := range names {
		value, err := proto.Marshal(&endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			Locality: &corev3.Locality{Region: fmt.Sprintf("%01000d", 0)},
		}}})
		if err != nil {
			b.Fatal(err)
		}
		u.Changes = append(u.Changes, cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{Name: name, Version: "1", TypeURL: endpointType, Value: value})})
	}
	c.Apply(u)
	return server, c, names
}

// ask hands a request to a stream, and takes the responses.
func ask[R request, S typeSession](b *testing.B, st *stream, f form[R, S], req R) (last *session.Response) {
	b.Helper()
	data, err := proto.Marshal(req)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := take(st, f, data); err != nil {
		b.Fatal(err)
	}
	return takeResponses(st)
}

func takeResponses(st *stream) (last *session.Response) {
	for {
		r := st.next()
		if r == nil {
			return last
		}
		_ = r.Encode()
		last = r
	}
}

// A client connects with 100 names, all of which are known, and leaves.
func BenchmarkClientComesAndGoes(b *testing.B) {
	server, _, names := benchServer(b, 100)
	b.Run("delta", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			st := server.open(sinkStream{context.Background()}, nil, "delta", "")
			ask(b, st, deltaForm, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names})
			st.end()
			server.forget(st)
		}
	})
	b.Run("sotw", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			st := server.open(sinkStream{context.Background()}, nil, "sotw", "")
			ask(b, st, sotwForm, &discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names})
			st.end()
			server.forget(st)
		}
	})
}

// An ACK, from the wire, of a client with so many names.
func BenchmarkACK(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		server, _, names := benchServer(b, n)
		b.Run(fmt.Sprintf("delta/%d", n), func(b *testing.B) {
			st := server.open(sinkStream{context.Background()}, nil, "delta", "")
			r := ask(b, st, deltaForm, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names})
			ack, err := proto.Marshal(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: r.Nonce})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := take(st, deltaForm, ack); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("sotw/%d", n), func(b *testing.B) {
			st := server.open(sinkStream{context.Background()}, nil, "sotw", "")
			r := ask(b, st, sotwForm, &discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names})
			ack, err := proto.Marshal(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names, ResponseNonce: r.Nonce, VersionInfo: r.Version})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := take(st, sotwForm, ack); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// One of a client's 100 resources changes: from the update to the response's bytes.
func BenchmarkChangeToResponse(b *testing.B) {
	server, c, names := benchServer(b, 100)
	st := server.open(sinkStream{context.Background()}, nil, "delta", "")
	ask(b, st, deltaForm, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names})
	st.inbox.awake = true // the benchmark looks after it
	var resources [2]*cache.Resource
	for i := range resources {
		resources[i] = cache.NewResource(cache.Spec{Name: names[0], Version: fmt.Sprint(i), TypeURL: endpointType, Value: append([]byte{0x0a, byte(len(names[0]))}, names[0]+"\x12\x03\x12\x01"+string(rune('a'+i))...)})
	}
	u := cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType, Changes: []cache.Change{{Name: names[0]}}}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		u.Changes[0].Resource = resources[i%2]
		c.Apply(u)
		if takeResponses(st) == nil {
			b.Fatal("no response")
		}
	}
}

// A client comes that requests the same 100 names as others, is sent their resources, acknowledges them, and goes.
func BenchmarkClientOfAHerd(b *testing.B) {
	server, _, names := benchServer(b, 100)
	node := &corev3.Node{Id: "bench", UserAgentName: "bench"}
	encode := func(m proto.Message) []byte {
		data, err := proto.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		return data
	}
	delta := encode(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: endpointType, ResourceNamesSubscribe: names})
	sotw := encode(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: endpointType, ResourceNames: names})
	b.Run("delta", func(b *testing.B) {
		benchHerd(b, server, deltaForm, delta, func(r *session.Response) []byte {
			return encode(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: r.Nonce})
		})
	})
	b.Run("sotw", func(b *testing.B) {
		benchHerd(b, server, sotwForm, sotw, func(r *session.Response) []byte {
			return encode(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names, ResponseNonce: r.Nonce, VersionInfo: r.Version})
		})
	})
}

func benchHerd[R request, S typeSession](b *testing.B, server *Server, f form[R, S], first []byte, ack func(*session.Response) []byte) {
	b.Helper()
	request := func(st *stream, data []byte) *session.Response {
		if _, err := take(st, f, data); err != nil {
			b.Fatal(err)
		}
		return takeResponses(st)
	}
	come := func() (*stream, *session.Response) {
		st := server.open(sinkStream{context.Background()}, nil, f.name, "")
		return st, request(st, first)
	}
	come()
	others, r := come()
	defer others.end()
	acked := ack(r)
	b.ReportAllocs()
	for b.Loop() {
		st, _ := come()
		request(st, acked)
		st.end()
		server.forget(st)
	}
}
