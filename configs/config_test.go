package configs

import (
	"reflect"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// A head of a configuration in which nothing is wrong, for tests of the rest.
const head = `listeners: [{address: ":18000"}]
authorities: [{name: cp, directory: .}]
`

func mustParse(t *testing.T, yaml string) *Config {
	t.Helper()
	c, err := Parse("relay.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWhatIsLeftOutHasDefaults(t *testing.T) {
	c := mustParse(t, `
listeners: [{address: ":18000"}]
authorities: [{name: cp, servers: [{address: "cp:443"}]}]
`)
	l, s := c.Listeners[0], c.Authorities[0].Servers[0]
	for _, tt := range []struct {
		key       string
		got, want any
	}{
		{"listener protocol", l.Protocol, ListenerGRPC},
		{"listener v2", l.V2, false},
		{"listener long_poll", l.LongPoll, 30 * time.Second},
		{"listener max_request_bytes", l.MaxRequestBytes, Bytes(4 << 20)},
		{"listener max_response_bytes", l.MaxResponseBytes, Bytes(4080 << 10)},
		{"listener redirects", l.Redirects, RedirectsFollow},
		{"listener limits", l.Limits, Limits{100_000, 4 << 10, 1000, 5000, 100_000, 100, 1000, 0, 500, 100_000, 200, 10_000, 1000, 10_000_000, 0, 10_000, 0.7, 0.8}},
		{"listener keepalive", l.Keepalive, Keepalive{2 * time.Minute, 20 * time.Second}},
		{"listener windows", l.Windows, Windows{1 << 20, 1 << 20}},
		{"listener buffers", l.Buffers, Buffers{4 << 10, 32 << 10}},
		{"listener tls", l.TLS == nil, true},
		{"admin", c.Admin, Admin{Mode: 0o600, ReadyTimeout: 30 * time.Second}},
		{"node.id", c.Node.ID, hostname()},
		{"node.cluster", c.Node.Cluster, "xds-relay"},
		{"server protocol", s.Protocol, ProtocolAuto},
		{"server aggregated", s.Aggregated, true},
		{"server globs", s.Globs, true},
		{"server node", s.Node, NodeEveryRequest},
		{"server poll_interval", s.PollInterval, time.Duration(0)},
		{"server max_response_bytes", s.MaxResponseBytes, Bytes(64 << 20)},
		{"server max_request_bytes", s.MaxRequestBytes, Bytes(4032 << 10)},
		{"server probe", s.Probe, Probe{10 * time.Second, 10 * time.Second}},
		{"server keepalive", s.Keepalive, Keepalive{5 * time.Minute, 20 * time.Second}},
		{"server windows", s.Windows, Windows{1 << 20, 4 << 20}},
		{"server backoff", s.Backoff, Backoff{time.Second, 30 * time.Second}},
		{"server tls", s.TLS == nil, true},
		{"failover", c.Authorities[0].Failover, Failover{PolicyMissing, 15 * time.Second, 30 * time.Second, 5 * time.Second, false, false}},
		{"cache", c.Cache, Cache{5 * time.Minute, 10000, 100, Tombstones{10 * time.Minute, 10000}}},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.key, tt.got, tt.want)
		}
	}
}

