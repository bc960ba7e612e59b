package configs

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// withEnvironment parses a configuration with variables, flags and assignments.
func withEnvironment(t *testing.T, yaml string, variables map[string]string, sets ...string) (*Config, error) {
	t.Helper()
	for name, value := range variables {
		t.Setenv(name, value)
	}
	o := FromEnvironment("config")
	for _, set := range sets {
		if err := o.Set(set); err != nil {
			t.Fatal(err)
		}
	}
	return o.Parse("relay.yaml", []byte(yaml))
}

func TestFlagsGoBeforeVariablesBeforeTheFileBeforeDefaults(t *testing.T) {
	linger := func(file, variable, flag, set string) time.Duration {
		t.Helper()
		t.Setenv("XDS_RELAY_CACHE_LINGER", variable)
		o := FromEnvironment()
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.String("linger", "", "")
		if err := flags.Parse([]string{"--linger=" + flag}); err != nil {
			t.Fatal(err)
		}
		o.BindFlag("cache.linger", flags.Lookup("linger"))
		if set != "" {
			if err := o.Set("cache.linger=" + set); err != nil {
				t.Fatal(err)
			}
		}
		c, err := o.Parse("relay.yaml", []byte(head+file))
		if err != nil {
			t.Fatal(err)
		}
		return c.Cache.Linger
	}
	const file = "cache: {linger: 1s}\n"
	for _, tt := range []struct {
		file, variable, flag, set string
		want                      time.Duration
	}{
		{"", "", "", "", 5 * time.Minute},
		{file, "", "", "", time.Second},
		{file, "2s", "", "", 2 * time.Second},
		{file, "0s", "", "", 0},
		{"", "2s", "", "", 2 * time.Second},
		{file, "2s", "3s", "", 3 * time.Second},
		{file, "", "3s", "", 3 * time.Second},
		{file, "2s", "3s", "4s", 4 * time.Second},
	} {
		if got := linger(tt.file, tt.variable, tt.flag, tt.set); got != tt.want {
			t.Errorf("%+v: got %v", tt, got)
		}
	}
}

func TestOptionsAreOfTheEnvironmentOrAFlag(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.String("log-level", "info", "")
	t.Setenv("XDS_RELAY_CONFIG", "relay.yaml")
	o := FromEnvironment("config", "log_level")
	o.BindFlag("log_level", flags.Lookup("log-level"))
	if got := o.Option("config") + " " + o.Option("log_level"); got != "relay.yaml info" {
		t.Errorf("got %s", got)
	}
	t.Setenv("XDS_RELAY_LOG_LEVEL", "debug")
	o = FromEnvironment("config", "log_level")
	o.BindFlag("log_level", flags.Lookup("log-level"))
	if got := o.Option("log_level") + " " + o.Origin("log_level"); got != "debug XDS_RELAY_LOG_LEVEL" {
		t.Errorf("got %s", got)
	}
}

// TestEveryKeyWithOneValueHasAVariable sets each key of the schema to a value of its own type
// that is wrong, so that the error says that it has arrived.
func TestEveryKeyWithOneValueHasAVariable(t *testing.T) {
	paths := scalarPaths(configType, "")
	if len(paths) < 80 {
		t.Errorf("got %d keys, want more", len(paths))
	}
	for _, path := range paths {
		name := EnvPrefix + variableOf(path)
		if got, ok := pathOfVariable(variableOf(path), configType, ""); !ok || got != path {
			t.Errorf("%s is the variable of %q, want %s", name, got, path)
			continue
		}
		t.Run(path, func(t *testing.T) {
			s := newShape("relay.yaml")
			t.Setenv(name, "?")
			o := FromEnvironment()
			if len(o.errs) > 0 {
				t.Fatal(o.errs)
			}
			root, err := parseYAML("relay.yaml", nil)
			if err != nil {
				t.Fatal(err)
			}
			o.apply(root, s)
			s.walk(root, configType, "", "")
			if at := s.at[path]; at.file != name {
				t.Errorf("%s did not come to %s: %v", name, path, s.errs)
			}
		})
	}
}

