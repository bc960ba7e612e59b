package relay

import (
	"testing"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/configs"
)

// The relay accepts from a control plane the names of all authorities that it serves, and no others. The protocol
// that the relay speaks with it makes no difference, but the credentials do.
func TestAControlPlaneSpeaksForTheAuthoritiesThatItServes(t *testing.T) {
	const config = `
listeners: [{address: "127.0.0.1:18000"}]
authorities:
  - {name: a, servers: [{address: "one:1"}]}
  - {name: same, servers: [{address: "one:1", protocol: sotw, keepalive: {time: 1m}}]}
  - {name: elsewhere, servers: [{address: "two:1"}]}
  - {name: secure, servers: [{address: "one:1", tls: {}}]}
  - {name: token, servers: [{address: "one:1", tls: {}, token_file: token}]}
  - {name: named, servers: [{address: "one:1", tls: {server_name: other}}]}
  - {name: both, servers: [{address: "one:1"}, {address: "two:1"}]}
  - {name: "*.example.com", servers: [{address: "one:1"}]}
  - {name: own.example.com, servers: [{address: "two:1"}]}
  - {name: files, directory: dir}
  - {name: same-files, directory: dir}
  - {name: other-files, directory: other}
`
	cfg, err := configs.Parse("relay.yaml", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	router := authority.New(cfg)
	for _, tt := range []struct {
		of, name    string
		first, list bool // its first server, and its inline entries
	}{
		{"a", "a", true, true},
		{"a", "same", true, true},
		{"same", "a", true, true},
		{"a", "elsewhere", false, false},
		{"a", "secure", false, false},
		{"secure", "a", false, false},
		{"secure", "named", false, false},
		{"secure", "token", false, false},
		{"a", "both", true, true},
		{"both", "a", true, false}, // what it gives may be of its second server
		{"both", "elsewhere", false, false},
		{"a", "x.example.com", true, true},
		{"x.example.com", "a", true, true},
		{"x.example.com", "y.example.com", true, true},
		{"x.example.com", "own.example.com", false, false},
		{"a", "unknown", false, false},
		{"unknown", "a", false, false},
		{"files", "same-files", false, true},
		{"files", "other-files", false, false},
		{"files", "a", false, false},
		{"a", "files", false, false},
	} {
		if got := (leafNames{newest: func() *generation { return &generation{router: router} }}).Speaks(tt.of, tt.name); got != tt.list {
			t.Errorf("the inline entries of %s are believed in the names of %s: %t, want %t", tt.of, tt.name, got, tt.list)
		}
		for i := range cfg.Authorities {
			a := &cfg.Authorities[i]
			if a.Name != tt.of || len(a.Servers) == 0 {
				continue
			}
			if got := speaks(router, &a.Servers[0], tt.name); got != tt.first {
				t.Errorf("the first server of %s is believed in the names of %s: %t, want %t", tt.of, tt.name, got, tt.first)
			}
		}
	}
}
