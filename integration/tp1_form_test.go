package integration

// TP1's examples in the form in which TP1 prints them: responses as YAML, which a
// control plane sends and which clients are held against. A payload, of which TP1
// says whose it is and nothing more, is a text.

import (
	"fmt"
	"strings"
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// The types of TP1's examples of listeners, with an s that no API has: nobody knows
// them, and the relay has to pass them on as they are.
const (
	listenersType           = "type.googleapis.com/envoy.config.listeners.v3.Listener"
	listenersCollectionType = "type.googleapis.com/envoy.config.listeners.v3.ListenerCollection"
	locatorType             = "type.googleapis.com/xds.core.v3.ResourceLocator"
)

// printed is a resource as TP1 prints it.
type printed struct {
	Version, Name string
	Resource      body
}

// body is what is in a resource: a payload, a list, or a redirect.
type body struct {
	Type    string `yaml:"@type"`
	Payload string
	Entries []struct {
		Locator string
		Inline  *struct {
			Name, Version string
			Resource      body
		} `yaml:"inline_entry"`
	}
	Locator string
}

// resources reads what TP1 prints of a DeltaDiscoveryResponse.
func resources(t testing.TB, text string) (all []*discoveryv3.Resource) {
	t.Helper()
	var r struct{ Resources []printed }
	if err := yaml.Unmarshal([]byte(text), &r); err != nil || len(r.Resources) == 0 {
		t.Fatalf("%v in\n%s", err, text)
	}
	for _, p := range r.Resources {
		all = append(all, &discoveryv3.Resource{Name: p.Name, Version: p.Version, Resource: p.Resource.encode(t, p.Name)})
	}
	return all
}

// encode makes a resource's value, which has its name inside if its type has that.
func (b body) encode(t testing.TB, name string) *anypb.Any {
	t.Helper()
	value := shapeOf(b.Type)
	switch m := value.(type) {
	case *endpointv3.ClusterLoadAssignment:
		proto.Merge(m, locality(name, lbEndpoint(b.Payload, 1)))
	case *listenerv3.Listener:
		m.Name, m.StatPrefix = name, b.Payload
	case *listenerv3.ListenerCollection:
		for _, e := range b.Entries {
			if e.Inline == nil {
				m.Entries = append(m.Entries, &xdscorev3.CollectionEntry{ResourceSpecifier: &xdscorev3.CollectionEntry_Locator{Locator: locator(t, e.Locator)}})
				continue
			}
			m.Entries = append(m.Entries, &xdscorev3.CollectionEntry{ResourceSpecifier: &xdscorev3.CollectionEntry_InlineEntry_{
				InlineEntry: &xdscorev3.CollectionEntry_InlineEntry{Name: e.Inline.Name, Version: e.Inline.Version, Resource: e.Inline.Resource.encode(t, e.Inline.Name)},
			}})
		}
	case *xdscorev3.ResourceLocator:
		proto.Merge(m, locator(t, b.Locator))
	}
	return &anypb.Any{TypeUrl: b.Type, Value: []byte(encode(value))}
}

// shapeOf is an empty message of a type, or of the one that has to do for it.
func shapeOf(typeURL string) proto.Message {
	switch typeURL {
	case endpointType:
		return &endpointv3.ClusterLoadAssignment{}
	case listenerType, listenersType:
		return &listenerv3.Listener{}
	case listenerType + "Collection", listenersCollectionType:
		return &listenerv3.ListenerCollection{}
	case locatorType:
		return &xdscorev3.ResourceLocator{}
	default:
		panic("no example has the type " + typeURL)
	}
}

// locator is a name as protobuf has it. TP1: "Proto3 expression".
func locator(t testing.TB, url string) *xdscorev3.ResourceLocator {
	t.Helper()
	rest, ok := strings.CutPrefix(url, "xdstp://")
	parts := strings.SplitN(rest, "/", 3)
	if !ok || len(parts) < 3 || strings.ContainsAny(url, "?#%") {
		t.Fatalf("%s is more than the examples have", url)
	}
	return &xdscorev3.ResourceLocator{Authority: parts[0], ResourceType: parts[1], Id: parts[2]}
}

// difference says how a resource differs from what is wanted, which may have no
// version if that is not what TP1 prints.
func difference(got, want *discoveryv3.Resource) string {
	is, err := contentOf(got)
	should, _ := contentOf(want)
	switch {
	case err != nil:
		return err.Error()
	case got.GetResource().GetTypeUrl() != want.GetResource().GetTypeUrl():
		return fmt.Sprintf("it is a %s, want %s", got.GetResource().GetTypeUrl(), want.GetResource().GetTypeUrl())
	case want.GetVersion() != "" && got.GetVersion() != want.GetVersion():
		return fmt.Sprintf("it has version %q, want %q", got.GetVersion(), want.GetVersion())
	case !proto.Equal(is, should):
		return fmt.Sprintf("it is\n%s, want\n%s", prototext.Format(is), prototext.Format(should))
	}
	return ""
}

func contentOf(r *discoveryv3.Resource) (proto.Message, error) {
	m := shapeOf(r.GetResource().GetTypeUrl())
	return m, proto.Unmarshal(r.GetResource().GetValue(), m)
}
