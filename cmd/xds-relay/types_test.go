package main

// Every type of the table, through every place that needs to know about it.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// typesPlane is a control plane that has a service for each type of the table, and
// over each serves one resource, "a", in any form.
type typesPlane struct{}

// resource has its name inside, if its type has it there.
func (typesPlane) resource(typeURL string) *anypb.Any {
	a := &anypb.Any{TypeUrl: typeURL}
	if xdstype.HasInnerName(typeURL) {
		a.Value = protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "a")
	}
	return a
}

func (p typesPlane) delta(typeURL string) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		return p.answer(stream, new(discoveryv3.DeltaDiscoveryRequest), &discoveryv3.DeltaDiscoveryResponse{
			TypeUrl: typeURL, Nonce: "1",
			Resources: []*discoveryv3.Resource{{Name: "a", Version: "1", Resource: p.resource(typeURL)}},
		})
	}
}

func (p typesPlane) sotw(typeURL string) *discoveryv3.DiscoveryResponse {
	return &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: "1", Nonce: "1", Resources: []*anypb.Any{p.resource(typeURL)}}
}

// answer answers the first request, and reads the others.
func (typesPlane) answer(stream grpc.ServerStream, req, resp proto.Message) error {
	err := stream.RecvMsg(req)
	if err == nil {
		err = stream.SendMsg(resp)
	}
	for err == nil {
		err = stream.RecvMsg(req)
	}
	return err
}

// serve returns its address.
func (p typesPlane) serve(t *testing.T) string {
	t.Helper()
	g := grpc.NewServer()
	for _, s := range xdstype.Services(false)[1:] {
		desc := &grpc.ServiceDesc{ServiceName: s.Name, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
			{StreamName: s.Delta, ClientStreams: true, ServerStreams: true, Handler: p.delta(s.TypeURL)},
		}}
		if s.Stream != "" {
			desc.Streams = append(desc.Streams, grpc.StreamDesc{StreamName: s.Stream, ClientStreams: true, ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
				return p.answer(stream, new(discoveryv3.DiscoveryRequest), p.sotw(s.TypeURL))
			}})
		}
		g.RegisterService(desc, p)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(lis) }()
	t.Cleanup(func() { g.Stop(); <-done })
	return lis.Addr().String()
}

// ServeHTTP implements http.Handler: its REST-JSON form.
func (p typesPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for _, s := range xdstype.Services(false) {
		if s.Path == r.URL.Path {
			body, err := protojson.Marshal(p.sotw(s.TypeURL))
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
			_, _ = w.Write(body) // the relay has gone
			return
		}
	}
	http.NotFound(w, r)
}

// serveHTTP returns its address, for polling.
func (p typesPlane) serveHTTP(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: p}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(lis) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return lis.Addr().String()
}

