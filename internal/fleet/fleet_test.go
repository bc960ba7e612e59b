package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
)

// other is another relay, as far as a Fleet sees it.
type other struct {
	lis    *memconn.Listener
	server *grpc.Server
	health *health.Server
	// stuck, if it is set, is how long it answers nothing.
	stuck atomic.Pointer[chan struct{}]
	// unreadable: the credentials for connections to it cannot be read.
	unreadable atomic.Bool
}

func (o *other) start(fleet string) {
	o.lis, o.server, o.health = memconn.Listen(1<<14), grpc.NewServer(grpc.UnaryInterceptor(o.wait)), health.NewServer()
	o.health.SetServingStatus(ServiceOf(fleet), healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(o.server, o.health)
	go func(s *grpc.Server, lis net.Listener) { _ = s.Serve(lis) }(o.server, o.lis)
}

func (o *other) wait(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if stuck := o.stuck.Load(); stuck != nil {
		select {
		case <-*stuck:
		case <-ctx.Done():
		}
	}
	return handler(ctx, req)
}

// world are a Fleet, whose own relay is self, and the relays around it.
type world struct {
	*Fleet
	others  map[string]*other
	changes atomic.Int64
	changed atomic.Pointer[[]cache.Scope] // the newest
}

func newWorld(t *testing.T, names ...string) *world {
	w := newWorldWith(t, slog.New(slog.DiscardHandler), names...)
	w.Follow(Static(append([]string{"self"}, names...)))
	time.Sleep(10 * time.Millisecond)
	return w
}

// newWorldWith is newWorld without members.
func newWorldWith(t *testing.T, log *slog.Logger, names ...string) *world {
	w := &world{others: map[string]*other{}}
	for _, name := range names {
		w.others[name] = &other{}
		w.others[name].start("edge")
	}
	w.Fleet = New(Options{
		Name: "edge", Self: "self", Changed: func(scopes ...cache.Scope) { w.changes.Add(1); w.changed.Store(&scopes) }, Log: log,
		Dial: func(address string) (Conn, error) {
			o := w.others[address]
			if o == nil || o.unreadable.Load() {
				return nil, errors.New("no such address")
			}
			return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, MaxDelay: 100 * time.Millisecond}}),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return o.lis.DialContext(ctx) }))
		},
	})
	t.Cleanup(func() {
		w.Close()
		for _, o := range w.others {
			o.server.Stop()
		}
		synctest.Wait()
	})
	return w
}

// order returns the members by their scores for a scope.
func order(s cache.Scope, members ...string) []string {
	var sorted []string
	for len(members) > 0 {
		best := 0
		for i, m := range members {
			if score(hashOf(m), scopeHash(s)) > score(hashOf(members[best]), scopeHash(s)) {
				best = i
			}
		}
		sorted = append(sorted, members[best])
		members = append(append([]string{}, members[:best]...), members[best+1:]...)
	}
	return sorted
}

// scopeWith returns a scope with this order of members.
func scopeWith(t *testing.T, members ...string) cache.Scope {
	t.Helper()
	for i := range 100_000 {
		s := cache.Scope{Authority: "cp", Partition: fmt.Sprint(i), OldStyle: true}
		if strings.Join(order(s, members...), " ") == strings.Join(members, " ") {
			return s
		}
	}
	t.Fatal("no scope has that order")
	return cache.Scope{}
}

// comesFrom checks from whom a scope comes.
func (w *world) comesFrom(t *testing.T, s cache.Scope, want string) {
	t.Helper()
	got := "servers"
	switch p, state := w.Route(s); {
	case state:
		got = "state of " + p.Address
	case p != nil:
		got = p.Address
	}
	if got != want {
		t.Errorf("%s after %s: the scope comes from %s, want %s", s, time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), got, want)
	}
}

func TestAScopeComesFromItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		select {
		case <-w.Settled():
		default:
			t.Error("the members are not known")
		}
		w.comesFrom(t, scopeWith(t, "a", "self", "b"), "a")
		w.comesFrom(t, scopeWith(t, "b", "a", "self"), "b")
		w.comesFrom(t, scopeWith(t, "self", "a", "b"), "servers")
	})
}

// TestARelayThatIsNoMemberOwnsNothing: others do not know of it, so they would not get scopes from it.
func TestARelayThatIsNoMemberOwnsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		s := scopeWith(t, "self", "a")
		w.comesFrom(t, s, "servers")
		w.Follow(Static{"a"})
		synctest.Wait()
		w.comesFrom(t, s, "a")
	})
}

func TestAScopeGoesToTheNextMemberAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		s := scopeWith(t, "a", "b", "self")
		w.comesFrom(t, s, "a")
		before := w.changes.Load()
		w.others["a"].server.Stop()
		synctest.Wait()
		w.comesFrom(t, s, "b")
		if w.changes.Load() == before || len(*w.changed.Load()) > 0 {
			t.Error("a member has gone, and Changed was not called for all scopes")
		}
		w.others["b"].server.Stop()
		synctest.Wait()
		w.comesFrom(t, s, "servers")

		w.others["a"].start("edge")
		time.Sleep(provesFor)
		w.comesFrom(t, s, "servers") // it has not proven itself
		time.Sleep(2 * retryEvery)
		w.comesFrom(t, s, "a")
	})
}

func TestAMemberThatHangsIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		s := scopeWith(t, "a", "self")
		w.comesFrom(t, s, "a")
		stuck := make(chan struct{})
		w.others["a"].stuck.Store(&stuck)
		time.Sleep(2 * time.Second)
		w.comesFrom(t, s, "servers")
		close(stuck)
		time.Sleep(retryEvery + provesFor + time.Millisecond)
		w.comesFrom(t, s, "a")
		slow := make(chan struct{})
		w.others["a"].stuck.Store(&slow)
		time.Sleep(checkEvery + checkWithin + time.Millisecond)
		close(slow)
		time.Sleep(time.Minute)
		w.comesFrom(t, s, "a")
	})
}

// TestAMemberThatIsLostAgainProvesItselfForLonger: else a member that crashes again and again moves scopes each time.
func TestAMemberThatIsLostAgainProvesItselfForLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		s := scopeWith(t, "a", "self")
		for _, proves := range []time.Duration{provesFor, 2 * provesFor, 4 * provesFor, provesFor} {
			w.others["a"].server.Stop()
			synctest.Wait()
			w.others["a"].start("edge")
			time.Sleep(proves)
			w.comesFrom(t, s, "servers") // it was found a bit later
			time.Sleep(2 * retryEvery)
			w.comesFrom(t, s, "a")
			if proves == 4*provesFor {
				time.Sleep(steadyFor)
			}
		}
	})
}

func TestAMemberThatLeavesIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		s := scopeWith(t, "a", "b", "self")
		w.others["a"].health.Shutdown()
		synctest.Wait()
		w.comesFrom(t, s, "b")
		before := w.changes.Load()
		w.Follow(Static{"self", "a"})
		synctest.Wait()
		w.comesFrom(t, s, "servers")
		if w.changes.Load() == before {
			t.Error("a member has gone from the list, and Changed was not called")
		}
		time.Sleep(2 * closesAfter)
	})
}

func TestARelayOfAnotherFleetIsNoMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		w.others["a"].server.Stop()
		w.others["a"].start("core")
		time.Sleep(time.Minute)
		w.comesFrom(t, scopeWith(t, "a", "self"), "servers")
	})
}

// TestWhatPeersGetComesFromTheServers: a scope that a peer gets from this relay does not come from a third one.
func TestWhatPeersGetComesFromTheServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		s := scopeWith(t, "a", "self")
		before := w.changes.Load()
		done, second := w.Serve(s, "a"), w.Serve(s, "a")
		w.comesFrom(t, s, "servers")
		if w.changes.Load() != before+1 {
			t.Errorf("Changed was called %d times, want once", w.changes.Load()-before)
		}
		done()
		done()
		time.Sleep(2 * servesFor)
		w.comesFrom(t, s, "servers")
		second()
		time.Sleep(servesFor - time.Millisecond)
		w.comesFrom(t, s, "servers")
		before = w.changes.Load()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		w.comesFrom(t, s, "a")
		if w.changes.Load() != before+1 || len(w.scopes) > 0 {
			t.Errorf("Changed was called %d times, want once; %d scopes are remembered", w.changes.Load()-before, len(w.scopes))
		}
		if got := *w.changed.Load(); len(got) != 1 || got[0] != s {
			t.Errorf("Changed was called for %v, want only %v", got, s)
		}
	})
}

