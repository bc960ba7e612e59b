package certtest

import (
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Agent is a SPIFFE agent: it serves the Workload API on a unix socket.
type Agent struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	server *grpc.Server

	mu      sync.Mutex
	newest  *workload.X509SVIDResponse // nil: the workload has no SVID
	changed chan struct{}              // closed when newest changes
}

// NewAgent returns an agent that serves nobody yet.
func NewAgent() *Agent { return &Agent{changed: make(chan struct{})} }

// Issue sends an SVID, with the CA that is the bundle of its trust domain, and the CAs that are
// the bundles of other trust domains.
func (a *Agent) Issue(t testing.TB, id string, ca *CA, federated map[string]*CA) *Pair {
	t.Helper()
	pair := ca.Issue(t, Options{SPIFFEID: id})
	r := &workload.X509SVIDResponse{
		Svids: []*workload.X509SVID{{
			SpiffeId: id, X509Svid: pair.TLS.Leaf.Raw, X509SvidKey: pair.keyDER, Bundle: ca.Certificate.Raw,
		}},
		FederatedBundles: map[string][]byte{},
	}
	for domain, other := range federated {
		r.FederatedBundles[domain] = other.Certificate.Raw
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.newest = r
	close(a.changed)
	a.changed = make(chan struct{})
	return pair
}

// Trust adds CAs to the bundle of the SVID's own trust domain, and sends it again.
func (a *Agent) Trust(cas ...*CA) {
	a.mu.Lock()
	defer a.mu.Unlock()
	svid := a.newest.GetSvids()[0]
	bundle := slices.Clone(svid.GetBundle())
	for _, ca := range cas {
		bundle = append(bundle, ca.Certificate.Raw...)
	}
	a.newest = &workload.X509SVIDResponse{FederatedBundles: a.newest.GetFederatedBundles(), Svids: []*workload.X509SVID{{
		SpiffeId: svid.GetSpiffeId(), X509Svid: svid.GetX509Svid(), X509SvidKey: svid.GetX509SvidKey(), Bundle: bundle,
	}}}
	close(a.changed)
	a.changed = make(chan struct{})
}

// Serve serves on the unix socket at path until Stop is called or the test ends.
func (a *Agent) Serve(t testing.TB, path string) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	a.server = grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(a.server, a)
	var serving sync.WaitGroup
	server := a.server
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
}

// Stop stops the server.
func (a *Agent) Stop() { a.server.Stop() }

// FetchX509SVID implements workload.SpiffeWorkloadAPIServer.
func (a *Agent) FetchX509SVID(_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	if md, _ := metadata.FromIncomingContext(stream.Context()); !slices.Equal(md.Get("workload.spiffe.io"), []string{"true"}) {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	for {
		a.mu.Lock()
		newest, changed := a.newest, a.changed
		a.mu.Unlock()
		if newest == nil {
			return status.Error(codes.PermissionDenied, "no identity issued")
		}
		if err := stream.Send(newest); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
