package downstream

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/wire"
	"github.com/xds-relay/xds-relay/xdstype"
)

// Responses as JSON, for which alone resources are unmarshalled to be served.

// toJSON gives a response in protobuf's canonical JSON, as a message of the
// service's version of the API. The caller must not change it. It leaves out
// resources that have no form in JSON, and reports them as errors.
func (s *Server) toJSON(r *session.Response, service *xdstype.Service) ([]byte, error) {
	// Only what many clients may get is worth keeping: bytes that are shared.
	shared, private := r.Parts()
	if len(shared) != 1 || private > 0 || shared.Len() < minJSONCached {
		return s.render(r, service)
	}
	key := jsonKey{shared: &shared[0].ReadOnlyData()[0], size: shared.Len(), version: r.Version, path: service.Path}
	return s.jsonCache.entry(key, shared[0]).get(func() ([]byte, error) { return s.render(r, service) })
}

// render is toJSON's work.
func (s *Server) render(r *session.Response, service *xdstype.Service) ([]byte, error) {
	var msg discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(r.Encode().Materialize(), &msg); err != nil {
		return nil, fmt.Errorf("the response: %s", protoText(err))
	}
	if service.V2 {
		msg.ResourceErrors = nil // which v2 does not have, and JSON parsers may be strict
	}
	body, err := protojson.Marshal(&msg)
	if err == nil {
		return body, nil
	}
	good := make([]*anypb.Any, 0, len(msg.GetResources()))
	for _, res := range msg.GetResources() {
		_, err := protojson.Marshal(res)
		if err == nil {
			good = append(good, res)
			continue
		}
		name, why := nameOf(res), "it has no form in JSON here"
		if xdstype.Of(msg.GetTypeUrl()) != xdstype.Secret {
			why += ": " + loglines.Clip(protoText(err))
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
	return protojson.Marshal(&msg)
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

const (
	minJSONCached  = 1 << 10  // bytes of resources
	maxJSONCached  = 32 << 20 // of all; the newest may be larger
	mostJSONCached = 1 << 8   // entries
)

// jsonCache has what was rendered last, for the many clients that wait for the
// same and get it at the same moment.
type jsonCache struct {
	mu      sync.Mutex
	entries []*jsonEntry // the one used last at the end
	size    int          // of their resources, encoded
}

type jsonKey struct {
	shared  *byte // the resources' first: equal only for the same bytes, as it keeps them
	size    int   // of the resources, encoded
	version string
	path    string
}

type jsonEntry struct {
	key jsonKey
	// resources are what clients share as long as somebody has it.
	resources mem.Buffer
	once      sync.Once
	body      []byte
	err       error
}

func (c *jsonCache) entry(key jsonKey, resources mem.Buffer) *jsonEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := &jsonEntry{key: key, resources: resources}
	if i := slices.IndexFunc(c.entries, func(e *jsonEntry) bool { return e.key == key }); i >= 0 {
		e = c.entries[i]
		c.entries = slices.Delete(c.entries, i, i+1)
	} else {
		c.size += key.size
	}
	c.entries = append(c.entries, e)
	for (c.size > maxJSONCached || len(c.entries) > mostJSONCached) && len(c.entries) > 1 {
		c.size -= c.entries[0].key.size
		c.entries = slices.Delete(c.entries, 0, 1)
	}
	return e
}

// get renders the entry the first time.
func (e *jsonEntry) get(render func() ([]byte, error)) ([]byte, error) {
	e.once.Do(func() { e.body, e.err = render() })
	return e.body, e.err
}