func TestWhatIsWrittenIsKept(t *testing.T) {
	c := mustParse(t, `
listeners:
  - address: "[::1]:0"
    when_unreachable: end
    limits: {streams_per_connection: 1, scopes: 2, scopes_per_connection: 3}
    windows: {stream: 64KiB, connection: 128KiB}
    buffers: {read: 1KiB, write: 1MiB}
  - address: "[::1]:0"
    protocol: rest
    v2: true
    long_poll: 1ms
    max_request_bytes: 1024
    max_response_bytes: 2KiB
    redirects: pass
    limits: {subscriptions: 1, name_bytes: 2KiB, requests_per_second: 3, request_burst: 4, streams: 5}
    keepalive: {time: 1m30s, timeout: 500ms}
    tls: {cert_file: a.pem, key_file: b.pem, client_ca_file: c.pem}
admin: {address: "localhost:19000"}
authorities:
  - name: Cloud.example.com:8443
    servers:
      - address: cp:443
        protocol: sotw
        aggregated: false
        node: first_request
        max_request_bytes: 1MiB
        max_response_bytes: 1GiB
        keepalive: {time: 10s}
        probe: {after: 3s, timeout: 4s}
        windows: {stream: 64KiB}
        backoff: {max: 1s}
        tls: {}
  - name: "*.example.com"
    servers:
      - address: cp:443
        globs: false
        tls: {ca_file: a, cert_file: b, key_file: c, server_name: d}
      - address: cp:444
        protocol: rest
    failover: {policy: unreachable, timeout: 1s, grace: 2s, hysteresis: 3s, not_found: true, shared_versions: true}
    guard: {ratio: 1, least: 3, when: always, hold: 1h}
    check: refuse
  - name: ""
    directory: files
    guard: off
    check: off
    load_reports: off
old_style_names:
  - when: type_url == ""
    authority: some.example.com
    partition: node.id
  - authority: ""
cache: {linger: 1ms, idle_entries: 1, idle_scopes: 3, tombstones: {ttl: 1h, limit: 2}}
`)
	want := []Listener{{
		Address: "[::1]:0", Mode: 0o660, Protocol: ListenerGRPC, LongPoll: 30 * time.Second, MaxRequestBytes: 4 << 20, MaxResponseBytes: 4080 << 10, Redirects: RedirectsFollow, WhenUnreachable: UnreachableEnd, Secrets: SecretsAuthenticated,
		Limits: Limits{100_000, 4 << 10, 1000, 5000, 100_000, 2, 3, 1, 500, 100_000, 200, 10_000, 1000, 10_000_000, 0, 10_000, 0.7, 0.8}, Keepalive: Keepalive{2 * time.Minute, 20 * time.Second},
		Windows: Windows{64 << 10, 128 << 10}, Buffers: Buffers{1 << 10, 1 << 20},
		Admission: Admission{Burst: 1000, Wait: 10 * time.Second, Memory: 0.9},
	}, {
		Address: "[::1]:0", Mode: 0o660, Protocol: ListenerREST, V2: true, LongPoll: time.Millisecond, MaxRequestBytes: 1024, MaxResponseBytes: 2048, Redirects: RedirectsPass, Secrets: SecretsAuthenticated, Limits: Limits{1, 2 << 10, 3, 4, 5, 100, 0, 0, 0, 100_000, 200, 10_000, 1000, 10_000_000, 0, 10_000, 0.7, 0.8}, Keepalive: Keepalive{90 * time.Second, 500 * time.Millisecond},
		TLS: &ListenerTLS{CertFile: "a.pem", KeyFile: "b.pem", ClientCAFile: "c.pem", ClientCertificates: ClientCertificatesRequire, EndStreamsAtExpiry: true, MinVersion: TLS12},
	}}
	if !reflect.DeepEqual(c.Listeners, want) {
		t.Errorf("listeners: got %+v, want %+v", c.Listeners, want)
	}
	if c.Admin.Address != "localhost:19000" {
		t.Errorf("admin: got %+v", c.Admin)
	}
	failover := Failover{Policy: PolicyMissing, Timeout: 15 * time.Second, Grace: 30 * time.Second, Hysteresis: 5 * time.Second}
	guard := Guard{Ratio: 0.5, Least: 10, When: GuardReconnect, Hold: 10 * time.Minute}
	off := guard
	off.off = true
	wantAuthorities := []Authority{
		{Name: "Cloud.example.com:8443", Servers: []Server{{
			Address: "cp:443", Protocol: ProtocolSotW, MaxRequestBytes: 1 << 20, MaxResponseBytes: 1 << 30,
			Aggregated: false, Node: NodeFirstRequest, SotWAnswers: SotWAnswersAuto,
			Keepalive: Keepalive{10 * time.Second, 20 * time.Second}, Probe: Probe{3 * time.Second, 4 * time.Second}, Windows: Windows{64 << 10, 4 << 20}, Backoff: Backoff{time.Second, time.Second},
			TLS: &ServerTLS{MinVersion: TLS12},
		}}, Failover: failover, Guard: guard, Check: CheckWarn, LoadReports: LoadReportsOn},
		{Name: "*.example.com", Servers: []Server{{
			Address: "cp:443", Protocol: ProtocolAuto, MaxRequestBytes: 4032 << 10, MaxResponseBytes: 64 << 20,
			Aggregated: true, Globs: false, Node: NodeEveryRequest, SotWAnswers: SotWAnswersAuto,
			Keepalive: Keepalive{5 * time.Minute, 20 * time.Second}, Probe: Probe{10 * time.Second, 10 * time.Second}, Windows: Windows{1 << 20, 4 << 20}, Backoff: Backoff{time.Second, 30 * time.Second},
			TLS: &ServerTLS{CAFile: "a", CertFile: "b", KeyFile: "c", ServerName: "d", MinVersion: TLS12},
		}, {
			Address: "cp:444", Protocol: ProtocolREST, MaxRequestBytes: 4032 << 10, MaxResponseBytes: 64 << 20,
			PollInterval: 5 * time.Second, RequestTimeout: time.Minute,
			Keepalive: Keepalive{5 * time.Minute, 20 * time.Second}, Probe: Probe{10 * time.Second, 10 * time.Second}, Backoff: Backoff{time.Second, 30 * time.Second},
		}}, Failover: Failover{PolicyUnreachable, time.Second, 2 * time.Second, 3 * time.Second, true, true}, Guard: Guard{Ratio: 1, Least: 3, When: GuardAlways, Hold: time.Hour}, Check: CheckRefuse, LoadReports: LoadReportsOn},
		{Name: "", Directory: "files", Failover: failover, Guard: off, Check: CheckOff, LoadReports: LoadReportsOff},
	}
	if !reflect.DeepEqual(c.Authorities, wantAuthorities) {
		t.Errorf("authorities: got %+v, want %+v", c.Authorities, wantAuthorities)
	}
	if a := c.Authorities; a[0].Guard.Off() || !a[2].Guard.Off() {
		t.Errorf("guards are off: %t, %t", a[0].Guard.Off(), a[2].Guard.Off())
	}
	if r := c.OldStyleNames[0]; r.When != `type_url == ""` || r.Authority != "some.example.com" || r.Partition != "node.id" {
		t.Errorf("old_style_names[0]: got %+v", r)
	}
	if want := (Cache{time.Millisecond, 1, 3, Tombstones{time.Hour, 2}}); c.Cache != want {
		t.Errorf("cache: got %+v, want %+v", c.Cache, want)
	}
}