func TestVariablesSetKeysOfEntriesAndAddEntries(t *testing.T) {
	c, err := withEnvironment(t, `
listeners: [{address: ":1", tls: {cert_file: a, key_file: b}}]
authorities: [{name: cp, servers: [{address: "cp:443", protocol: delta}]}]
`, map[string]string{
		"XDS_RELAY_LISTENERS_0_LIMITS_STREAMS":                "7",
		"XDS_RELAY_LISTENERS_0_LIMITS_STREAMS_PER_CONNECTION": "8",
		"XDS_RELAY_LISTENERS_0_TLS_CLIENT_CA_FILE":            "c",
		"XDS_RELAY_LISTENERS_1_ADDRESS":                       ":2",
		"XDS_RELAY_LISTENERS_1_MAX_REQUEST_BYTES":             "1MiB",
		"XDS_RELAY_AUTHORITIES_0_SERVERS_0_AGGREGATED":        "false",
		"XDS_RELAY_AUTHORITIES_0_SERVERS_0_TLS_SERVER_NAME":   "cp.example.com",
		"XDS_RELAY_AUTHORITIES_0_SERVERS_1_ADDRESS":           "cp2:443",
		"XDS_RELAY_AUTHORITIES_0_CONTEXT_PARAMETERS_DROP_0":   "a",
		"XDS_RELAY_OLD_STYLE_NAMES_0_AUTHORITY":               "cp",
		"XDS_RELAY_OLD_STYLE_NAMES_0_WHEN":                    "true",
		"XDS_RELAY_NODE_ID":                                   "1",
		"XDS_RELAY_ADMIN_ADDRESS":                             "",
		"XDS_RELAY_SERVICE_HOST":                              "10.0.0.1",
		"XDS_RELAY_SERVICE_PORT":                              "18000",
		"XDS_RELAY_SERVICE_PORT_GRPC_XDS":                     "18000",
		"XDS_RELAY_PORT":                                      "tcp://10.0.0.1:18000",
		"XDS_RELAY_PORT_18000_TCP":                            "tcp://10.0.0.1:18000",
		"XDS_RELAY_PORT_18000_TCP_ADDR":                       "10.0.0.1",
		"XDS_RELAY_ADMIN_SERVICE_PORT":                        "19000",
		"XDS_RELAY_ADMIN_PORT":                                "tcp://10.0.0.2:19000",
		"XDS_RELAY_CONFIG":                                    "relay.yaml",
	})
	if err != nil {
		t.Fatal(err)
	}
	l, s := c.Listeners, c.Authorities[0].Servers
	if len(l) != 2 || l[0].Limits.Streams != 7 || l[0].Limits.StreamsPerConnection != 8 || l[0].Limits.Scopes != 100 ||
		*l[0].TLS != (ListenerTLS{CertFile: "a", KeyFile: "b", ClientCAFile: "c", ClientCertificates: ClientCertificatesRequire, EndStreamsAtExpiry: true, MinVersion: TLS12}) || l[1].Address != ":2" || l[1].MaxRequestBytes != 1<<20 {
		t.Errorf("listeners: got %+v", l)
	}
	if len(s) != 2 || s[0].Aggregated || !s[1].Aggregated || s[0].Protocol != ProtocolDelta || s[0].TLS.ServerName != "cp.example.com" || s[1].Address != "cp2:443" {
		t.Errorf("servers: got %+v", s)
	}
	if p := c.Authorities[0].ContextParameters; p == nil || !slices.Equal(p.Drop, []string{"a"}) {
		t.Errorf("context parameters: got %+v", p)
	}
	if c.Node.ID != "1" || len(c.OldStyleNames) != 1 || c.OldStyleNames[0].When != "true" || c.Admin.Address != "" {
		t.Errorf("got %+v", c)
	}
}

