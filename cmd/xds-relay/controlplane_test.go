package main

// A control plane to ask, and the command line as a function.

import (
	"bytes"
	"os"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/xds-relay/xds-relay/internal/testplane"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// controlPlane is go-control-plane's, with one snapshot.
type controlPlane struct{ testplane.Snapshot }

func newControlPlane(t *testing.T) controlPlane {
	t.Helper()
	plane := controlPlane{testplane.NewSnapshot(t)}
	plane.set(t, "1", "blue", "green")
	return plane
}

// set gives the control plane clusters of these names, and one secret.
func (c controlPlane) set(t *testing.T, version string, clusters ...string) {
	t.Helper()
	resources := map[resourcev3.Type][]types.Resource{
		resourcev3.SecretType: {&tlsv3.Secret{Name: "server", Type: &tlsv3.Secret_TlsCertificate{
			TlsCertificate: &tlsv3.TlsCertificate{PrivateKey: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: "hush"},
			}},
		}}},
	}
	for _, name := range clusters {
		resources[resourcev3.ClusterType] = append(resources[resourcev3.ClusterType], &clusterv3.Cluster{Name: name})
	}
	c.Set(t, version, resources)
}

// runCommand is the command line: what it writes, and its exit status.
func runCommand(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, &out, &errs)
	return out.String(), errs.String(), status
}