func TestServersThatArePolledHaveDefaultsOfTheirOwn(t *testing.T) {
	c := mustParse(t, `
listeners: [{address: ":18000"}]
authorities:
  - {name: a, servers: [{address: "cp:80", protocol: rest}]}
  - {name: b, servers: [{address: "cp:80", protocol: rest, poll_interval: 100ms, request_timeout: 5m, aggregated: false}]}
`)
	if s := c.Authorities[0].Servers[0]; s.Aggregated || s.Globs || s.PollInterval != 5*time.Second || s.RequestTimeout != time.Minute {
		t.Errorf("got %+v", s)
	}
	if s := c.Authorities[1].Servers[0]; s.Aggregated || s.PollInterval != 100*time.Millisecond || s.RequestTimeout != 5*time.Minute {
		t.Errorf("got %+v", s)
	}
}

func TestNodeGoesOnTheWireAsWritten(t *testing.T) {
	c := mustParse(t, head+`
node:
  id: relay-1
  cluster: Relays
  locality: {region: r, zone: z, sub_zone: s}
  metadata:
    CamelCase: {Inner.Key: [1, 2.5, true, null, 2020-01-01, "x"]}
    camelcase: other
`)
	metadata, err := structpb.NewStruct(map[string]any{
		"CamelCase": map[string]any{"Inner.Key": []any{1, 2.5, true, nil, "2020-01-01", "x"}},
		"camelcase": "other",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &corev3.Node{
		Id: "relay-1", Cluster: "Relays",
		Locality: &corev3.Locality{Region: "r", Zone: "z", SubZone: "s"},
		Metadata: metadata,
	}
	if got := c.Node.Proto(); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := mustParse(t, head+"node: {id: a}").Node.Proto(), (&corev3.Node{Id: "a", Cluster: "xds-relay"}); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestBytesPrintAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]string{"1": "1", "1023": "1023", "1024": "1KiB", "4MiB": "4MiB", "5 KiB": "5KiB", "2147483647": "2147483647"} {
		var b Bytes
		if err := b.UnmarshalText([]byte(text)); err != nil || b.String() != want {
			t.Errorf("%s: got %s, %v, want %s", text, b, err, want)
		}
	}
}
