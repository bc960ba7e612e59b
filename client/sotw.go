package client

// The SotW form: every request names all that is wanted. Responses of some
// types are the full state, those of others only what is new.

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/wire"
	"github.com/xds-relay/xds-relay/xdstype"
)

type sotwSession struct {
	*state
	accepted string // version_info of the last response that was accepted whole
}

// open gives the first request of a stream. After a reconnect it carries the
// last version, and a server that has no other need not answer.
func (s *sotwSession) open() *discoveryv3.DiscoveryRequest {
	return &discoveryv3.DiscoveryRequest{
		Node:          s.query.Node,
		TypeUrl:       s.query.TypeURL,
		ResourceNames: s.names.list,
		VersionInfo:   s.accepted,
	}
}

// receive takes a response, and gives its ACK or NACK and what there is to tell.
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
	s.heard = true
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
		told, err := s.put(r, nameless)
		events = append(events, told...)
		if err != nil {
			bad = append(bad, err)
		}
	}
	// First, because what is in error is not left out, and what does not exist is
	// told why.
	events = append(events, s.fail(resp.GetResourceErrors())...)
	for _, e := range resp.GetResourceErrors() {
		present[canonical(e.GetResourceName().GetName())] = true
	}
	// A resource whose name is missing could be any of those that are not there.
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

// full says that a response has all there is, so that what it leaves out does
// not exist.
//
// xDS: "Deleting Resources" and "Knowing When a Requested Resource Does Not Exist".
func (s *sotwSession) full() bool {
	return s.names.openEnded() || xdstype.Of(s.query.TypeURL).FullState
}

// unwrap gives a resource of a SotW response its name: that of the wrapper if
// there is one, or else field 1, where all types of xDS have it. In that of a type
// that is not known here may be something else, which is no name.
func unwrap(content *anypb.Any, version string) *discoveryv3.Resource {
	inside := func(content *anypb.Any) string {
		found, _ := wire.Last(content.GetValue(), wire.InnerNameField) // check reports the error, with the name
		if of := content.GetTypeUrl(); !xdstype.HasInnerName(of) || unheard(of) && !xdstype.IsName(found) {
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
