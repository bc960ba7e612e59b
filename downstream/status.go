package downstream

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// ClientStatus is one client's stream as an operator sees it.
type ClientStatus struct {
	Node   *corev3.Node // nil before the first request
	Peer   string
	Form   string // sotw or delta; unary or rest of a request that waits
	Since  time.Time
	Types  []TypeStatus
	Stream uint64
}

// TypeStatus is one type URL on a stream as an operator sees it.
type TypeStatus struct {
	session.Status
	Refused RefusedNames
}

func (st *stream) describe() ClientStatus {
	st.mu.Lock()
	defer st.mu.Unlock()
	c := ClientStatus{Node: st.node, Peer: st.peer, Form: st.form, Since: st.since, Stream: st.id}
	for _, s := range st.sessions {
		c.Types = append(c.Types, TypeStatus{s.Describe(), st.refusedNames[s.TypeURL()]})
	}
	return c
}
