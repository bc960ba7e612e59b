package typeurl

import "testing"

func TestTypesWithoutNames(t *testing.T) {
	for url, want := range map[string]bool{
		"type.googleapis.com/istio.networking.nds.v1.NameTable":   true,
		"type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig":     true,
		"type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap": true,
		ClusterV3:                             false,
		"type.googleapis.com/example.Unheard": false,
	} {
		if Nameless(url) != want {
			t.Errorf("Nameless(%q) is %t", url, !want)
		}
	}
}

func TestFieldOneIsANameOnlyIfItIsText(t *testing.T) {
	for field, want := range map[string]bool{
		"a":                             true,
		"outbound|80||x.example":        true,
		"xdstp://a/b/c?x=y":             true,
		"Grüße":                         true,
		"":                              false,
		"\xff":                          false,
		"\x0a\x01a\x12\x00":             false, // the entry of a map
		"a\nb":                          false,
		"\u0085":                        false, // a control character of two bytes
		"tab\tular":                     false,
		"\x7f":                          false,
		"with space, and \" and \\ too": true,
	} {
		if IsName([]byte(field)) != want {
			t.Errorf("IsName(%q) is %t", field, !want)
		}
	}
}