func TestAScopeAvoidsAMemberThatRefusesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		s, another := scopeWith(t, "a", "b", "self"), scopeWith(t, "a", "self", "b")
		refuse(w, s)
		w.comesFrom(t, s, "b")
		w.comesFrom(t, another, "a")
		refuse(w, s)
		w.comesFrom(t, s, "servers")
		time.Sleep(avoidsFor)
		synctest.Wait()
		w.comesFrom(t, s, "a")
		for _, lasts := range []time.Duration{2 * avoidsFor, 4 * avoidsFor} {
			refuse(w, s)
			time.Sleep(lasts - time.Millisecond)
			w.comesFrom(t, s, "b")
			time.Sleep(time.Millisecond)
			w.comesFrom(t, s, "a")
		}
		w.Refused(s, w.peers["a"], "another reason")
		time.Sleep(avoidsFor)
		w.comesFrom(t, s, "a")
		time.Sleep(10 * avoidsFor)
		synctest.Wait()
		if len(w.scopes) > 0 {
			t.Errorf("%d scopes are remembered", len(w.scopes))
		}
	})
}

// TestRelaysWithoutMembersUseTheServers: a fleet that nobody can be asked about is as good as none.
func TestRelaysWithoutMembersUseTheServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.comesFrom(t, cache.Scope{Authority: "cp"}, "servers")
		w.Follow(Static{"elsewhere"})
		synctest.Wait()
		w.comesFrom(t, cache.Scope{Authority: "cp"}, "servers")
	})
}

// TestCredentialsThatCannotBeReadAreReadAgain: files may be replaced at this moment.
func TestCredentialsThatCannotBeReadAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldWith(t, slog.New(slog.DiscardHandler), "a")
		s := scopeWith(t, "a", "self")
		w.others["a"].unreadable.Store(true)
		w.Follow(Static{"self", "a"})
		time.Sleep(time.Minute)
		w.comesFrom(t, s, "servers")
		if got := w.Status().Members[0]; got.Up || got.Reason == "" {
			t.Errorf("a member without credentials: %+v", got)
		}
		w.others["a"].unreadable.Store(false)
		time.Sleep(2 * retryEvery)
		w.comesFrom(t, s, "a")
	})
}

// listOf gives a list, or an error, whenever it has one.
type listOf chan any

func (l listOf) Follow(ctx context.Context, report func([]string, error)) {
	for {
		select {
		case v := <-l:
			addresses, _ := v.([]string)
			err, _ := v.(error)
			report(addresses, err)
		case <-ctx.Done():
			return
		}
	}
}

// TestAListThatCannotBeReadStays: the relay is alone until it has one, and says why.
func TestAListThatCannotBeReadStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := newWorldWith(t, slog.New(slog.NewTextHandler(&log, nil)), "a")
		list := make(listOf)
		w.Follow(list)
		s := scopeWith(t, "a", "self")
		is := func(when string, want Status) {
			t.Helper()
			synctest.Wait()
			want.Name = "edge"
			got := w.Status()
			for i := range got.Members {
				got.Members[i].Conn = nil
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
		}
		is("at first", Status{Alone: true})
		list <- errors.New("no etcd")
		list <- errors.New("no etcd")
		is("without a list", Status{Alone: true, Problem: "no etcd"})
		w.comesFrom(t, s, "servers")
		members := []Member{{Address: "a", Up: true}, {Address: "self", Self: true, Up: true}}
		list <- []string{"self", "a"}
		time.Sleep(10 * time.Millisecond)
		is("with a list", Status{Members: members})
		w.comesFrom(t, s, "a")
		list <- errors.New("no etcd again")
		is("after it was lost", Status{Members: members, Problem: "no etcd again"})
		w.comesFrom(t, s, "a")
		w.others["a"].server.Stop()
		synctest.Wait()
		if got := w.Status().Members[0]; got.Up || got.Reason == "" {
			t.Errorf("a member that has gone: %+v", got)
		}
		list <- []string{"self", "a"}
		synctest.Wait()
		for text, want := range map[string]int{"works alone": 1, "stays as it is": 1, "can be looked up again": 2} {
			if got := strings.Count(log.String(), text); got != want {
				t.Errorf("%q is logged %d times, want %d:\n%s", text, got, want, &log)
			}
		}
	})
}

func refuse(w *world, s cache.Scope) {
	from, _ := w.Route(s)
	w.Refused(s, from, "no such authority")
}
