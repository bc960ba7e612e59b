package downstream

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Responses as JSON. Only for them does the relay unmarshal resources in order to serve them.

// marshalJSON is protojson, with all types that are known.
var marshalJSON = protojson.MarshalOptions{Resolver: descriptors.Types{}}

// toJSON returns a response in protobuf's canonical JSON, as a message of the service's version of the API. Resources that
// have no JSON form are left out and reported as errors; if that would remove them from the client, because the response
// is its full state, the error is an *incompleteError.
func (s *Server) toJSON(r *session.Response, service *xdstype.Service) *jsonEntry {
	render := func() ([]byte, error) { return s.render(r, service) }
	// Only what many clients may get is worth caching: shared bytes.
	shared, private := r.Parts()
	if len(shared) != 1 || private > 0 || shared.Len() < minJSONCached {
		return &jsonEntry{key: jsonKey{size: shared.Len() + private}, own: true, render: render}
	}
	key := jsonKey{shared: &shared[0].ReadOnlyData()[0], size: shared.Len(), version: r.Version, path: service.Path, types: descriptors.Newest()}
	return s.jsonCache.entry(key, shared[0], render, s.pressure.mostCached())
}

func (s *Server) render(r *session.Response, service *xdstype.Service) ([]byte, error) {
	return s.renderBytes(r.Encode().Materialize(), service)
}

func (s *Server) renderBytes(encoded []byte, service *xdstype.Service) ([]byte, error) {
	var msg discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(encoded, &msg); err != nil {
		return nil, fmt.Errorf("the response: %s", protoText(err))
	}
	if service.V2 {
		msg.ResourceErrors = nil // v2 does not have it, and JSON parsers may be strict
	}
	if !slices.ContainsFunc(msg.GetResources(), func(res *anypb.Any) bool { return losesEntries(res) != nil }) {
		if body, err := marshalJSON.Marshal(&msg); err == nil {
			return body, nil
		}
	}
	good := make([]*anypb.Any, 0, len(msg.GetResources()))
	for _, res := range msg.GetResources() {
		lost := losesEntries(res)
		err := lost
		if err == nil {
			_, err = marshalJSON.Marshal(res)
		}
		if err == nil {
			good = append(good, res)
			continue
		}
		name, why := nameOf(res), "it has no form in JSON here"
		if xdstype.Of(msg.GetTypeUrl()) != xdstype.Secret {
			why += ": " + loglines.Clip(protoText(err))
		}
		if lost == nil && xdstype.Of(msg.GetTypeUrl()).FullState { // no client has a list from JSON that it could lose
			return nil, &incompleteError{name: name, why: why}
		}
		s.options.Log.Warn("resource left out of a REST response", "type_url", msg.GetTypeUrl(), "name", name, "reason", why)
		if !service.V2 {
			msg.ResourceErrors = append(msg.ResourceErrors, &discoveryv3.ResourceError{
				ResourceName: &discoveryv3.ResourceName{Name: name},
				ErrorDetail:  &statuspb.Status{Code: int32(codes.Unimplemented), Message: why},
			})
		}
	}
	msg.Resources = good
	return marshalJSON.Marshal(&msg)
}

// incompleteError says that a response cannot be sent, because it would lack a resource. The client keeps what it has.
type incompleteError struct{ name, why string }

// Error implements error.
func (e *incompleteError) Error() string {
	return fmt.Sprintf("the response would lack %q, and so remove it from the client: %s", loglines.Clip(e.name), e.why)
}

// clusterCollection is the list collection for which the API declares only a single entry.
const clusterCollection = "type.googleapis.com/envoy.config.cluster.v3.ClusterCollection"

// losesEntries returns why JSON cannot hold all entries of a list collection; nil if it can.
func losesEntries(res *anypb.Any) error {
	var wrapped discoveryv3.Resource
	if res.MessageIs(&wrapped) && res.UnmarshalTo(&wrapped) == nil {
		res = wrapped.GetResource()
	}
	if res.GetTypeUrl() != clusterCollection {
		return nil
	}
	entries := 0
	for b := res.GetValue(); len(b) > 0; {
		field, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if field == 1 {
			entries++
		}
		b = b[n:]
	}
	if entries > 1 {
		return fmt.Errorf("it has %d entries, and the API's message has one: request it over gRPC, or its members", entries)
	}
	return nil
}

// nameOf returns the name of a resource of any type.
func nameOf(res *anypb.Any) string {
	var wrapped discoveryv3.Resource
	if res.MessageIs(&wrapped) && res.UnmarshalTo(&wrapped) == nil {
		return cmp.Or(wrapped.GetName(), wrapped.GetResourceName().GetName())
	}
	name, _ := wire.InnerName(res.GetValue())
	return name
}

// protoText is the text of an error of the protobuf library without its prefix, which may end in a non-breaking space.
func protoText(err error) string {
	return strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
}
