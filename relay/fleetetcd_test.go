package relay

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// TestTheCredentialsOfEtcdAreReadAgain: a file that is missing for a moment does not leave the relay alone for good.
func TestTheCredentialsOfEtcdAreReadAgain(t *testing.T) {
	store := certs.NewStore(slog.New(slog.DiscardHandler))
	defer store.Close()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	m := &membership{self: "127.0.0.1:1", credentials: store.Part()}
	defer m.credentials.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reasons := make(chan string)
	done := make(chan struct{})
	go func() {
		defer close(done)
		etcdMembers{m, &configs.FleetEtcd{
			Endpoints: []string{"https://" + freeAddress(t)}, Prefix: "/", TLS: configs.FleetEtcdTLS{CAFile: ca}, Lease: 2 * time.Second,
		}}.Follow(ctx, func(_ []string, err error) {
			select {
			case reasons <- err.Error():
			case <-ctx.Done():
			}
		})
	}()
	if reason := <-reasons; !strings.Contains(reason, ca) {
		t.Errorf("the reason is %q, want the missing file", reason)
	}
	writeFile(t, dir, "ca.pem", certtest.PEM(certtest.NewCA(t, "ca")))
	for reason := range reasons {
		if !strings.Contains(reason, ca) {
			break // nobody is at the endpoint
		}
	}
	cancel()
	<-done
}
