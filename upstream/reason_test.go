package upstream

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestReasonsNameTheKeyThatMayBeWrong(t *testing.T) {
	for _, tt := range []struct {
		code          codes.Code
		message, want string
	}{
		{codes.Unimplemented, "unknown service envoy.service.discovery.v3.AggregatedDiscoveryService", "`aggregated: false`"},
		{codes.Unavailable, `connection error: desc = "error reading server preface: EOF"`, "Unavailable: error reading server preface: EOF (TLS?"},
		{codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: tls: first record does not look like a TLS handshake"`, "it has no `tls`"},
		{codes.Unavailable, "name resolver error: produced zero addresses", "DNS has no address for the host"},
		{codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`, "Unavailable: dial tcp 127.0.0.1:1: connect: connection refused"},
		{codes.Unimplemented, "unknown service envoy.service.cluster.v3.ClusterDiscoveryService", "Unimplemented: unknown service envoy.service.cluster.v3.ClusterDiscoveryService"},
	} {
		got := Reason(status.Error(tt.code, tt.message))
		if !strings.Contains(got, tt.want) || strings.Contains(got, "desc =") || strings.HasPrefix(tt.want, tt.code.String()) && !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.message, got, tt.want)
		}
	}
}
