package client

// The SotW form: every request has all names. Responses of some types have the full state; those of
// other types may have only changes.

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

type sotwSession struct {
	*state
	accepted string // version_info of the last response that the client accepted (ACK)
}

// open returns the first request of a stream. After a reconnect it has the last version. A
// server that has the same version need not answer.
func (s *sotwSession) open() *discoveryv3.DiscoveryRequest {
	return &discoveryv3.DiscoveryRequest{
		Node:          s.query.Node,
		TypeUrl:       s.query.TypeURL,
		ResourceNames: s.names.list,
		VersionInfo:   s.accepted,
	}
}

// receive processes a response. It returns the ACK or NACK, and the events.
func (s *sotwSession) receive(resp *discoveryv3.DiscoveryResponse) (*discoveryv3.DiscoveryRequest, []Event) {
	var events []Event
	var bad []error
	if err := wrongType(s.query.TypeURL, resp.GetTypeUrl()); err != nil {
		events, bad = []Event{{Kind: Rejected, Err: err}}, []error{err}
	} else {
		events, bad = s.take(resp)
	}
	reply := &discoveryv3.DiscoveryRequest{
		TypeUrl:       s.query.TypeURL,
		ResourceNames: s.names.list,
		ResponseNonce: resp.GetNonce(),
		ErrorDetail:   nack(bad),
	}
	if len(bad) == 0 {
		s.accepted = resp.GetVersionInfo()
	}
	reply.VersionInfo = s.accepted
	return reply, events
}

func (s *sotwSession) take(resp *discoveryv3.DiscoveryResponse) (events []Event, bad []error) {
	s.responded = true
	present := make(map[string]bool, len(resp.GetResources()))
	nameless := s.nameless(len(resp.GetResources()))
	for _, content := range resp.GetResources() {
		r := unwrap(content, resp.GetVersionInfo())
		present[canonical(r.GetName())] = true
		for _, glob := range s.names.covering(r.GetName()) {
			present[canonical(glob)] = true
		}
		if r.GetResource() == nil {
			continue // a heartbeat
		}
		changes, err := s.put(r, nameless)
		events = append(events, changes...)
		if err != nil {
			bad = append(bad, err)
		}
	}
	// First, because a name with an error is not absent, and errors explain removals.
	events = append(events, s.fail(resp.GetResourceErrors())...)
	for _, e := range resp.GetResourceErrors() {
		present[canonical(e.GetResourceName().GetName())] = true
	}
	// A resource without a name could be any of the absent ones.
	if s.full() && (nameless || !present[""]) {
		for _, r := range s.resources() {
			if !present[canonical(r.GetName())] {
				events = append(events, s.remove(r.GetName(), nil)...)
			}
		}
		for _, name := range s.names.list {
			if !present[canonical(name)] && name != wildcard {
				events = append(events, s.remove(name, nil)...)
			}
		}
	}
	return events, bad
}

// full reports whether a response has the full state, so that absent names do not exist.
//
// xDS: "Deleting Resources" and "Knowing When a Requested Resource Does Not Exist".
func (s *sotwSession) full() bool {
	return s.names.openEnded() || xdstype.Of(s.query.TypeURL).FullState
}

// unwrap returns a resource of a SotW response with its name. The name is in the wrapper if there is
// one, and otherwise in field 1, as in all types of xDS. In unknown types field 1 may be something else,
// so only xdstp names count.
func unwrap(content *anypb.Any, version string) *discoveryv3.Resource {
	inside := func(content *anypb.Any) string {
		found, _ := wire.Last(content.GetValue(), wire.InnerNameField) // check reports the error, with the name
		if of := content.GetTypeUrl(); !xdstype.HasInnerName(of) || unknown(of) && !xdstype.IsName(found) {
			return ""
		}
		return string(found)
	}
	if content.GetTypeUrl() != xdstype.Wrapper {
		return &discoveryv3.Resource{Name: inside(content), Version: version, Resource: content}
	}
	r := new(discoveryv3.Resource)
	if proto.Unmarshal(content.GetValue(), r) != nil {
		return &discoveryv3.Resource{Resource: content}
	}
	if r.GetName() == "" {
		r.Name = r.GetResourceName().GetName()
	}
	if r.GetName() == "" {
		r.Name = inside(r.GetResource())
	}
	if r.GetVersion() == "" {
		r.Version = version
	}
	return r
}
