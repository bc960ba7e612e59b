package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
)

// agent is a SPIFFE agent: it provides the relay's own identity and the trusted roots, and sends both when they
// change. SPIFFE: "The SPIFFE Workload API".
type agent struct {
	address string
	log     *slog.Logger
	newest  atomic.Pointer[identity] // nil until the agent has sent one

	mu       sync.Mutex
	roles    []string // the roles of the SVID
	problem  string   // why the agent cannot be reached, "" if it can
	failures uint64
}

// identity is the identity that an agent has sent.
type identity struct {
	certificate *tls.Certificate // the relay's own SVID
	bundles     *x509bundle.Set
	roots       *x509.CertPool // of all bundles
	rootsExpire time.Time      // when the first root expires
}

// verify verifies a chain against the bundle of its own trust domain.
func (id *identity) verify(chain []*x509.Certificate) (spiffeid.ID, error) {
	peer, _, err := x509svid.Verify(chain, id.bundles)
	return peer, err
}

// agent returns the agent at an address, for an SVID in a role. The agent need not be running yet.
func (p *Part) agent(role, address string) *agent {
	a, _ := shared(p, "", address, func() (*agent, error) { // the function returns no errors
		a := &agent{address: address, log: p.log.With("workload_api", address)}
		p.add(a)
		return a, nil
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.roles, role) {
		a.roles = append(a.roles, role)
	}
	return a
}

// identity returns the newest identity that the agent has sent.
func (a *agent) identity() (*identity, error) {
	if id := a.newest.Load(); id != nil {
		return id, nil
	}
	return nil, fmt.Errorf("no SVID from %s yet", a.address)
}

// retry is the time until the relay connects again to an agent that did not answer.
const retry = 2 * time.Second

// run implements followed.
func (a *agent) run(ctx context.Context) {
	for {
		a.watch(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
	}
}

// watch receives the agent's updates until ctx ends, or the agent refuses the relay.
func (a *agent) watch(ctx context.Context) {
	connect := grpc.ConnectParams{Backoff: grpcbackoff.Config{BaseDelay: retry, Multiplier: 1, MaxDelay: retry}}
	client, err := workloadapi.New(ctx, workloadapi.WithAddr(a.address), workloadapi.WithBackoffStrategy(constant{}),
		workloadapi.WithDialOptions(grpc.WithConnectParams(connect)))
	if err != nil {
		a.fail(err)
		return
	}
	defer client.Close()
	_ = client.WatchX509Context(ctx, watcher{a, ctx}) // the watcher receives the reason why it ends
}

// constant is a workloadapi.BackoffStrategy, and its Backoff: it always waits for retry.
type constant struct{}

func (constant) NewBackoff() workloadapi.Backoff { return constant{} }
func (constant) Next() time.Duration             { return retry }
func (constant) Reset()                          {}

// wake implements followed. The agent reports changes itself.
func (a *agent) wake() {}

// statuses implements followed.
func (a *agent) statuses() []Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := a.newest.Load()
	var all []Status
	for _, role := range a.roles {
		st := Status{Role: role, Path: a.address, Problem: a.problem, Failures: a.failures}
		if id != nil {
			st.Expires = id.certificate.Leaf.NotAfter
		}
		all = append(all, st)
	}
	if id != nil {
		all = append(all, Status{Role: RoleCA, Path: a.address, Problem: a.problem, Failures: a.failures, Expires: id.rootsExpire})
	}
	return all
}

// watcher is a workloadapi.X509ContextWatcher.
type watcher struct {
	*agent
	ctx context.Context // of the watch
}

// OnX509ContextUpdate implements workloadapi.X509ContextWatcher.
func (w watcher) OnX509ContextUpdate(update *workloadapi.X509Context) {
	svid := update.DefaultSVID()
	w.newest.Store(newIdentity(svid, update.Bundles))
	w.mu.Lock()
	w.problem = ""
	w.mu.Unlock()
	w.log.Info("received SVID", "spiffe_id", svid.ID.String(), "expires", svid.Certificates[0].NotAfter, "event", "credentials")
}

func newIdentity(svid *x509svid.SVID, bundles *x509bundle.Set) *identity {
	id := &identity{bundles: bundles, roots: x509.NewCertPool(), certificate: &tls.Certificate{
		PrivateKey: svid.PrivateKey, Leaf: svid.Certificates[0],
	}}
	for _, c := range svid.Certificates {
		id.certificate.Certificate = append(id.certificate.Certificate, c.Raw)
	}
	for _, bundle := range bundles.Bundles() {
		for _, root := range bundle.X509Authorities() {
			id.roots.AddCert(root)
			if id.rootsExpire.IsZero() || root.NotAfter.Before(id.rootsExpire) {
				id.rootsExpire = root.NotAfter
			}
		}
	}
	return id
}

// OnX509ContextWatchError implements workloadapi.X509ContextWatcher.
func (w watcher) OnX509ContextWatchError(err error) {
	if w.ctx.Err() == nil {
		w.fail(err)
	}
}

func (a *agent) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failures++
	first := a.problem == ""
	a.problem = err.Error()
	switch {
	case !first:
	case a.newest.Load() == nil:
		a.log.Error("SPIFFE agent has sent no SVID, TLS handshakes fail until it does", "error", err)
	default:
		a.log.Warn("SPIFFE agent cannot be reached, its last SVID stays in use", "error", err)
	}
}
