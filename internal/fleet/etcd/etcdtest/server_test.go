package etcdtest

import (
	"context"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// server is an etcd that comes and goes behind an address that stays.
type server struct {
	t       *testing.T
	dir     string
	tls     transport.TLSInfo
	lis     net.Listener
	passing sync.WaitGroup
	client  *clientv3.Client // see direct

	mu   sync.Mutex
	etcd *embed.Etcd
	// conns are open, and closed when etcd is lost.
	conns map[net.Conn]bool
}

// newServer returns the address for an etcd that does not run yet. tls may be empty.
func newServer(t *testing.T, tls transport.TLSInfo) *server {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: t.TempDir(), tls: tls, lis: lis, conns: map[net.Conn]bool{}}
	s.passing.Go(s.accept)
	t.Cleanup(func() {
		_ = lis.Close()
		s.lose()
		s.passing.Wait()
	})
	return s
}

// endpoint returns the URL.
func (s *server) endpoint() string {
	_, port, _ := net.SplitHostPort(s.lis.Addr().String())
	if s.tls.Empty() {
		return "http://127.0.0.1:" + port
	}
	return "https://localhost:" + port
}

func loopbackURL(scheme string) url.URL { return url.URL{Scheme: scheme, Host: "127.0.0.1:0"} }

// start starts etcd with what it has on its disk.
func (s *server) start() {
	s.t.Helper()
	c := embed.NewConfig()
	c.Dir = filepath.Join(s.dir, "data")
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	c.UnsafeNoFsync = true
	scheme := "http"
	if !s.tls.Empty() {
		scheme, c.ClientTLSInfo = "https", s.tls
	}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{loopbackURL(scheme)}, []url.URL{loopbackURL(scheme)}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{loopbackURL("http")}, []url.URL{loopbackURL("http")}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		s.t.Fatal(err)
	}
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		s.t.Fatal(err)
	case <-time.After(time.Minute):
		s.t.Fatal("etcd is not ready")
	}
	s.mu.Lock()
	s.etcd = e
	s.mu.Unlock()
}

// lose stops etcd, and cuts its connections.
func (s *server) lose() {
	s.mu.Lock()
	e := s.etcd
	s.etcd = nil
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	if e != nil {
		e.Close()
	}
}

// wipe takes what etcd has on its disk.
func (s *server) wipe() {
	s.t.Helper()
	if err := os.RemoveAll(filepath.Join(s.dir, "data")); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) accept() {
	for {
		in, err := s.lis.Accept()
		if err != nil {
			return
		}
		out := s.connect(in)
		if out == nil {
			_ = in.Close()
			continue
		}
		pass := func(to, from net.Conn) {
			_, _ = io.Copy(to, from) // until one side closes its connection
			_ = to.Close()
			_ = from.Close()
			s.mu.Lock()
			delete(s.conns, from)
			s.mu.Unlock()
		}
		s.passing.Go(func() { pass(in, out) })
		s.passing.Go(func() { pass(out, in) })
	}
}

// connect returns a connection to etcd for one of a client, nil if etcd is not there.
func (s *server) connect(in net.Conn) net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.etcd == nil {
		return nil
	}
	out, err := net.Dial("tcp", s.etcd.Clients[0].Addr().String())
	if err != nil {
		return nil
	}
	s.conns[in], s.conns[out] = true, true
	return out
}

// direct returns a client for etcd itself, for the goroutine of the test.
func (s *server) direct() *clientv3.Client {
	s.t.Helper()
	if s.client != nil {
		return s.client
	}
	c := clientv3.Config{Endpoints: []string{s.endpoint()}, Logger: zap.NewNop()}
	if !s.tls.Empty() {
		config, err := s.tls.ClientConfig()
		if err != nil {
			s.t.Fatal(err)
		}
		c.TLS = config
	}
	client, err := clientv3.New(c)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = client.Close() })
	s.client = client
	return client
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !holds() {
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within a minute", what)
		}
	}
}
