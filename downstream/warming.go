package downstream

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// What a client needs again, though it has it. xDS: "Resource warming".
//
// Envoy warms a changed Cluster again, and waits for a response with its endpoints. A Cluster, a Listener or an
// extension that names a Secret in another way than before waits for a response with the Secret (envoyproxy/envoy
// issue 47309). Envoy does not request either of them, because it has already subscribed to the names. So after each
// such resource the relay sends its endpoints and its Secrets again, changed or not, and whatever version the client
// stated on the first request.
//
// The name of the endpoints is found at once. For the names of the Secrets the resource has to be decoded: that is done
// only for a client that subscribes to Secrets on the same stream, and without any lock.

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

// resendNamed has sent again what a client needs with the resources of a response of s. What takes long is left to
// resendSecrets. The caller holds mu.
func (st *stream) resendNamed(s typeSession, r *session.Response) {
	if gone := r.TakeGone(); len(gone)+len(r.Changed) > 0 && xdstype.Of(s.TypeURL()) == xdstype.Cluster {
		st.letEndpointsGo(gone)
		if len(r.Changed) > 0 { // last: a Cluster may take over the endpoints of another one
			st.resendEndpoints(r.Changed)
		}
	}
	switch {
	case st.server.options.SecretsIn == nil:
		r.Changed = nil
	case !st.sessionClient.HasSecrets:
		st.mayNeedSecrets = st.mayNeedSecrets || r.Count > 0 && session.NamesSecrets(s.TypeURL())
		r.Changed = nil
	}
}

// resendSecrets has the Secrets sent again that the resources of a response name. The caller sends the response, and
// then composes the next one.
func (st *stream) resendSecrets(r *session.Response) {
	if len(r.Changed) == 0 {
		return
	}
	names := map[string]struct{}{}
	for _, res := range r.Changed {
		for _, name := range st.server.options.SecretsIn(res) {
			names[name] = struct{}{}
		}
	}
	r.Changed = nil
	if len(names) == 0 {
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, sds := range [...]typeSession{st.session(xdstype.SecretV3), st.session(xdstype.SecretV2)} {
		if sds == nil || st.closed {
			continue
		}
		for name := range names {
			sds.Resend(name)
		}
	}
}

// letEndpointsGo ends the hold on the endpoints of Clusters that a response takes from the client: see hold.go. If another
// Cluster has the same endpoints, the client may lose them before the control plane changes that Cluster, as it would
// without the relay. The caller holds mu.
func (st *stream) letEndpointsGo(clusters []*cache.Resource) {
	for _, eds := range [...]typeSession{st.session(xdstype.EndpointsV3), st.session(xdstype.EndpointsV2)} {
		if eds == nil {
			continue
		}
		for _, cluster := range clusters {
			eds.LetGo(cache.EndpointsOf(cluster))
		}
	}
}

// resendEndpoints has the endpoints of Clusters sent again that are in a response. The caller holds mu.
//
// xDS: "Resource warming": Envoy warms a changed Cluster again, and waits for a response with its endpoints without
// requesting them, because it has already subscribed to them. So the relay sends them again after the Cluster, changed
// or not.
func (st *stream) resendEndpoints(clusters []*cache.Resource) {
	subscribed := false
	for _, eds := range [...]typeSession{st.session(xdstype.EndpointsV3), st.session(xdstype.EndpointsV2)} {
		if eds == nil {
			continue
		}
		subscribed = true
		for _, cluster := range clusters {
			eds.Resend(cache.EndpointsOf(cluster))
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
		early.endpoints = append(early.endpoints, cache.EndpointsOf(cluster))
	}
}

// noteNeeded records the client's first request for a type. If that is endpoints or Secrets, it needs those again that
// belong to what it was sent before. resumed: the client states that it holds some. The caller holds mu.
func (st *stream) noteNeeded(s typeSession, resumed bool) {
	var names []string
	all := false
	switch xdstype.Of(s.TypeURL()) {
	case xdstype.Secret:
		all, st.mayNeedSecrets = st.mayNeedSecrets, false
	case xdstype.Endpoints:
		if st.early != nil {
			names, all = st.early.endpoints, st.early.all
		}
		st.early = nil
	}
	if all && resumed {
		names = slices.Collect(s.Names())
	}
	for _, name := range names {
		s.Resend(name)
	}
}
