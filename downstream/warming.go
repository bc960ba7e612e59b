package downstream

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/xdstype"
)

// After a Cluster, the client is sent the Cluster's endpoints again: see session.EndpointsOf.

// earlyClusters are Clusters that the client was sent before it subscribed to endpoints on the stream. Its first request
// for endpoints may state that it holds those of the Clusters. That does not count: it needs them again.
type earlyClusters struct {
	endpoints []string // the names of their endpoints
	all       bool     // endpoints is not complete
}

// maxEarlyClusters bounds earlyClusters, which a client that never subscribes to endpoints keeps.
const maxEarlyClusters = 32

// allEarlyClusters stands for any Clusters. A client that does not resume is sent all of its Clusters, and few of these
// clients hold endpoints.
var allEarlyClusters = &earlyClusters{all: true}

// resendEndpoints has the endpoints of Clusters sent again that are in a response. The caller holds mu.
func (st *stream) resendEndpoints(clusters []*cache.Resource) {
	subscribed := false
	for _, eds := range [...]typeSession{st.session(xdstype.EndpointsV3), st.session(xdstype.EndpointsV2)} {
		if eds == nil {
			continue
		}
		subscribed = true
		for _, cluster := range clusters {
			eds.Resend(session.EndpointsOf(cluster))
		}
	}
	early := st.early
	switch {
	case subscribed, st.implied != "":
		return // or it cannot subscribe to endpoints on this stream
	case early == nil:
		early = &earlyClusters{}
	}
	if !st.resumed || len(early.endpoints)+len(clusters) > maxEarlyClusters {
		early = allEarlyClusters
	}
	if st.early = early; early.all {
		return
	}
	for _, cluster := range clusters {
		early.endpoints = append(early.endpoints, session.EndpointsOf(cluster))
	}
}

// noteEndpoints records the client's first request for a type, which may be for endpoints. resumed: the client states
// that it holds some. The caller holds mu.
func (st *stream) noteEndpoints(s typeSession, resumed bool) {
	if st.early == nil || xdstype.Of(s.TypeURL()) != xdstype.Endpoints {
		return
	}
	names := st.early.endpoints
	if st.early.all && resumed {
		names = slices.Collect(s.Names())
	}
	st.early = nil
	for _, name := range names {
		s.Resend(name)
	}
}
