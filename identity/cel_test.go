package identity

import (
	"net"
	"testing"

	"cel.dev/cel-go/cel"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/peer"
)

func environment(t *testing.T) *cel.Env {
	t.Helper()
	options, err := CELOptions(&corev3.Node{})
	if err != nil {
		t.Fatal(err)
	}
	env, err := cel.NewEnv(options, cel.Variable("node", cel.ObjectType("envoy.config.core.v3.Node")))
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func TestWhatAClientHasNotProvenIsAnEvaluationError(t *testing.T) {
	root := uint32(0)
	pay := &Identity{
		Source: MTLS, SPIFFEID: "spiffe://example.org/ns/pay", TrustDomain: "example.org", SPIFFEPath: "/ns/pay",
		DNSNames: []string{"pay.example.org"}, Subject: "CN=pay", UID: &root,
		Claims: map[string]any{"sub": "x", "groups": []any{"a", "b"}, "n": 3.0, "k": map[string]any{"ns": "pay"}},
	}
	nobody := Anonymous(nil)
	for _, tt := range []struct {
		expression string
		id         *Identity
		want       bool
		err        string
	}{
		{`identity.spiffe_id == "spiffe://example.org/ns/pay"`, pay, true, ""},
		{`"/ns/payments".startsWith(identity.spiffe_path)`, pay, true, ""},
		{`"/ns/payments".startsWith(identity.spiffe_path)`, nobody, false, `the client has no spiffe_path (its identity's source is "none")`},
		{`has(identity.spiffe_path)`, nobody, false, ""},
		{`has(identity.spiffe_path)`, pay, true, ""},
		{`identity.uid == 0`, pay, true, ""},
		{`identity.uid == 0`, nobody, false, `the client has no uid (its identity's source is "none")`},
		{`"pay.example.org" in identity.dns_names`, pay, true, ""},
		{`identity.dns_names.exists(n, n.endsWith(".org"))`, pay, true, ""},
		{`identity.claims.sub == "x" && identity.claims["n"] == 3.0 && "b" in identity.claims.groups`, pay, true, ""},
		{`identity.claims.k.ns == "pay"`, pay, true, ""},
		{`identity.claims.other == "x"`, pay, false, "no such key: other"},
		{`has(identity.claims) && has(identity.claims.sub)`, nobody, false, ""},
		{`identity.source == "none"`, nobody, true, ""},
		{`identity.subject == "CN=pay" && identity.trust_domain == "example.org" && node.id == ""`, pay, true, ""},
		{`identity == identity`, pay, true, ""},
	} {
		checked, issues := environment(t).Compile(tt.expression)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", tt.expression, issues.Err())
		}
		program, err := environment(t).Program(checked, cel.EvalOptions(cel.OptOptimize))
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := program.Eval(map[string]any{Variable: tt.id, "node": &corev3.Node{}})
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != tt.err || err == nil && got.Value() != tt.want {
			t.Errorf("%s for %s: got %v, %q, want %t, %q", tt.expression, tt.id.Source, got, text, tt.want, tt.err)
		}
	}
}

func TestFieldsThatIdentitiesDoNotHaveAreNoExpressions(t *testing.T) {
	for _, expression := range []string{`identity.spifeid == ""`, `identity.uid == "0"`, `identity["uid"] == 0`, `identity.dns_names == "a"`} {
		if _, issues := environment(t).Compile(expression); issues.Err() == nil {
			t.Errorf("%s compiles", expression)
		}
	}
}

func TestClientsAreLocalOnlyIfBothEndsAreOnLoopbackOrAUnixSocket(t *testing.T) {
	loopback, outside := &net.TCPAddr{IP: net.IPv4(127, 9, 9, 9), Port: 1}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
	socket := &net.UnixAddr{Name: "/run/x", Net: "unix"}
	for _, tt := range []struct {
		from, to net.Addr
		want     bool
	}{
		{loopback, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2}, true},
		{&net.TCPAddr{IP: net.IPv6loopback, Port: 1}, &net.TCPAddr{IP: net.IPv6loopback, Port: 2}, true},
		{outside, outside, false},
		{loopback, outside, false}, // by a sidecar proxy of the relay
		{outside, loopback, false},
		{&net.TCPAddr{Port: 1}, loopback, false},
		{socket, socket, true},
		{loopback, nil, false},
		{nil, loopback, false},
	} {
		if got := Anonymous(&peer.Peer{Addr: tt.from, LocalAddr: tt.to}).Local; got != tt.want {
			t.Errorf("from %v to %v: got %t, want %t", tt.from, tt.to, got, tt.want)
		}
	}
	if Anonymous(nil).Local {
		t.Error("a client of whom nothing is known is local")
	}
}
