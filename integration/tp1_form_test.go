package integration

// TP1's examples as TP1 prints them: responses in YAML. The control plane sends them, and the tests compare
// them with what clients receive. TP1 does not print payloads, so a text stands for each.

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

// The types of TP1's examples of listeners, with an s that no API has. The relay does not know these types,
// and has to pass the resources on unchanged.
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

// body is the content of a resource: a payload, a list, or a redirect.
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

// resources returns the resources of a DeltaDiscoveryResponse as TP1 prints it.
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

// encode returns the content of a resource, with its name inside if its type has a name.
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

// shapeOf returns an empty message of a type. For a type without an API, it returns that of the most similar
// type.
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

// locator returns a name as a ResourceLocator. TP1: "Proto3 expression".
func locator(t testing.TB, url string) *xdscorev3.ResourceLocator {
	t.Helper()
	rest, ok := strings.CutPrefix(url, "xdstp://")
	parts := strings.SplitN(rest, "/", 3)
	if !ok || len(parts) < 3 || strings.ContainsAny(url, "?#%") {
		t.Fatalf("no example has a name like %s", url)
	}
	return &xdscorev3.ResourceLocator{Authority: parts[0], ResourceType: parts[1], Id: parts[2]}
}

// difference describes how a resource differs from want. It ignores the version if want has none, because TP1
// does not print one.
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
