package client

// The delta form: the client subscribes to each name once, and the server sends what is
// new, changed and removed.

import (
	"fmt"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

type deltaSession struct {
	*state
}

// open returns the first request of a stream. It has the version of every resource that the
// client holds, so that the server sends only differences, including removals.
//
// xDS: "Reconnecting to the server".
func (s deltaSession) open() *discoveryv3.DeltaDiscoveryRequest {
	req := &discoveryv3.DeltaDiscoveryRequest{
		Node:                   s.query.Node,
		TypeUrl:                s.query.TypeURL,
		ResourceNamesSubscribe: s.names.list,
	}
	if len(s.held) > 0 {
		req.InitialResourceVersions = make(map[string]string, len(s.held))
		for _, r := range s.held {
			if r.GetName() == "" {
				continue // the server sends it again
			}
			req.InitialResourceVersions[r.GetName()] = r.GetVersion()
		}
	}
	return req
}

// receive processes a response. It returns the ACK or NACK, and the events.
func (s deltaSession) receive(resp *discoveryv3.DeltaDiscoveryResponse) (*discoveryv3.DeltaDiscoveryRequest, []Event) {
	reply := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: s.query.TypeURL, ResponseNonce: resp.GetNonce()}
	if err := wrongType(s.query.TypeURL, resp.GetTypeUrl()); err != nil {
		reply.ErrorDetail = nack([]error{err})
		return reply, []Event{{Kind: Rejected, Err: err}}
	}
	s.responded = true
	var events []Event
	var bad []error
	nameless := s.nameless(len(resp.GetResources()))
	for _, r := range resp.GetResources() {
		if r.GetName() == "" && r.GetResourceName() != nil {
			r.Name = r.GetResourceName().GetName()
		}
		switch {
		case r.GetResource() != nil:
			changes, err := s.put(r, nameless)
			events = append(events, changes...)
			if err != nil {
				bad = append(bad, err)
			}
		case r.GetTtl() == nil:
			// Old servers send a Resource without content if the resource does not exist. With a
			// TTL that is a heartbeat: the resource is unchanged.
			events = append(events, s.remove(r.GetName(), nil)...)
		}
	}
	// First, because errors explain removals.
	events = append(events, s.fail(resp.GetResourceErrors())...)
	for _, name := range resp.GetRemovedResources() {
		events = append(events, s.remove(name, nil)...)
	}
	for _, name := range resp.GetRemovedResourceNames() {
		events = append(events, s.remove(name.GetName(), nil)...)
	}
	reply.ErrorDetail = nack(bad)
	return reply, events
}

func wrongType(want, got string) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("a response of type %q to a request for %q", got, want)
}
