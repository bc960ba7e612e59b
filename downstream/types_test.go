package downstream

import (
	"testing"

	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

const (
	listenerType    = xdstype.ListenerV3
	clusterType     = xdstype.ClusterV3
	endpointType    = xdstype.EndpointsV3
	routeType       = xdstype.RouteV3
	scopedRouteType = xdstype.ScopedRouteV3
	secretType      = xdstype.SecretV3
	virtualHostType = xdstype.VirtualHostV3
)

// xDS: "Eventual consistency considerations". Package xdstype defines the order.
func TestSessionsOfAStreamAreInTheOrderOfTheirTypes(t *testing.T) {
	st := &stream{}
	urls := []string{"type.googleapis.com/example.Unheard"}
	for _, service := range append(xdstype.Services(false)[1:], xdstype.Services(true)[1:]...) {
		urls = append(urls, service.TypeURL)
	}
	for _, url := range urls {
		st.insert(session.NewSotW(url, &session.Client{}))
	}
	if len(st.sessions) != len(urls) {
		t.Fatalf("%d sessions of %d types", len(st.sessions), len(urls))
	}
	for i, s := range st.sessions[1:] {
		if before := st.sessions[i]; xdstype.Of(before.TypeURL()).Order > xdstype.Of(s.TypeURL()).Order {
			t.Errorf("%s is before %s", before.TypeURL(), s.TypeURL())
		}
	}
}
