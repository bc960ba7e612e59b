package upstream

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/xds-relay/xds-relay/typeurl"
)

// TestServicesAreThoseOfTheAPI compares the table with what the API's own files say
// of every service that is for a type of resource.
func TestServicesAreThoseOfTheAPI(t *testing.T) {
	want := map[string]service{}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			typeName := option(s.Options(), "envoy.annotations.resource", "type")
			if typeName == "" || !strings.HasPrefix(string(file.Package()), "envoy.service.") {
				continue
			}
			of := service{typeURL: typeurl.Prefix + typeName}
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				full := "/" + string(s.FullName()) + "/" + string(m.Name())
				switch {
				case !m.IsStreamingServer():
					of.rest = option(m.Options(), "google.api.http", "post")
				case m.Input().Name() == "DeltaDiscoveryRequest":
					of.delta = full
				default:
					of.sotw = full
				}
			}
			want[of.typeURL] = of
		}
		return true
	})
	if len(want) == 0 {
		t.Fatal("the API has no services")
	}
	for _, s := range services {
		if s != want[s.typeURL] {
			t.Errorf("the table has\n%+v, the API\n%+v", s, want[s.typeURL])
		}
		delete(want, s.typeURL)
	}
	for typeURL := range want {
		t.Errorf("%s is missing", typeURL)
	}
}

// option returns a field of an option, empty if there is none.
func option(of proto.Message, name protoreflect.FullName, field protoreflect.Name) (value string) {
	of.ProtoReflect().Range(func(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if d.FullName() == name {
			value = v.Message().Get(v.Message().Descriptor().Fields().ByName(field)).String()
		}
		return true
	})
	return value
}

func TestFormsOfATypeOfItsOwn(t *testing.T) {
	for _, tt := range []struct {
		typ      string
		protocol Protocol
		want     string
	}{
		{"config.cluster.v3.Cluster", Auto, "delta DeltaClusters sotw StreamClusters"},
		{"config.cluster.v3.Cluster", "", "delta DeltaClusters sotw StreamClusters"},
		{"config.cluster.v3.Cluster", Delta, "delta DeltaClusters"},
		{"config.cluster.v3.Cluster", SotW, "sotw StreamClusters"},
		{"config.cluster.v3.Cluster", REST, "rest discovery:clusters"},
		{"config.route.v3.VirtualHost", Auto, "delta DeltaVirtualHosts"},
		{"config.route.v3.VirtualHost", SotW, ""},
		{"config.route.v3.VirtualHost", REST, ""},
		{"unheard.Of", Auto, ""},
	} {
		var got []string
		for _, f := range serviceForms(typeurl.Prefix+"envoy."+tt.typ, tt.protocol) {
			got = append(got, string(f.name), f.method[strings.LastIndexByte(f.method, '/')+1:])
			if f.typeURL != typeurl.Prefix+"envoy."+tt.typ {
				t.Errorf("%s: the type is %s", tt.typ, f.typeURL)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s by %s: %q, want %q", tt.typ, tt.protocol, got, tt.want)
		}
	}
}