func TestTheTenthEntryComesAfterTheSecond(t *testing.T) {
	variables := map[string]string{}
	for _, i := range []string{"2", "10", "0", "9", "1", "3", "8", "4", "7", "5", "6"} {
		variables["XDS_RELAY_OLD_STYLE_NAMES_0_NODE_FIELDS_"+i] = "metadata.m" + i
	}
	c, err := withEnvironment(t, head+"old_style_names: [{authority: cp}]\n", variables)
	if err != nil || strings.Join(c.OldStyleNames[0].NodeFields, " ") != "metadata.m0 metadata.m1 metadata.m2 metadata.m3 metadata.m4 metadata.m5 metadata.m6 metadata.m7 metadata.m8 metadata.m9 metadata.m10" {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestErrorsInTheEnvironmentNameTheVariable(t *testing.T) {
	for _, tt := range []struct {
		name, yaml string
		variables  map[string]string
		want       string
	}{
		{"a misspelled variable", head, map[string]string{"XDS_RELAY_CACHE_LINGR": "1m"},
			`XDS_RELAY_CACHE_LINGR: unknown variable (did you mean XDS_RELAY_CACHE_LINGER?)`},
		{"a misspelled variable of an entry", head, map[string]string{"XDS_RELAY_LISTENERS_12_ADRESS": ":1"},
			`XDS_RELAY_LISTENERS_12_ADRESS: unknown variable (did you mean XDS_RELAY_LISTENERS_12_ADDRESS?)`},
		{"an unknown variable", head, map[string]string{"XDS_RELAY_COLOUR": "red"},
			`XDS_RELAY_COLOUR: unknown variable (want XDS_RELAY_ and the path of a key that has one value, such as XDS_RELAY_LISTENERS_0_ADDRESS)`},
		{"a map", head, map[string]string{"XDS_RELAY_NODE_METADATA": "a: b"},
			`XDS_RELAY_NODE_METADATA: unknown variable (want XDS_RELAY_ and the path of a key that has one value, such as XDS_RELAY_LISTENERS_0_ADDRESS)`},
		{"a bad value", head, map[string]string{"XDS_RELAY_CACHE_LINGER": "5"},
			`XDS_RELAY_CACHE_LINGER: cache.linger: 5 has no unit (want a duration such as 5s)`},
		{"a bad value over a good one", head + "cache: {idle_entries: 1}\n", map[string]string{"XDS_RELAY_CACHE_IDLE_ENTRIES": "many"},
			`XDS_RELAY_CACHE_IDLE_ENTRIES: cache.idle_entries: "many" is text (want a whole number)`},
		{"a bad meaning", head, map[string]string{"XDS_RELAY_LISTENERS_0_ADDRESS": "localhost"},
			`XDS_RELAY_LISTENERS_0_ADDRESS: listeners[0].address: "localhost" has no port (want host:port)`},
		{"an entry that lacks something", head, map[string]string{"XDS_RELAY_LISTENERS_1_V2": "true"},
			`XDS_RELAY_LISTENERS_1_V2: listeners[1].address: missing (want host:port or unix:/path)`},
		{"an entry beyond the next", head, map[string]string{"XDS_RELAY_LISTENERS_2_ADDRESS": ":2"},
			`XDS_RELAY_LISTENERS_2_ADDRESS: listeners[2]: is beyond the end of the list (want an index up to 1, which adds an entry)`},
		{"an entry of what is no list", "listeners: {address: ':1'}\n" + authority, map[string]string{"XDS_RELAY_LISTENERS_0_ADDRESS": ":2"},
			`relay.yaml:1:12: listeners: is a map (want a list, each entry with "- " before it)`},
		{"a key of what is no map", head + "cache: [linger]\n", map[string]string{"XDS_RELAY_CACHE_LINGER": "1m"},
			`relay.yaml:3:8: cache: is a list (want a map with linger, idle_entries, idle_scopes, tombstones)`},
		{"a key of nothing", head + "cache:\n", map[string]string{"XDS_RELAY_CACHE_LINGER": "1m"},
			`relay.yaml:3:7: cache: has no value (want a map with linger, idle_entries, idle_scopes, tombstones, or no such key)`},
		{"together with those of the file", head + "cache: 5m\n", map[string]string{"XDS_RELAY_CACHE_LINGER": "1m", "XDS_RELAY_NODE_ID": strings.Repeat("x", 257)}, `
XDS_RELAY_NODE_ID: node.id: has 257 bytes (want at most 256)
relay.yaml:3:8: cache: "5m" is text (want a map with linger, idle_entries, idle_scopes, tombstones)`},
		{"a good value over a bad one", strings.Replace(head, ":18000", "localhost", 1) + "x: y\n", map[string]string{"XDS_RELAY_LISTENERS_0_ADDRESS": ":1"},
			`relay.yaml:3:1: x: unknown key (want one of listeners, admin, node, authorities, old_style_names, views, rights, descriptors, cache, store, drain, fleet)`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := withEnvironment(t, tt.yaml, tt.variables)
			if want := strings.TrimPrefix(tt.want, "\n"); err == nil || err.Error() != want {
				t.Errorf("got\n%v\nwant\n%s", err, want)
			}
		})
	}
}

func TestAssignments(t *testing.T) {
	c, err := withEnvironment(t, head, nil, "listeners[0].limits.streams=5", "node.id=a=b", "node.cluster=", "cache.tombstones.ttl=1h")
	if err == nil || err.Error() != `--set: node.cluster: is "" (want text, or no such key)` {
		t.Errorf("got %v, %v", c, err)
	}
	c, err = withEnvironment(t, head, nil, "listeners[0].limits.streams=5", "node.id=a=b", "cache.tombstones.ttl=1h")
	if err != nil || c.Listeners[0].Limits.Streams != 5 || c.Node.ID != "a=b" || c.Cache.Tombstones.TTL != time.Hour {
		t.Errorf("got %+v, %v", c, err)
	}
	for assignment, want := range map[string]string{
		"cache.linger":         `"cache.linger" has no = (want KEY=VALUE, such as cache.linger=1m)`,
		"cache.lingr=1m":       `"cache.lingr" is not the path of a key that has one value (did you mean "cache.linger"?)`,
		"cache=1m":             `"cache" is not the path of a key that has one value (want one such as listeners[0].address)`,
		"=1m":                  `"" is not the path of a key that has one value (want one such as listeners[0].address)`,
		"listeners.0.v2=true":  `"listeners.0.v2" is not the path of a key that has one value (did you mean "listeners[0].v2"?)`,
		"listeners[0]v2=true":  `"listeners[0]v2" is not the path of a key that has one value (did you mean "listeners[0].v2"?)`,
		"listeners[-1].v2=yes": `"listeners[-1].v2" is not the path of a key that has one value (did you mean "listeners[0].v2"?)`,
		"Cache.Linger=1m":      `"Cache.Linger" is not the path of a key that has one value (did you mean "cache.linger"?)`,
	} {
		if err := FromEnvironment().Set(assignment); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", assignment, err, want)
		}
	}
}

