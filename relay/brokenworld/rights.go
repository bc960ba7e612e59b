package brokenworld

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xds-relay/xds-relay/internal/testplane"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// The clients of a world with rights.
const (
	// Trusted connects over a unix socket, and may have all resources. Denied connects over TCP, and may not
	// have Confidential.
	Trusted = "envoy-trusted"
	Denied  = "envoy-denied"
	// Confidential is a cluster with a private key, which only Trusted may have. ConfidentialAlt is a part of
	// its content.
	Confidential    = "payments"
	ConfidentialAlt = "confidential-content"
	// OfDown is a cluster of the authority Down, which has no reachable server. Only Trusted may have it.
	OfDown = "xdstp://" + Down + "/envoy.config.cluster.v3.Cluster/stock"
)

// confidential has the cluster Confidential.
const confidential = `
resources:
  - "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: payments
    alt_stat_name: ` + ConfidentialAlt + `
    connect_timeout: 1s
    load_assignment: {cluster_name: payments}
    transport_socket:
      name: tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context:
          tls_certificates:
            - certificate_chain: {inline_string: "-----BEGIN CERTIFICATE-----"}
              private_key: {inline_string: "` + Marker + `-of-a-cluster"}
`

// StartWithRights starts a relay with rights, and two clients, Trusted and Denied, which request the same
// names. The Secrets of the two clients have the same name and different contents.
func StartWithRights(t testing.TB) *World {
	t.Helper()
	w := &World{folder: t.TempDir()}
	w.Write(t, Shop, shop)
	w.WriteFile(t, Shop, "confidential.yaml", confidential)
	w.Write(t, EU, strings.ReplaceAll(shop, Marker, Marker+"-in-eu"))
	w.WriteFile(t, EU, "confidential.yaml", confidential)
	socket := filepath.Join(w.folder, "clients.sock")
	down := testplane.RefusingAddress(t)
	w.run(t, fmt.Sprintf(`
listeners: [{address: '127.0.0.1:0'}, {address: 'unix:%s'}]
admin: {address: '127.0.0.1:0'}
authorities:
  - {name: %q, directory: %q}
  - {name: %q, directory: %q}
  - {name: %q, servers: [{address: %q}]}
old_style_names:
  - {when: node.cluster == "eu", authority: %q}
  - {authority: %q}
rights:
  - {when: name == %q, allow: identity.source == "unix"}
  - {when: authority == %q, allow: identity.source == "unix"}
  - {allow: true}
`, socket, Shop, w.file(Shop), EU, w.file(EU), Down, down, EU, Shop, Confidential, Down))
	tcp := w.conn
	local, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = local.Close() })
	for _, of := range []struct {
		id, cluster string
		conn        *grpc.ClientConn
	}{{Trusted, "web", local}, {Denied, "eu", tcp}} {
		w.conn = of.conn
		c := w.Connect(t, &corev3.Node{Id: of.id, Cluster: of.cluster}, nil)
		c.Subscribe(t, xdstype.ListenerV3, "web")
		c.Subscribe(t, xdstype.RouteV3, "web-routes")
		c.Subscribe(t, xdstype.ClusterV3, Confidential, "cart", OfDown)
		c.Subscribe(t, xdstype.EndpointsV3, "cart")
		c.Subscribe(t, xdstype.SecretV3, "web-certificate")
		c.Await(t, "web-certificate")
		c.Await(t, "cart")
		if of.id == Trusted {
			c.Await(t, Confidential)
		}
	}
	w.conn = tcp
	return w
}
