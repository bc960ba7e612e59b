package relay

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// refusing is a server that closes each connection at once, until it is open.
type refusing struct {
	net.Listener
	open atomic.Bool
	stop func()
}

// Accept implements net.Listener.
func (l *refusing) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.open.Load() {
			return c, err
		}
		_ = c.Close()
	}
}

// startRefusing returns a recordingPlane that accepts no connections yet.
func startRefusing(t *testing.T) *refusing {
	t.Helper()
	socket, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	l := &refusing{Listener: socket, stop: s.Stop}
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, newRecordingPlane())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return l
}

const readyHead = `
listeners: [{address: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0", ready_timeout: %s}
authorities:
`

// health asks gRPC health for the relay and two of its services.
func healthOf(t *testing.T, address string) (all []healthpb.HealthCheckResponse_ServingStatus) {
	t.Helper()
	conn := connectTo(t, address)
	for _, service := range []string{"", xdstype.AggregatedV3.Name, "envoy.service.endpoint.v3.EndpointDiscoveryService"} {
		r, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatalf("health of %q: %v", service, err)
		}
		all = append(all, r.GetStatus())
	}
	return all
}

// A relay is not ready before a server of each authority accepts a connection, or its directory was read. Authorities
// under a pattern are not known in advance. Once ready, it stays ready.
func TestTheRelayIsReadyOnceEachAuthorityIs(t *testing.T) {
	t.Parallel()
	first, second := startRefusing(t), startRefusing(t)
	folder := t.TempDir()
	r, address := runRelay(t, fmt.Sprintf(readyHead, "1h")+fmt.Sprintf(`
  - {name: files, directory: %s}
  - {name: lost, directory: %s}
  - {name: cp.example.com, servers: [{address: %q}, {address: %q}]}
  - {name: "*.example.com", servers: [{address: "127.0.0.1:1"}]}
`, folder, filepath.Join(folder, "none"), first.Addr(), second.Addr()), slog.New(slog.DiscardHandler))
	await(t, "both reasons are there", func() bool {
		status, text := ask(t, r, "/readyz?verbose")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "[+]listeners ok\n[+]certificates ok\n[+]authority/files ok\n") &&
			strings.Contains(text, "[-]authority/lost authority \"lost\": the directory cannot be read") &&
			strings.Contains(text, "[-]authority/cp.example.com authority \"cp.example.com\": no server takes a connection: server "+first.Addr().String()+": ") &&
			strings.Contains(text, "; server "+second.Addr().String()+": ") &&
			strings.HasSuffix(text, "readyz check failed\n") && !strings.Contains(text, "*")
	})
	for _, is := range healthOf(t, address) {
		if is != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health of a relay that is not ready: %v", is)
		}
	}
	second.open.Store(true)
	await(t, "one server suffices", func() bool {
		_, text := ask(t, r, "/readyz?verbose")
		return strings.Contains(text, "[+]authority/cp.example.com ok\n")
	})
	if err := os.Mkdir(filepath.Join(folder, "none"), 0o700); err != nil {
		t.Fatal(err)
	}
	await(t, "ready", func() bool {
		status, text := ask(t, r, "/readyz")
		return status == http.StatusOK && text == "ready\n"
	})
	await(t, "health says so", func() bool {
		for _, is := range healthOf(t, address) {
			if is != healthpb.HealthCheckResponse_SERVING {
				return false
			}
		}
		return true
	})
	second.open.Store(false)
	second.stop()
	await(t, "the control plane is lost", func() bool { return r.now().origins["cp.example.com"].servers[1].conn.Reach(canceled(t)) != nil })
	if status, text := ask(t, r, "/readyz?verbose"); status != http.StatusOK || !strings.HasSuffix(text, "readyz check passed\n") {
		t.Errorf("after the control plane has gone: %d %s", status, text)
	}
}

// canceled is a context that has ended.
func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// An attempt that hangs does not delay the timeout.
func TestTheTimeoutPassesThoughAnAttemptHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Connections are made, but get no answer.
		s := startInMemory(t, fmt.Sprintf(readyHead, "300ms")+"  - {name: a, servers: [{address: \"hangs:18000\"}]}\n", func(string) dialer {
			return func(context.Context, string) (net.Conn, error) {
				conn, hangs := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, hangs) }()
				return conn, nil
			}
		})
		defer s.close()
		ctx, cancel := context.WithCancel(t.Context())
		var trying sync.WaitGroup
		defer trying.Wait()
		defer cancel()
		began := time.Now()
		trying.Go(func() { s.relay.getReady(ctx) })
		synctest.Wait()
		if s.relay.readiness.isDone() {
			t.Error("it is ready at once")
		}
		<-s.relay.readiness.done
		if took := time.Since(began); took != 300*time.Millisecond {
			t.Errorf("ready after %v", took)
		}
		time.Sleep(connectWithin)
		synctest.Wait()
		if why, overdue := s.relay.readiness.missing("a"); !overdue || !strings.Contains(why, "does not answer within 4s") {
			t.Errorf("when the reason is known, it is %q, and nobody waits any more: %t", why, overdue)
		}
	})
}

// After ready_timeout the relay is ready with what it has, and reports what is missing as long as that is so.
func TestTheRelayIsReadyAfterTheTimeout(t *testing.T) {
	t.Parallel()
	plane := startRefusing(t)
	r, _ := runRelay(t, fmt.Sprintf(readyHead, "300ms")+fmt.Sprintf("  - {name: a, servers: [{address: %q}]}\n", plane.Addr()), slog.New(slog.DiscardHandler))
	await(t, "ready", func() bool {
		status, text := ask(t, r, "/readyz?verbose")
		return status == http.StatusOK && strings.Contains(text, "[+]authority/a ok (not waited for after 300ms: no server takes a connection: ")
	})
	plane.open.Store(true)
	await(t, "it is not missing any more", func() bool {
		_, text := ask(t, r, "/readyz?verbose")
		return strings.Contains(text, "[+]authority/a ok\n")
	})
}

// Stored resources of an authority can be served without its control plane.
func TestTheRelayIsReadyWithWhatIsStored(t *testing.T) {
	t.Parallel()
	plane := startRefusing(t)
	config := fmt.Sprintf(readyHead, "1h") + fmt.Sprintf("  - {name: a, servers: [{address: %q}]}\nstore: {path: %s}\n", plane.Addr(), filepath.Join(t.TempDir(), "store"))
	t.Run("empty", func(t *testing.T) {
		r, _ := runRelay(t, config, slog.New(slog.DiscardHandler))
		await(t, "a reason", func() bool {
			_, text := ask(t, r, "/readyz")
			return strings.Contains(text, "no server takes a connection")
		})
	})
	t.Run("filled", func(t *testing.T) {
		plane.open.Store(true)
		defer plane.open.Store(false)
		r, address := runRelay(t, config, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connectTo(t, address)).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "n"}, TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: []string{"xdstp://a/envoy.config.cluster.v3.Cluster/x"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		await(t, "it is written", func() bool { return r.now().store.Stats().Written > 0 })
	})
	r, _ := runRelay(t, config, slog.New(slog.DiscardHandler))
	await(t, "ready", func() bool {
		status, _ := ask(t, r, "/readyz")
		return status == http.StatusOK
	})
}