func FuzzPathsOfVariables(f *testing.F) {
	for _, path := range scalarPaths(configType, "") {
		f.Add(variableOf(path))
	}
	f.Add("LISTENERS_00_V2")
	f.Fuzz(func(t *testing.T, rest string) {
		if path, ok := pathOfVariable(rest, configType, ""); ok && variableOf(path) != rest {
			t.Errorf("%q is %s, whose variable is %q", rest, path, variableOf(path))
		}
	})
}

// FuzzOverrides: values go into any document without harm.
func FuzzOverrides(f *testing.F) {
	paths := scalarPaths(configType, "")
	for i, path := range paths {
		f.Add([]byte(head), i, "1s")
		f.Add([]byte(nested(path, "[]")), i, "1")
		f.Add([]byte(nested(path, "{}")), i, "*a")
	}
	for i, tt := range mistakes {
		f.Add([]byte(tt.yaml), i, "true")
	}
	f.Fuzz(func(t *testing.T, data []byte, i int, value string) {
		o := FromEnvironment()
		path := paths[uint(i)%uint(len(paths))]
		if err := o.Set(path + "=" + value); err != nil {
			t.Fatal(err)
		}
		c, err := o.Parse("fuzz.yaml", data)
		if (c == nil) != (err != nil) {
			t.Errorf("got %v and %v", c, err)
		}
	})
}
