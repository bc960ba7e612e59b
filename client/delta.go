package client

// The delta form: names are subscribed once, and the server says what is new,
// changed and removed.

import (
	"fmt"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

type deltaSession struct {
	*state
}

// open gives the first request of a stream.
//
// xDS: "Reconnecting to the server": what is held is named with its version, so
// that only what is different comes again, removals among it.
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
				continue // it comes again
			}
			req.InitialResourceVersions[r.GetName()] = r.GetVersion()
		}
	}
	return req
}

// receive takes a response, and gives its ACK or NACK and what there is to tell.
func (s deltaSession) receive(resp *discoveryv3.DeltaDiscoveryResponse) (*discoveryv3.DeltaDiscoveryRequest, []Event) {
	reply := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: s.query.TypeURL, ResponseNonce: resp.GetNonce()}
	if err := wrongType(s.query.TypeURL, resp.GetTypeUrl()); err != nil {
		reply.ErrorDetail = nack([]error{err})
		return reply, []Event{{Kind: Rejected, Err: err}}
	}
	s.heard = true
	var events []Event
	var bad []error
	nameless := s.nameless(len(resp.GetResources()))
	for _, r := range resp.GetResources() {
		if r.GetName() == "" && r.GetResourceName() != nil {
			r.Name = r.GetResourceName().GetName()
		}
		switch {
		case r.GetResource() != nil:
			told, err := s.put(r, nameless)
			events = append(events, told...)
			if err != nil {
				bad = append(bad, err)
			}
		case r.GetTtl() == nil:
			// Old servers say so that there is no such resource. With a TTL it
			// is a heartbeat: still there, still the same.
			events = append(events, s.remove(r.GetName(), nil)...)
		}
	}
	// First, because they say why a name is removed.
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
