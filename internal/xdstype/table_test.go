package xdstype

import (
	"slices"
	"strings"
	"testing"

	_ "github.com/envoyproxy/go-control-plane/envoy/api/v2"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v2"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// annotatedType returns the type with which the API annotates a service, empty if there is no
// annotation, as for most services of version 2.
func annotatedType(service protoreflect.ServiceDescriptor) (typeURL string) {
	service.Options().ProtoReflect().Range(func(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if d.FullName() == "envoy.annotations.resource" {
			typeURL = Prefix + v.Message().Get(v.Message().Descriptor().Fields().ByName("type")).String()
		}
		return true
	})
	return typeURL
}

// described returns a service as the API's own files describe it.
func described(service protoreflect.ServiceDescriptor) Service {
	is := Service{Name: string(service.FullName())}
	for i := range service.Methods().Len() {
		m := service.Methods().Get(i)
		switch name := string(m.Name()); {
		case strings.HasPrefix(name, "Stream"):
			is.Stream = name
		case strings.HasPrefix(name, "Delta"):
			is.Delta = name
		case strings.HasPrefix(name, "Fetch"):
			is.Fetch = name
		}
		if rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule); rule != nil {
			is.Path = rule.GetPost()
		}
	}
	return is
}

func TestServicesAreThoseOfTheAPI(t *testing.T) {
	listed := map[string]*Service{}
	for _, ofV2 := range []bool{false, true} {
		for _, s := range Services(ofV2) {
			listed[s.Name] = s
			if s.V2 != ofV2 {
				t.Errorf("%s: V2 is %t", s.Name, s.V2)
			}
			if s.TypeURL == "" {
				continue
			}
			if _, err := protoregistry.GlobalTypes.FindMessageByURL(s.TypeURL); err != nil {
				t.Errorf("%s: %s: %v", s.Name, s.TypeURL, err)
			}
		}
	}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			typeURL, name := annotatedType(service), string(service.FullName())
			if typeURL == "" && !strings.HasSuffix(name, "DiscoveryService") || name == "envoy.service.discovery.v2.HealthDiscoveryService" {
				continue
			}
			s := listed[name]
			if s == nil {
				t.Errorf("%s is not in the table", name)
				continue
			}
			delete(listed, name)
			want := described(service)
			if want.TypeURL, want.V2 = typeURL, s.V2; typeURL == "" {
				want.TypeURL = s.TypeURL
			}
			if *s != want {
				t.Errorf("the table has\n%+v, the API\n%+v", *s, want)
			}
		}
		return true
	})
	for name := range listed {
		t.Errorf("the API has no %s", name)
	}
}

func TestATypeIsItselfInEveryVersionOfTheAPI(t *testing.T) {
	for _, typ := range All() {
		for _, s := range []*Service{typ.V3, typ.V2} {
			if s == nil {
				continue
			}
			if Of(s.TypeURL) != typ || typ.Service(s.TypeURL) != s {
				t.Errorf("%s is of %+v, its service %+v", s.TypeURL, Of(s.TypeURL), typ.Service(s.TypeURL))
			}
		}
		if Of(typ.url) != typ {
			t.Errorf("%q is not in the table", typ.url)
		}
	}
	for _, url := range []string{Prefix + "example.Widget", "envoy.config.cluster.v3.Cluster", "", Wrapper, Locator} {
		if Of(url) != Other || Of(url).Service(url) != nil {
			t.Errorf("%q is of %+v, want none that is known", url, Of(url))
		}
	}
}

// xDS: "Eventual consistency considerations", "Grouping Resources into Responses".
func TestRulesOfTypes(t *testing.T) {
	order := []string{"cluster", "endpoint", "listener", "route", "scoped-route", "virtual-host"}
	for i, word := range order {
		if got := withWord(word).Order; int(got) != i {
			t.Errorf("%s has place %d, want %d", word, got, i)
		}
	}
	for _, typ := range append(All(), Other) {
		if int(typ.Order) < len(order) && order[typ.Order] != typ.Word || int(typ.Order) > len(order) {
			t.Errorf("%s has place %d, which is not its own", typ.url, typ.Order)
		}
		if full := typ.Word == "listener" || typ.Word == "cluster"; typ.FullState != full {
			t.Errorf("%s: full state is %t", typ.Word, typ.FullState)
		}
		referenced := slices.Contains([]string{"cluster", "endpoint", "locality-endpoint", "route", "secret", "extension"}, typ.Word)
		if typ.Referenced != referenced {
			t.Errorf("%s: referenced is %t", typ.url, typ.Referenced)
		}
	}
}

func TestWhereTypesHaveTheirNames(t *testing.T) {
	for url, want := range map[string]struct {
		naming Naming
		inner  bool
	}{
		"type.googleapis.com/istio.networking.nds.v1.NameTable":   {NoName, false},
		"type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig":     {NoName, false},
		"type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap": {NoName, false},
		"type.googleapis.com/istio.workload.Address":              {NameOutside, false},
		LocalityEndpointV3:                    {NameOutside, false},
		ClusterV3:                             {NameInside, true},
		"type.googleapis.com/example.Unheard": {NameInside, true},
		"type.googleapis.com/envoy.config.listener.v3.ListenerCollection": {NameInside, false},
		Locator: {NameInside, false},
	} {
		if Of(url).Naming != want.naming || HasInnerName(url) != want.inner {
			t.Errorf("%s: naming %d, a name inside: %t; want %+v", url, Of(url).Naming, HasInnerName(url), want)
		}
	}
}

func TestWords(t *testing.T) {
	seen := map[string]bool{}
	for _, typ := range All() {
		if typ.Word == "" {
			continue
		}
		for _, word := range []string{typ.Word, typ.Abbreviation, strings.ToUpper(typ.Abbreviation), typ.V3.TypeURL, Message(typ.V3.TypeURL)} {
			if url, err := Parse(word); err != nil || url != typ.V3.TypeURL {
				t.Errorf("%q stands for %q, %v; want %s", word, url, err, typ.V3.TypeURL)
			}
		}
		if Word(typ.V3.TypeURL) != typ.Word || seen[typ.Word] || seen[typ.Abbreviation] || !strings.Contains(Words(), typ.Word+"|"+typ.Abbreviation) {
			t.Errorf("%s: the word is %q, among %s", typ.V3.TypeURL, Word(typ.V3.TypeURL), Words())
		}
		seen[typ.Word], seen[typ.Abbreviation] = true, true
	}
	if got := Word(ClusterV2); got != "envoy.api.v2.Cluster" {
		t.Errorf("version 2 of a type is %q", got)
	}
	for _, bad := range []string{"", "clusters"} {
		if url, err := Parse(bad); err == nil {
			t.Errorf("%q stands for %s", bad, url)
		}
	}
}
