package session

import (
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// A client's words are shown unchanged, once for each response, and clipped. Words about secrets are not shown.
func TestRejectionsAreClippedCountedOnceAndKeepSecrets(t *testing.T) {
	long := strings.Repeat("é", loglines.MaxText)
	s := &subscriptions{typeURL: xdstype.ClusterV3}
	r := &sentResponse{nonce: "1"}
	n := s.reject(r, &statuspb.Status{Message: long})
	if n == nil || len(n.Reason) > loglines.MaxText+3 || !strings.HasPrefix(long, strings.TrimSuffix(n.Reason, "...")) {
		t.Errorf("a rejection of %d bytes is kept as %v", len(long), n)
	}
	if again := s.reject(r, &statuspb.Status{Message: "again"}); again != nil {
		t.Errorf("the same response was rejected twice: %v", again)
	}
	for _, typeURL := range []string{xdstype.SecretV3, xdstype.SecretV2} {
		secrets := &subscriptions{typeURL: typeURL}
		if n := secrets.reject(&sentResponse{nonce: "1"}, &statuspb.Status{Message: "hush"}); strings.Contains(n.Reason, "hush") || strings.Contains(secrets.nacks.words(), "hush") {
			t.Errorf("the secret is kept: %q", n.Reason)
		}
	}
	for message, want := range map[string]string{
		"Proto constraint validation failed (Cluster.Name: [x]): private_key: hush": "Proto constraint validation failed (Cluster.Name: [x]): [redacted]",
		"bad key -----BEGIN RSA PRIVATE KEY-----\nhush":                             "bad key [redacted]",
	} {
		if n := s.reject(&sentResponse{nonce: "2"}, &statuspb.Status{Message: message}); n.Reason != want || s.nacks.words() != want {
			t.Errorf("got %q, want %q", n.Reason, want)
		}
	}
}

// A client may quote what it rejects. So its words about a response with a secret are not shown, whichever way the
// resource was sent. Its words about other responses are shown.
func TestRejectionsOfResourcesWithSecretsAreNotShown(t *testing.T) {
	with := func(key *corev3.DataSource) *cache.Resource {
		socket, err := anypb.New(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{PrivateKey: key}}}})
		if err != nil {
			t.Fatal(err)
		}
		value, err := proto.Marshal(&clusterv3.Cluster{Name: "a", TransportSocket: &corev3.TransportSocket{ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: socket}}})
		if err != nil {
			t.Fatal(err)
		}
		return cache.NewResource(cache.Spec{Name: "a", Version: "1", TypeURL: xdstype.ClusterV3, Value: value})
	}
	for hold, res := range map[bool]*cache.Resource{
		true:  with(&corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "hush"}}),
		false: with(&corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "key.pem"}}),
	} {
		for how, add := range map[string]func(*Response){
			"delta":              func(r *Response) { r.addDelta("a", res, 0) },
			"delta, renamed":     func(r *Response) { r.addDelta("b", res, 0) },
			"delta, with many":   func(r *Response) { r.expect(leastBatched); r.addDelta("a", res, 0) },
			"delta, by an alias": func(r *Response) { r.addAliased("a", res, 0, []string{"b"}) },
			"delta, as a member": func(r *Response) { r.addMember("a", res, 0) },
			"delta, in a group":  func(r *Response) { r.addNews(newsOf(res)) },
			"SotW":               func(r *Response) { r.addSotW("a", res, 0) },
			"SotW, renamed":      func(r *Response) { r.addSotW("b", res, 0) },
			"SotW, with many":    func(r *Response) { r.expect(leastBatched); r.addSotW("a", res, 0) },
			"SotW, in a group":   func(r *Response) { r.addNews(newsOf(res)) },
		} {
			r := &Response{TypeURL: xdstype.ClusterV3, Nonce: "1"}
			add(r)
			var n *NACK
			if strings.HasPrefix(how, "SotW") {
				s := NewSotW(xdstype.ClusterV3, &Client{})
				s.Sent(r)
				n = s.reject(&s.last, &statuspb.Status{Message: "hush"})
			} else {
				s := NewDelta(xdstype.ClusterV3, &Client{})
				s.Sent(r)
				n = s.answer("1", &statuspb.Status{Message: "hush"})
			}
			if hidden := !strings.Contains(n.Reason, "hush"); hidden != hold {
				t.Errorf("%s: the resource has a secret: %t, the client's words are %q", how, hold, n.Reason)
			}
		}
	}
}

func newsOf(r *cache.Resource) *News {
	return &News{Names: []uint32{0}, States: []*cache.State{{Resource: r}}, HoldsSecret: r.HoldsSecret()}
}
