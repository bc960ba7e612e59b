package naming

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/identity"
)

const viewedCollections = `
listeners: [{address: "127.0.0.1:0"}]
authorities:
  - {name: a, directory: files}
  - {name: drops, directory: files, context_parameters: {drop: [debug]}}
  - {name: "*.example.com", directory: files}
old_style_names: [{authority: a}]
views:
  - match: {glob: "xdstp://a/envoy.config.cluster.v3.Cluster/all/*"}
    collections: ["xdstp://a/envoy.config.cluster.v3.Cluster/public/*"]
  - match: {glob: "xdstp://drops/envoy.config.cluster.v3.Cluster/all/*"}
    collections: ["xdstp://a/envoy.config.cluster.v3.Cluster/public/*"]
  - match: {list: "xdstp://a/envoy.config.cluster.v3.ClusterCollection/all"}
    collections: ["xdstp://a/envoy.config.cluster.v3.Cluster/public/*"]
  - match: {glob: "xdstp://pay.example.com/envoy.config.cluster.v3.Cluster/all/*"}
    collections: ["xdstp://a/envoy.config.cluster.v3.Cluster/public/*"]
  - match: {type: cluster, wildcard: true}
    collections: ["xdstp://a/envoy.config.cluster.v3.Cluster/public/*"]
  - match: {type: endpoint, wildcard: true}
    when: identity.source == "jwt"
    collections: ["xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/public/*"]
rights:
  - allow: name != "never"
`

// A rule that allows a view by its name allows only the view, however a client spells the name.
func TestAViewThatIsAllowedDoesNotAllowItsCollectionInAnotherSpelling(t *testing.T) {
	const cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	for _, tt := range []struct {
		typeURL, name string
		view          string // empty: none
		denied        bool
	}{
		{cluster, "xdstp://a/envoy.config.cluster.v3.Cluster/all/*", "view/0", false},
		{cluster, "xdstp://a/envoy.config.cluster.v3.Cluster/all/*#alt=xdstp://a/envoy.config.cluster.v3.Cluster/all/*", "", true},
		{cluster, "xdstp://a/envoy.config.cluster.v3.Cluster/other/*#alt=xdstp://a/envoy.config.cluster.v3.Cluster/all/*", "", true},
		{cluster, "xdstp://a/envoy.config.cluster.v3.Cluster/all/*%23alt=xdstp%3A//a/envoy.config.cluster.v3.Cluster/all/*", "", true},
		{cluster, "xdstp://drops/envoy.config.cluster.v3.Cluster/all/*", "view/1", false},
		{cluster, "xdstp://drops/envoy.config.cluster.v3.Cluster/all/*?debug=1", "", true},
		{cluster, "xdstp://drops/envoy.config.cluster.v3.Cluster/all/*?other=1", "", false},
		{cluster + "Collection", "xdstp://a/envoy.config.cluster.v3.ClusterCollection/all", "view/2", false},
		{cluster, "xdstp://a/envoy.config.cluster.v3.ClusterCollection/all", "", true},
		{cluster, "xdstp://a/envoy.config.cluster.v3.ClusterCollection/all#entry=x", "", true},
		{cluster, "xdstp://pay.example.com/envoy.config.cluster.v3.Cluster/all/*", "view/3", false},
		{cluster, "xdstp://PAY.example.com/envoy.config.cluster.v3.Cluster/all/*", "", true},
		{cluster, "xdstp://a/envoy.config.cluster.v3.Cluster/all/one", "", false},
		{cluster, "*", "view/4", false},
		{"type.googleapis.com/envoy.api.v2.Cluster", "*", "", true},
		{"x/envoy.config.cluster.v3.Cluster", "*", "", true},
		{"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "*", "", false}, // the view is not for the client
		{cluster, "plain", "", false},
	} {
		names := restrictedNames(t, viewedCollections, &identity.Identity{Source: identity.MTLS})
		k, err := names.Key(tt.typeURL, tt.name)
		var as *downstream.RefusedError
		if denied := errors.As(err, &as) && as.Client.Code == codes.PermissionDenied; denied != tt.denied || err != nil && !denied {
			t.Errorf("%s of %s: got %v, want denied: %t", tt.name, tt.typeURL, err, tt.denied)
		}
		if view := k.Scope.Derived; view != tt.view && (tt.view != "" || len(view) > 5 && view[:5] == "view/") {
			t.Errorf("%s of %s: got %q, want %q", tt.name, tt.typeURL, view, tt.view)
		}
	}
}
