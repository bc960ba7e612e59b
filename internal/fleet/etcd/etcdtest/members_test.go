package etcdtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/xds-relay/xds-relay/internal/fleet/etcd"
)

const folder = "/xds-relay/edge/members/"

// follower is a relay that follows the list.
type follower struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	members  []string
	problem  error
	shortest int // of the lists since settle
}

func follow(t *testing.T, s *server, address string) *follower {
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		etcd.Members{Endpoints: []string{s.endpoint()}, Folder: folder, Address: address, Lease: 2 * time.Second}.Follow(ctx, f.report)
	}()
	t.Cleanup(f.leave)
	return f
}

func (f *follower) report(members []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.problem = err; err == nil {
		f.members = members
		f.shortest = min(f.shortest, len(members))
	}
}

// leave ends the follower, and waits until it has left the list.
func (f *follower) leave() {
	f.cancel()
	<-f.done
}

// settle begins to note the shortest list.
func (f *follower) settle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shortest = len(f.members)
}

// least returns how many members the shortest list had since settle.
func (f *follower) least() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shortest
}

func (f *follower) has(members ...string) func() bool {
	return func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.problem == nil && slices.Equal(f.members, members)
	}
}

func (f *follower) failed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.problem != nil
}

// listed returns the keys in etcd.
func listed(t *testing.T, s *server) (keys []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	found, err := s.direct().Get(ctx, "/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range found.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// TestTheListOutlivesEtcd: the members are those in etcd; while it is gone they stay, and if it comes back with an empty
// disk, all register again before anybody takes them for gone.
func TestTheListOutlivesEtcd(t *testing.T) {
	s := newServer(t, transport.TLSInfo{})
	a := follow(t, s, "10.0.0.1:1")
	await(t, "a notices that there is no etcd", a.failed)
	s.start()
	await(t, "a is alone", a.has("10.0.0.1:1"))
	b := follow(t, s, "10.0.0.2:1")
	await(t, "a knows b", a.has("10.0.0.1:1", "10.0.0.2:1"))
	await(t, "b knows a", b.has("10.0.0.1:1", "10.0.0.2:1"))
	if got := fmt.Sprint(listed(t, s)); got != "["+folder+"10.0.0.1:1 "+folder+"10.0.0.2:1]" {
		t.Errorf("etcd has %s", got)
	}

	a.settle()
	b.settle()
	s.lose()
	await(t, "a notices that etcd is gone", a.failed)
	await(t, "b notices that etcd is gone", b.failed)
	s.wipe()
	s.start()
	await(t, "a is back", a.has("10.0.0.1:1", "10.0.0.2:1"))
	await(t, "b is back", b.has("10.0.0.1:1", "10.0.0.2:1"))
	await(t, "both have registered again", func() bool { return len(listed(t, s)) == 2 })
	if least := min(a.least(), b.least()); least < 2 {
		t.Errorf("a list had %d members meanwhile", least)
	}

	b.leave()
	if got := fmt.Sprint(listed(t, s)); got != "["+folder+"10.0.0.1:1]" {
		t.Errorf("after b has left, etcd has %s", got)
	}
	await(t, "a no longer knows b", a.has("10.0.0.1:1"))
}

// TestAKeyThatIsDeletedComesBack: the list says who registered, and a relay that runs is a member.
func TestAKeyThatIsDeletedComesBack(t *testing.T) {
	s := newServer(t, transport.TLSInfo{})
	s.start()
	a := follow(t, s, "10.0.0.1:1")
	await(t, "a is there", a.has("10.0.0.1:1"))
	if _, err := s.direct().Delete(t.Context(), folder+"10.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	await(t, "a is back", func() bool { return len(listed(t, s)) == 1 })
}

// TestARelayFindsItsAddress: without an address of its own, it is that of the interface that reaches etcd.
func TestARelayFindsItsAddress(t *testing.T) {
	s := newServer(t, transport.TLSInfo{})
	s.start()
	a := follow(t, s, "[::]:18100")
	await(t, "a is there", a.has("127.0.0.1:18100"))
}
