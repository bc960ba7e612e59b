package operator

// Clients' streams, as /clients shows them.

import (
	"iter"
	"time"

	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// ClientStatus is one client's stream, as /clients shows it.
type ClientStatus struct {
	Stream  uint64    `json:"stream"`
	Node    string    `json:"node"`
	Cluster string    `json:"cluster"`
	Peer    string    `json:"peer"`
	Form    string    `json:"form"`
	Since   time.Time `json:"since"`
	// Identity is the identity that the client has proven.
	Identity IdentityStatus `json:"identity"`
	Types    []TypeStatus   `json:"types"`
}

// IdentityStatus is an identity as /clients shows it. It leaves out the claims of tokens.
type IdentityStatus struct {
	Source   string   `json:"source"`
	SPIFFEID string   `json:"spiffe_id,omitempty"`
	DNSNames []string `json:"dns_names,omitempty"`
	Subject  string   `json:"subject,omitempty"`
	UID      *uint32  `json:"uid,omitempty"`
}

func viewOfIdentity(id *identity.Identity) IdentityStatus {
	return IdentityStatus{Source: string(id.Source), SPIFFEID: id.SPIFFEID, DNSNames: id.DNSNames, Subject: loglines.Clip(id.Subject), UID: id.UID}
}

// TypeStatus has a client's subscriptions to one type.
type TypeStatus struct {
	Type          string `json:"type"`
	Subscriptions int    `json:"subscriptions"`
	LastRejection string `json:"last_rejection,omitempty"`
	// NACK is the last rejection, unless the client has accepted a later version of what it rejected.
	NACK *RejectionStatus `json:"nack,omitempty"`
	// Refused counts the names that the relay refused, and LastRefused is the last of them.
	Refused     uint64         `json:"refused,omitempty"`
	LastRefused *RefusedStatus `json:"last_refused,omitempty"`
}

// RefusedStatus is a name that the relay refused to serve a client.
type RefusedStatus struct {
	Name   string `json:"name"`
	Reason string `json:"reason"` // the label reason of xds_relay_downstream_names_refused_total
	Error  string `json:"error"`
}

func viewOfType(t downstream.TypeStatus) TypeStatus {
	v := TypeStatus{Type: xdstype.Word(t.TypeURL), Subscriptions: t.Subscriptions, LastRejection: t.LastRejection, NACK: viewOfRejection(t.NACK), Refused: t.Refused.Total}
	if t.Refused.Total > 0 {
		v.LastRefused = &RefusedStatus{t.Refused.Last, t.Refused.Refusal.String(), t.Refused.Reason}
	}
	return v
}

// Clients returns the clients as a sequence, because there may be very many.
func (r *Observer) Clients() iter.Seq[ClientStatus] {
	return func(yield func(ClientStatus) bool) {
		for c := range r.Server.Describe() {
			if !yield(viewOfClient(&c)) {
				return
			}
		}
	}
}

func viewOfClient(c *downstream.ClientStatus) ClientStatus {
	v := ClientStatus{
		Stream: c.Stream, Node: loglines.Clip(c.Node.GetId()), Cluster: loglines.Clip(c.Node.GetCluster()),
		Peer: c.Peer, Form: c.Form, Since: c.Since, Identity: viewOfIdentity(c.Identity), Types: []TypeStatus{},
	}
	for _, t := range c.Types {
		v.Types = append(v.Types, viewOfType(t))
	}
	return v
}