// startTypesRelay starts a relay whose control plane has a service for each type.
func startTypesRelay(t *testing.T, listener, address, protocol string) string {
	t.Helper()
	inFolder(t, map[string]string{"relay.yaml": fmt.Sprintf(`listeners:
  - address: 127.0.0.1:0
    protocol: %s
authorities:
  - name: plane
    servers:
      - address: %s
        protocol: %s
        aggregated: false
old_style_names:
  - authority: plane
`, listener, address, protocol)})
	if protocol == "rest" {
		config, err := os.ReadFile("relay.yaml")
		if err != nil {
			t.Fatal(err)
		}
		config = bytes.Replace(config, []byte("        aggregated: false\n"), nil, 1)
		if err := os.WriteFile("relay.yaml", config, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server, stop := startServe(t, "relay.yaml")
	t.Cleanup(func() {
		if log, status := stop(); status != 0 {
			t.Errorf("status %d, log\n%s", status, log)
		}
	})
	return server
}

// A type of the table is requested over its own service, and found by its words.
func TestEveryTypeIsAskedForOverItsOwnService(t *testing.T) {
	for _, protocol := range []string{"delta", "sotw", "rest"} {
		t.Run(protocol, func(t *testing.T) {
			address := typesPlane{}.serve(t)
			if protocol == "rest" {
				address = typesPlane{}.serveHTTP(t)
			}
			server := startTypesRelay(t, "grpc", address, protocol)
			for _, typ := range xdstype.All() {
				if typ.V3 == nil || map[string]string{"delta": typ.V3.Delta, "sotw": typ.V3.Stream, "rest": typ.V3.Path}[protocol] == "" {
					continue
				}
				for _, word := range []string{typ.Word, typ.Abbreviation} {
					stdout, stderr, status := runCommand(t, "get", "--server", server, "--type", word, "a")
					if status != 0 || !strings.Contains(stdout, typ.V3.TypeURL+"\n") {
						t.Errorf("get --type %s: status %d, %s%s", word, status, stdout, stderr)
					}
				}
			}
		})
	}
}

// A type of the table is served over its own service, in all its forms.
func TestEveryTypeIsServedOverItsOwnService(t *testing.T) {
	address := typesPlane{}.serve(t)
	server := startTypesRelay(t, "grpc", address, "delta")
	conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func(method string, req, resp proto.Message) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err == nil {
			err = stream.SendMsg(req)
		}
		if err == nil {
			err = stream.RecvMsg(resp)
		}
		if err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	for _, typ := range xdstype.All() {
		s := typ.V3
		if s == nil {
			continue
		}
		var delta discoveryv3.DeltaDiscoveryResponse
		ask(s.Method(s.Delta), &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a"}}, &delta)
		if len(delta.GetResources()) != 1 || delta.GetResources()[0].GetResource().GetTypeUrl() != s.TypeURL {
			t.Errorf("%s gives %v", s.Delta, &delta)
		}
		if s.Stream != "" {
			var sotw discoveryv3.DiscoveryResponse
			ask(s.Method(s.Stream), &discoveryv3.DiscoveryRequest{ResourceNames: []string{"a"}}, &sotw)
			if len(sotw.GetResources()) != 1 || sotw.GetResources()[0].GetTypeUrl() != s.TypeURL {
				t.Errorf("%s gives %v", s.Stream, &sotw)
			}
		}
		if s.Fetch != "" {
			var fetched discoveryv3.DiscoveryResponse
			err := conn.Invoke(t.Context(), s.Method(s.Fetch), &discoveryv3.DiscoveryRequest{ResourceNames: []string{"a"}}, &fetched)
			if err != nil || len(fetched.GetResources()) != 1 || fetched.GetResources()[0].GetTypeUrl() != s.TypeURL {
				t.Errorf("%s gives %v, %v", s.Fetch, &fetched, err)
			}
		}
	}
}

// A type of the table can be polled for.
func TestEveryTypeIsServedOverREST(t *testing.T) {
	server := startTypesRelay(t, "rest", typesPlane{}.serve(t), "delta")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, typ := range xdstype.All() {
		if typ.V3 == nil || typ.V3.Path == "" {
			continue
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+server+typ.V3.Path, strings.NewReader(`{"resource_names": ["a"]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		var fetched discoveryv3.DiscoveryResponse
		if err == nil {
			err = protojson.Unmarshal(body, &fetched)
		}
		if err != nil || len(fetched.GetResources()) != 1 || fetched.GetResources()[0].GetTypeUrl() != typ.V3.TypeURL {
			t.Errorf("%s: %v, %s", typ.V3.Path, err, body)
		}
	}
}

// docs/configure.md has a row for each type of the table, and reference.yaml its words.
func TestEveryTypeIsInTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/configure.md")
	if err != nil {
		t.Fatal(err)
	}
	reference, err := os.ReadFile("../../configs/examples/reference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.FieldsFunc(string(reference), func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz-", r) })
	known := map[string]bool{}
	for _, word := range words {
		known[word] = true
	}
	var want strings.Builder
	for _, typ := range xdstype.All() {
		if typ.V3 == nil {
			continue
		}
		rest := "none"
		if typ.V3.Path != "" {
			rest = "`" + typ.V3.Path + "`"
		}
		fmt.Fprintf(&want, "| `%s`, `%s` | `%s` | %s |\n", typ.Word, typ.Abbreviation, xdstype.Message(typ.V3.TypeURL), rest)
		if !known[typ.Word] || !known[typ.Abbreviation] {
			t.Errorf("reference.yaml does not name %s and %s", typ.Word, typ.Abbreviation)
		}
	}
	if !strings.Contains(string(page), "|---|---|---|\n"+want.String()+"\n") {
		t.Errorf("docs/configure.md does not have exactly these rows:\n%s", want.String())
	}
}
