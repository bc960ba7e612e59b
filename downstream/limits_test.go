package downstream

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestAStreamHasABoundedNumberOfTypes(t *testing.T) {
	ch := newTestCache(&recordingFeeder{}, 1000)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	c := newTestClient(server, deltaForm.name, &corev3.Node{})
	defer c.close()
	for i := range maxTypes {
		if err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: fmt.Sprint("type/", i), ResourceNamesSubscribe: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
	}
	err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type/more", ResourceNamesSubscribe: []string{"a"}})
	if want := "65 types on this stream, but the fixed limit types is 64"; status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != want {
		t.Errorf("got %v, want RESOURCE_EXHAUSTED: %s", err, want)
	}
}

func TestANodeIsBounded(t *testing.T) {
	ch := newTestCache(&recordingFeeder{}, 1000)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	c := newTestClient(server, sotwForm.name, &corev3.Node{Id: strings.Repeat("x", maxNodeBytes)})
	defer c.close()
	err := c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "a node of ") {
		t.Errorf("got %v, want RESOURCE_EXHAUSTED of the node", err)
	}
}

// A client's words are shown as they are, once for each response, and not at any
// length; about secrets not at all.
func TestRejectionsAreClippedCountedOnceAndKeepSecrets(t *testing.T) {
	long := strings.Repeat("é", maxReason)
	s := &subscriptions{typeURL: clusterType}
	r := &sentResponse{nonce: "1"}
	n := s.reject(r, &statuspb.Status{Message: long})
	if n == nil || len(n.reason) > maxReason+3 || !strings.HasPrefix(long, strings.TrimSuffix(n.reason, "...")) {
		t.Errorf("a rejection of %d bytes is told in %v", len(long), n)
	}
	if again := s.reject(r, &statuspb.Status{Message: "again"}); again != nil {
		t.Errorf("the same response was rejected twice: %v", again)
	}
	secrets := &subscriptions{typeURL: secretType}
	if n := secrets.reject(&sentResponse{nonce: "1"}, &statuspb.Status{Message: "hush"}); strings.Contains(n.reason, "hush") || strings.Contains(secrets.rejection, "hush") {
		t.Errorf("the secret is told: %q", n.reason)
	}
}
