package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"github.com/xds-relay/xds-relay/configs"
)

// envoyBootstrap decodes a bootstrap for Envoy, and checks it and the messages in it by Envoy's
// own rules.
func envoyBootstrap(t *testing.T, text string) *bootstrapv3.Bootstrap {
	t.Helper()
	asJSON, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	b := new(bootstrapv3.Bootstrap)
	if err := protojson.Unmarshal(asJSON, b); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	validate(t, b)
	return b
}

func validate(t *testing.T, m proto.Message) {
	t.Helper()
	if err := m.(interface{ ValidateAll() error }).ValidateAll(); err != nil {
		t.Errorf("%T: %v", m, err)
	}
	err := protorange.Range(m.ProtoReflect(), func(values protopath.Values) error {
		value, ok := values.Index(-1).Value.Interface().(protoreflect.Message)
		if !ok {
			return nil
		}
		packed, ok := value.Interface().(*anypb.Any)
		if !ok {
			return nil
		}
		inner, err := packed.UnmarshalNew()
		if err == nil {
			validate(t, inner)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// checkRetries checks that an Envoy that has lost its streams does not wait for long. Envoy has no setting for that with
// google_grpc.
func checkRetries(t *testing.T, b *bootstrapv3.Bootstrap) {
	t.Helper()
	sources := []*corev3.ApiConfigSource{b.GetDynamicResources().GetAdsConfig()}
	for _, s := range b.GetConfigSources() {
		sources = append(sources, s.GetApiConfigSource())
	}
	for _, source := range sources {
		envoy := source.GetGrpcServices()[0].GetEnvoyGrpc()
		if envoy == nil {
			continue
		}
		backOff := envoy.GetRetryPolicy().GetRetryBackOff()
		if base, longest := backOff.GetBaseInterval().AsDuration(), backOff.GetMaxInterval().AsDuration(); base != 500*time.Millisecond || longest != 5*time.Second {
			t.Errorf("Envoy waits from %s to %s, want from 0.5s to 5s", base, longest)
		}
	}
}

func TestBootstrapsOfAllExamplesAreValid(t *testing.T) {
	paths, err := filepath.Glob("../../configs/examples/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range append(paths, "") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			args := []string{"bootstrap", "--server", "relay.example.com:18000", "--node-id", "n1"}
			if path != "" {
				args = append(args, "--config", path)
			}
			stdout, stderr, status := runCommand(t, append(args, "--for", "envoy")...)
			if status != 0 {
				t.Fatalf("status %d: %s", status, stderr)
			}
			b := envoyBootstrap(t, stdout)
			if ads := b.GetDynamicResources().GetAdsConfig(); ads.GetApiType() != corev3.ApiConfigSource_DELTA_GRPC || b.GetNode().GetId() != "n1" {
				t.Errorf("not by delta ADS, or not as n1:\n%s", stdout)
			}
			checkRetries(t, b)
			if len(b.GetConfigSources()) > 0 || b.GetLayeredRuntime() != nil {
				t.Errorf("Envoy opens a second stream, which stays empty:\n%s", stdout)
			}
			if stdout, stderr, status = runCommand(t, append(args, "--for", "grpc")...); status != 0 {
				t.Fatalf("status %d: %s", status, stderr)
			}
			if _, err := xds.NewXDSResolverWithConfigForTesting([]byte(stdout)); err != nil {
				t.Errorf("%v\n%s", err, stdout)
			}
			var credentials struct {
				Servers []struct {
					Channel []struct{ Type string } `json:"channel_creds"`
					Call    []struct{ Type string } `json:"call_creds"`
				} `json:"xds_servers"`
			}
			if err := json.Unmarshal([]byte(stdout), &credentials); err != nil {
				t.Fatal(err)
			}
			if path == "" {
				return // the demo
			}
			cfg, err := configs.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			first := slices.IndexFunc(cfg.Listeners, func(l configs.Listener) bool { return l.Protocol == configs.ListenerGRPC })
			listener, server := cfg.Listeners[first], credentials.Servers[0]
			if secure := listener.TLS != nil; server.Channel[0].Type == "tls" != secure {
				t.Errorf("the listener has TLS: %t; the bootstrap has %s", secure, server.Channel[0].Type)
			}
			if token := listener.JWT != nil && listener.JWT.Required; len(server.Call) == 1 != token {
				t.Errorf("the listener requires a token: %t; the bootstrap has %v", token, server.Call)
			}
		})
	}
}

const bootstrapConfig = `
listeners:
  - address: 127.0.0.1:18001
    protocol: rest
  - address: 127.0.0.1:18000
  - address: unix:/run/xds-relay/xds.sock
  - address: 0.0.0.0:18002
    tls: {cert_file: cert.pem, key_file: key.pem, client_ca_file: ca.pem}
  - address: 0.0.0.0:18003
    tls: {cert_file: cert.pem, key_file: key.pem}
    jwt: {issuer: i, audiences: [a], jwks_file: jwks.json, required: true}
  - address: 0.0.0.0:18004
    tls: {spiffe: {workload_api: "unix:///run/spire/agent.sock"}}
  - address: 127.0.0.1:0
authorities:
  - {name: cloud.example.com, servers: [{address: "cp:443"}]}
  - {name: "*.tenants.example.com", servers: [{address: "cp:443"}]}
`

const oldStyleConfig = `
listeners:
  - address: 127.0.0.1:18000
  - address: 127.0.0.1:18001
    jwt: {issuer: i, audiences: [a], jwks_file: jwks.json, required: true}
authorities: [{name: cp, servers: [{address: "cp:443"}]}]
old_style_names: [{authority: cp}]
`

// What the command cannot know it says on stderr.
func TestBootstrapsWarnOfWhatTheyAssume(t *testing.T) {
	inFolder(t, map[string]string{"relay.yaml": bootstrapConfig, "old.yaml": oldStyleConfig})
	for args, want := range map[string]string{
		"--for grpc --config old.yaml":                                                 "the Node id is ",
		"--for envoy --config old.yaml":                                                "--service-node",
		"--for envoy --config old.yaml --node-id n":                                    "listeners[0] is on the loopback of its host",
		"--for envoy --config relay.yaml --listener 3 --node-id n":                     "listeners[3] is every interface of its host",
		"--for envoy --config relay.yaml --listener 3 -s relay:1":                      "Envoy reads its certificate once",
		"--for envoy --config relay.yaml --listener 4 -s relay:1":                      "listeners[4] requires a token",
		"--for envoy --config relay.yaml --listener 4 -s relay:2":                      "--ca-file sets another",
		"--for envoy --config relay.yaml --listener 5 -s relay:1":                      "--server-id sets the relay's SPIFFE ID",
		"--for envoy --config relay.yaml --listener 4 -s relay:1 --plaintext":          "requires a certificate or a token, and the bootstrap has none",
		"--for grpc --config relay.yaml --listener 4 -s relay:1":                       "GRPC_EXPERIMENTAL_XDS_BOOTSTRAP_CALL_CREDS",
		"--for grpc --config relay.yaml --listener 5 -s relay:1 --spiffe-bundle-map b": "GRPC_EXPERIMENTAL_XDS_MTLS_SPIFFE",
		"--for grpc --config relay.yaml --listener 3 -s unix:/run/x.sock":              "gRPC verifies the name localhost",
		"--for envoy --config relay.yaml -s relay:1":                                   "the bootstrap requests the globs of cloud.example.com",
	} {
		if _, stderr, status := runCommand(t, append([]string{"bootstrap"}, strings.Fields(args)...)...); status != 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, want %q in\n%s", args, status, want, stderr)
		}
	}
	if _, stderr, status := runCommand(t, strings.Fields("bootstrap --for envoy --config old.yaml -s relay:1 --node-id n")...); status != 0 || stderr != "" {
		t.Errorf("with all flags: status %d\n%s", status, stderr)
	}
}

func TestBootstrapsSayWhatTheListenerWants(t *testing.T) {
	inFolder(t, map[string]string{
		"relay.yaml": bootstrapConfig, "old.yaml": oldStyleConfig, "bad.yaml": "listeners: []\n",
		"patterns.yaml": "listeners: [{address: ':1'}]\nauthorities: [{name: '*.example.com', servers: [{address: 'cp:1'}]}]\n",
	})
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		rule   string
		args   string
		want   []string // in stdout, or in stderr with a status
		status int
	}{
		{"the first listener of gRPC", "--for grpc --config relay.yaml", []string{`"server_uri": "127.0.0.1:18000"`, `"type": "insecure"`, `"resource_timer_is_transient_error"`}, 0},
		{"exact authorities, and no patterns", "--for grpc --config relay.yaml", []string{`"cloud.example.com": {`, `"xdstp://cloud.example.com/envoy.config.listener.v3.Listener/%s"`}, 0},
		{"an authority that a pattern covers", "--for envoy --config relay.yaml --xdstp --authority red.tenants.example.com", []string{"- name: cloud.example.com\n  - name: red.tenants.example.com"}, 0},
		{"a second stream for xdstp names, and the flag that it needs", "--for envoy --config relay.yaml --xdstp", []string{"api_type: AGGREGATED_DELTA_GRPC", "envoy.reloadable_features.xdstp_based_config_singleton_subscriptions: true", "admin_layer: {}"}, 0},
		{"without old-style names, the one authority is the default", "--for grpc --config relay.yaml", []string{`"client_default_listener_resource_name_template": "xdstp://cloud.example.com/`}, 0},
		{"a unix socket", "--for envoy --config relay.yaml --listener 2", []string{"pipe:\n                path: /run/xds-relay/xds.sock", "type: STATIC"}, 0},
		{"every interface is the host's name", "--for envoy --config relay.yaml --listener 3", []string{"address: " + host, "port_value: 18002", "filename: /etc/xds/client-key.pem"}, 0},
		{"a token goes by Google gRPC", "--for envoy --config relay.yaml --listener 4 --server relay:1", []string{"target_uri: dns:///relay:1", "filename: /var/run/secrets/tokens/xds-relay", "header_prefix: 'Bearer '"}, 0},
		{"several addresses with a token", "--for envoy --config relay.yaml --listener 4 -s 10.0.0.1:1 -s 10.0.0.2:1 --server-name relay", []string{"target_uri: ipv4:10.0.0.1:1,10.0.0.2:1", "grpc.ssl_target_name_override:\n              string_value: relay"}, 0},
		{"without old-style names, an Envoy requests the globs of the one authority", "--for envoy --config relay.yaml", []string{"lds_resources_locator: xdstp://cloud.example.com/envoy.config.listener.v3.Listener/*", "cds_resources_locator: xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/*"}, 0},
		{"and a gRPC server the Listener there", "--for grpc --config relay.yaml", []string{`"server_listener_resource_name_template": "xdstp://cloud.example.com/envoy.config.listener.v3.Listener/grpc/server/%s"`}, 0},
		{"with old-style names, neither", "--for grpc --config old.yaml", []string{`"server_listener_resource_name_template": "grpc/server?xds.resource.listening_address=%s"`}, 0},
		{"TLS over a unix socket", "--for envoy --config relay.yaml --listener 4 --server unix:/run/x.sock --server-name relay --token-file t", []string{"target_uri: unix:/run/x.sock", "string_value: relay"}, 0},
		{"a unix socket and an address", "--for envoy --config relay.yaml --listener 3 -s unix:/run/x.sock -s 10.0.0.1:1", []string{"- matcher:\n                exact: 10.0.0.1\n              san_type: IP_ADDRESS\n"}, 0},
		{"two names are asked for each by itself", "--for envoy --config relay.yaml --listener 3 -s a.example.com:1 -s b.example.com:1", []string{"auto_host_sni: true", "hostname: b.example.com"}, 0},
		{"an agent gives the certificate", "--for envoy --config relay.yaml --listener 5 --server relay:1 --server-id spiffe://example.org/relay", []string{"path: /run/spire/agent.sock", "exact: spiffe://example.org/relay", "san_type: URI"}, 0},
		{"gRPC has files and no agent", "--for grpc --config relay.yaml --listener 5 --server relay:1 --ca-file ca.pem", []string{`"certificate_file": "/etc/xds/client.pem"`, `"file_watcher"`}, 0},
		{"two relays, for Envoy", "--for envoy --config relay.yaml -s a.example.com:1 -s b.example.com:1", []string{"priority: 1", "grpc_health_check: {}", "type: STRICT_DNS"}, 0},
		{"two relays, for gRPC", "--for grpc --config relay.yaml -s a.example.com:1 -s b.example.com:1", []string{`"server_uri": "a.example.com:1"`, `"server_uri": "b.example.com:1"`}, 0},
		{"the host is verified", "--for envoy --config relay.yaml -s relay.example.com:1 --ca-file ca.pem", []string{"exact: relay.example.com", "san_type: DNS", "sni: relay.example.com"}, 0},
		{"an IP address is verified", "--for envoy --config relay.yaml -s 10.0.0.1:1 --ca-file ca.pem", []string{"exact: 10.0.0.1", "san_type: IP_ADDRESS"}, 0},
		{"without authorities", "--for envoy --config relay.yaml --no-xdstp", []string{"dynamic_resources:"}, 0},

		{"an authority without a second stream", "--for envoy --config relay.yaml --authority red.tenants.example.com", []string{"--authority has no effect on an Envoy without --xdstp"}, statusUsage},
		{"a second stream without authorities", "--for envoy --config patterns.yaml -s relay:1 --xdstp", []string{"there is no authority for config_sources (want --authority"}, statusUsage},
		{"xdstp and none", "--for envoy --xdstp --no-xdstp", []string{"--xdstp and --no-xdstp contradict each other"}, statusUsage},
		{"a second stream of gRPC", "--for grpc --xdstp", []string{"--xdstp is not for grpc"}, statusUsage},
		{"whom for", "", []string{"--for is missing (want envoy or grpc)"}, statusUsage},
		{"no such client", "--for nginx", []string{"--for nginx: want envoy or grpc"}, statusUsage},
		{"a configuration with errors", "--for grpc --config bad.yaml", []string{"bad.yaml:1:"}, statusNotAll},
		{"no configuration there", "--for grpc --config none.yaml", []string{"none.yaml"}, statusFailed},
		{"a port that the system chooses", "--for grpc --config relay.yaml --listener 6", []string{"--server is missing: listeners[6] has no fixed port"}, statusUsage},
		{"REST has no bootstrap", "--for envoy --config relay.yaml --listener 0", []string{"--listener 0: listeners[0] has protocol rest (want one with grpc)"}, statusUsage},
		{"no such listener", "--for envoy --config relay.yaml --listener 7", []string{"--listener 7: the configuration has 7 listeners, from 0"}, statusUsage},
		{"no address", "--for envoy --server relay", []string{`--server "relay": want HOST:PORT`}, statusUsage},
		{"an address of no host", "--for envoy --server 0.0.0.0:18000", []string{"no client can connect to"}, statusUsage},
		{"a port that is a word", "--for envoy --server relay:https", []string{"the port is no number from 1 to 65535"}, statusUsage},
		{"TLS over a unix socket without a name", "--for envoy --config relay.yaml --listener 3 --server unix:/run/x.sock", []string{"TLS over a unix socket: no host says which name"}, statusUsage},
		{"a token and several addresses without a name", "--for envoy --config relay.yaml --listener 4 -s 10.0.0.1:1 -s 10.0.0.2:1", []string{"want --server-name"}, statusUsage},
		{"a token to a listener in plaintext", "--for grpc --config old.yaml --listener 1", []string{"a token needs TLS"}, statusUsage},
		{"no agent", "--for envoy --workload-api tcp://relay:1", []string{"--workload-api:"}, statusUsage},
		{"a listener before the first", "--for envoy --config relay.yaml --listener -1", []string{"--listener -1: the configuration has 7 listeners"}, statusUsage},
		{"no port", "--for envoy --server relay:99999", []string{"the port is no number from 1 to 65535"}, statusUsage},
		{"an authority that is not configured", "--for grpc --config relay.yaml --authority example.org", []string{"--authority example.org: no entry of authorities matches it"}, statusUsage},
		{"half a certificate", "--for envoy --cert-file c.pem", []string{"--cert-file and --key-file go together"}, statusUsage},
		{"an option of Envoy", "--for grpc --server-name relay", []string{"--server-name is not for grpc"}, statusUsage},
		{"an option of gRPC", "--for envoy --server-feature x", []string{"--server-feature is not for envoy"}, statusUsage},
		{"gRPC reads JSON", "--for grpc -o yaml", []string{"gRPC reads its bootstrap as JSON"}, statusUsage},
		{"two names with a token", "--for envoy --config relay.yaml --listener 4 -s a.example.com:1 -s b.example.com:1 --server-name relay", []string{"with a token, Envoy takes one host name"}, statusUsage},
		{"a token in the clear", "--for envoy --plaintext --token-file t", []string{"--plaintext does not go with files"}, statusUsage},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			stdout, stderr, status := runCommand(t, append([]string{"bootstrap"}, strings.Fields(tt.args)...)...)
			text := stdout
			if tt.status != 0 {
				text = stderr
			}
			missing := slices.IndexFunc(tt.want, func(part string) bool { return !strings.Contains(text, part) })
			if status != tt.status || missing >= 0 {
				t.Fatalf("status %d (want %d), want %q in\n%s\n%s", status, tt.status, fmt.Sprint(tt.want), stdout, stderr)
			}
			if status == 0 && strings.Contains(tt.args, "envoy") {
				b := envoyBootstrap(t, stdout)
				checkRetries(t, b)
				if second := strings.Contains(tt.args, "--xdstp"); (len(b.GetConfigSources()) > 0) != second {
					t.Errorf("config_sources: %v", b.GetConfigSources())
				}
			}
		})
	}
}
