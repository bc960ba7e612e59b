package upstream

import (
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

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
		{"api.v2.Cluster", Auto, ""},
		{"unheard.Of", Auto, ""},
	} {
		var got []string
		for _, f := range serviceForms(xdstype.Prefix+"envoy."+tt.typ, tt.protocol) {
			got = append(got, string(f.name), f.method[strings.LastIndexByte(f.method, '/')+1:])
			if f.typeURL != xdstype.Prefix+"envoy."+tt.typ {
				t.Errorf("%s: the type is %s", tt.typ, f.typeURL)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s by %s: %q, want %q", tt.typ, tt.protocol, got, tt.want)
		}
	}
}
