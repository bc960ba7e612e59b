package integration

// A handmade control plane, for responses that go-control-plane would never send.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
)

// handmade is a control plane whose responses the test chooses.
type handmade struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	*port
	streams chan *handmadeStream
	end     func()
}

// handmadeStream is a stream that the relay has opened, in either form.
type handmadeStream struct {
	form     form
	node     *corev3.Node // of the first request
	requests watched[requests]
	// write sends a response. removed is for delta.
	write func(typeURL, nonce string, resources []*discoveryv3.Resource, removed ...string) error
	end   func() // stops the control plane
}

// requests are all requests of a stream, in order.
type requests []request

// request is a request in either form.
type request struct {
	typeURL string
	names   []string // delta: only the new names
	nonce   string
	nack    *statuspb.Status
	version string // SotW
}

// String describes the requests, for a failed test.
func (r *requests) String() string {
	var b strings.Builder
	for _, req := range *r {
		fmt.Fprintf(&b, "\n%s names %q nonce %q nack %v", req.typeURL, req.names, req.nonce, req.nack)
	}
	return b.String()
}

func startHandmade(t testing.TB) *handmade {
	t.Helper()
	h := &handmade{port: openPort(t), streams: make(chan *handmadeStream, 16)}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, h)
	h.end = s.Stop
	serve(s, h.listen())
	t.Cleanup(h.end)
	return h
}

// stream returns the next stream that the relay opens.
func (h *handmade) stream(t testing.TB) *handmadeStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case s := <-h.streams:
		return s
	case <-ctx.Done():
		t.Fatal("waited in vain for a stream of the relay")
		return nil
	}
}

// DeltaAggregatedResources implements the service in delta.
func (h *handmade) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	s := &handmadeStream{form: delta, end: h.end}
	s.write = func(typeURL, nonce string, resources []*discoveryv3.Resource, removed ...string) error {
		return stream.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, Resources: resources, RemovedResources: removed})
	}
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		h.take(stream.Context(), s, req.GetNode(), request{
			req.GetTypeUrl(), req.GetResourceNamesSubscribe(), req.GetResponseNonce(), req.GetErrorDetail(), "",
		})
	}
}

// StreamAggregatedResources implements the service in SotW.
func (h *handmade) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	s := &handmadeStream{form: sotw, end: h.end}
	s.write = func(typeURL, nonce string, resources []*discoveryv3.Resource, _ ...string) error {
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, VersionInfo: "version " + nonce}
		for _, r := range resources {
			resp.Resources = append(resp.Resources, r.GetResource())
		}
		return stream.Send(resp)
	}
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		h.take(stream.Context(), s, req.GetNode(), request{
			req.GetTypeUrl(), req.GetResourceNames(), req.GetResponseNonce(), req.GetErrorDetail(), req.GetVersionInfo(),
		})
	}
}

func (h *handmade) take(ctx context.Context, s *handmadeStream, node *corev3.Node, req request) {
	if len(req.names) == 0 && req.nonce == "" {
		req.names = []string{wildcard} // the legacy wildcard
	}
	var first bool
	s.requests.update(func(all *requests) {
		first = len(*all) == 0
		*all = append(*all, req)
	})
	if first {
		s.node = node
		select {
		case h.streams <- s:
		case <-ctx.Done():
		}
	}
}

// awaitAsked waits until the relay has requested all these names, in one or more requests.
func (s *handmadeStream) awaitAsked(t testing.TB, typeURL string, names ...string) {
	t.Helper()
	s.requests.await(t, fmt.Sprintf("the relay requests %q", names), func(all *requests) bool {
		requested := map[string]bool{}
		for _, req := range *all {
			for _, name := range req.names {
				requested[name] = requested[name] || req.typeURL == typeURL
			}
		}
		return !slices.ContainsFunc(names, func(name string) bool { return !requested[name] })
	})
}

// send sends a response. If the relay does not read it, send fails the test.
func (s *handmadeStream) send(t testing.TB, typeURL, nonce string, resources ...*discoveryv3.Resource) {
	t.Helper()
	stuck := time.AfterFunc(patience, s.end)
	defer stuck.Stop()
	if err := s.write(typeURL, nonce, resources); err != nil {
		t.Fatalf("sending response %s to the relay: %v", nonce, err)
	}
}

// replace sends a response in which resources replace another one. In SotW, there are no others.
func (s *handmadeStream) replace(t testing.TB, typeURL, nonce, removed string, resources ...*discoveryv3.Resource) {
	t.Helper()
	if err := s.write(typeURL, nonce, resources, removed); err != nil {
		t.Fatalf("sending response %s to the relay: %v", nonce, err)
	}
}

// respond sends a response, and returns the error message of the relay's NACK, or "" for an ACK.
func (s *handmadeStream) respond(t testing.TB, typeURL, nonce string, resources ...*discoveryv3.Resource) (nack string) {
	t.Helper()
	s.send(t, typeURL, nonce, resources...)
	s.requests.await(t, fmt.Sprintf("the relay answers response %s", nonce), func(all *requests) bool {
		for _, req := range *all {
			if req.typeURL == typeURL && req.nonce == nonce {
				if nack = req.nack.GetMessage(); req.nack != nil && nack == "" {
					nack = "(no words)"
				}
				return true
			}
		}
		return false
	})
	return nack
}

// undecodable returns a resource whose bytes are not a protobuf message.
func undecodable(name, typeURL string) *discoveryv3.Resource {
	return &discoveryv3.Resource{
		Name: name, Version: "1",
		Resource: &anypb.Any{TypeUrl: typeURL, Value: []byte("\xff\xff not protobuf")},
	}
}

// nacks returns the error messages of all NACKs.
func (s *handmadeStream) nacks() (words []string) {
	s.requests.read(func(all *requests) {
		for _, req := range *all {
			if req.nack != nil {
				words = append(words, req.nack.GetMessage())
			}
		}
	})
	return words
}
