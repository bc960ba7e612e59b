package etcdtest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/relay"
)

// status returns what a relay says of its fleet.
func status(t *testing.T, r *relay.Relay) operator.FleetStatus {
	t.Helper()
	answer, err := http.Get("http://" + r.AdminAddress() + "/api/status")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var s operator.RelayStatus
	if err := json.NewDecoder(answer.Body).Decode(&s); err != nil || s.Fleet == nil {
		t.Fatalf("the status has no fleet: %v", err)
	}
	return *s.Fleet
}

// start starts a relay.
func start(t *testing.T, etcd string) *relay.Relay {
	t.Helper()
	cfg, err := configs.Parse("relay.yaml", fmt.Appendf(nil, `
listeners: [{address: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0"}
authorities: [{name: a, servers: [{address: "127.0.0.1:1"}]}]
fleet: {name: edge, listen: "127.0.0.1:0", members: {etcd: {lease: 2s, %s}}}
`, etcd))
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(cfg, relay.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := r.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.Close()
	})
	return r
}

// TestRelaysMeetInEtcd: a relay that starts without etcd works alone and says so, and joins the others when etcd is there.
// Over TLS, with certificates of both sides.
func TestRelaysMeetInEtcd(t *testing.T) {
	dir, ca := t.TempDir(), certtest.NewCA(t, "ca")
	write := func(name string, data []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	pair := ca.Issue(t, certtest.Options{DNSNames: []string{"localhost"}})
	tls := transport.TLSInfo{
		CertFile: write("cert.pem", pair.Cert), KeyFile: write("key.pem", pair.Key),
		TrustedCAFile: write("ca.pem", certtest.PEM(ca)), ClientCertAuth: true,
	}
	s := newServer(t, tls)
	keys := fmt.Sprintf(`endpoints: ["%s"], tls: {ca_file: "%s", cert_file: "%s", key_file: "%s"}`, s.endpoint(), tls.TrustedCAFile, tls.CertFile, tls.KeyFile)
	relays := []*relay.Relay{start(t, keys), start(t, keys)}
	for _, r := range relays {
		await(t, "the relay says that it is alone", func() bool {
			now := status(t, r)
			return now.Alone && now.Problem != "" && len(now.Members) == 0
		})
	}
	s.start()
	together := func(r *relay.Relay) bool {
		now := status(t, r)
		n := 0
		for _, m := range now.Members {
			if m.Reachable {
				n++
			}
		}
		return !now.Alone && n == 2
	}
	for _, r := range relays {
		await(t, "the relays know each other", func() bool { return together(r) && status(t, r).Problem == "" })
	}
	s.lose()
	for _, r := range relays {
		await(t, "the relay says that etcd is gone", func() bool { return status(t, r).Problem != "" })
		if !together(r) {
			t.Errorf("without etcd, the fleet is %+v", status(t, r))
		}
	}
}
