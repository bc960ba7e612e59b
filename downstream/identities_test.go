package downstream

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/identity"
)

// identified is a client with an identity on a connection of its own.
func identified(t *testing.T, s *Server, g *gate, id *identity.Identity, addr net.Addr) (*testClient, error) {
	t.Helper()
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: addr})
	uses, e := s.joinIdentity(ctx, g, id)
	if e != nil {
		return nil, s.turnAway(g, noStream{ctx: ctx}, e)
	}
	c := newTestClient(s, deltaForm.name, &corev3.Node{Id: "n"})
	c.st.grpc, c.st.identity, c.st.uses = contextStream{ctx: ctx}, id, uses
	c.st.gate = g
	g.admit(c.st)
	return c, nil
}

func (c *testClient) depart() {
	c.close()
	c.st.server.leaveIdentity(c.st.uses)
}

func at(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }

// Who counts as one, on connections of their own.
var counted = []struct {
	name     string
	one, two identity.Identity
	at, from net.Addr
	same     bool
}{
	{"one SPIFFE ID from two addresses", identity.Identity{Source: identity.MTLS, SPIFFEID: "spiffe://a/b"}, identity.Identity{Source: identity.MTLS, SPIFFEID: "spiffe://a/b"}, at("10.0.0.1"), at("10.0.0.2"), true},
	{"two SPIFFE IDs from one address", identity.Identity{Source: identity.MTLS, SPIFFEID: "spiffe://a/b"}, identity.Identity{Source: identity.MTLS, SPIFFEID: "spiffe://a/c"}, at("10.0.0.1"), at("10.0.0.1"), false},
	{"nobody from one address", identity.Identity{}, identity.Identity{Source: identity.None}, at("10.0.0.1"), at("10.0.0.1"), true},
	{"nobody over gRPC and REST", identity.Identity{}, identity.Identity{}, at("10.0.0.1"), remoteAddr("10.0.0.1:80"), true},
	{"nobody from two addresses", identity.Identity{}, identity.Identity{}, at("10.0.0.1"), at("10.0.0.2"), false},
	{"nobody from one /64", identity.Identity{}, identity.Identity{}, at("2001:db8::1"), at("2001:db8::ffff:1"), true},
	{"nobody from two /64", identity.Identity{}, identity.Identity{}, at("2001:db8::1"), at("2001:db8:0:1::1"), false},
	{"somebody and nobody from one address", identity.Identity{Source: identity.JWT, Subject: "a"}, identity.Identity{}, at("10.0.0.1"), at("10.0.0.1"), false},
}

// A client that opens more connections gets no higher limits.
func TestAnIdentityHasItsLimitsOnceOnAllConnections(t *testing.T) {
	for _, tt := range counted {
		ch := newTestCache(&recordingSource{}, 1000)
		server := newFederatedServer(ch)
		g := newGate(ListenerOptions{PerIdentity: IdentityLimits{Scopes: 2, Types: 2}})
		one, _ := identified(t, server, g, &tt.one, tt.at)
		two, _ := identified(t, server, g, &tt.two, tt.from)
		ask := func(c *testClient, typeURL, name string) (refused string) {
			err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: []string{name}})
			for _, r := range c.readAll(t) {
				for _, e := range r.errors {
					err = status.Error(e.code, e.message)
				}
			}
			if err != nil && status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s: %v", tt.name, err)
			}
			return status.Convert(err).Message()
		}
		expect := func(what, got, want string) {
			if !tt.same {
				want = ""
			}
			if got != want {
				t.Errorf("%s: %s: got %q, want %q", tt.name, what, got, want)
			}
		}
		for _, c := range []*testClient{one, two} {
			expect("a scope that both use", ask(c, clusterType, inAuthority(0)), "")
		}
		expect("the second", ask(one, clusterType, inAuthority(1)), "")
		const tooMany = "3 authorities, partitions and sets of dynamic parameters of this identity, but limits.scopes_per_identity is 2"
		expect("the third", ask(two, clusterType, inAuthority(2)), tooMany)
		_ = one.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesUnsubscribe: []string{inAuthority(1)}})
		expect("the third, once another is free", ask(two, clusterType, inAuthority(2)), "")

		for _, c := range []*testClient{one, two} {
			expect("a type that both request", ask(c, "made.up/1", inAuthority(0)), "")
		}
		expect("the second type", ask(one, "made.up/2", inAuthority(0)), "")
		expect("the third type", ask(two, "made.up/3", inAuthority(0)), "3 types of this identity that the relay does not know, but limits.types_per_identity is 2")
		expect("a type that the relay knows", ask(two, endpointType, inAuthority(0)), "")
		one.depart()
		two.depart()
		if n := len(server.identities.open); n != 0 {
			t.Errorf("%s: %d identities are left", tt.name, n)
		}
		for _, u := range []*identityUse{one.st.uses, two.st.uses} {
			if u.scopes.len()+len(u.types) != 0 {
				t.Errorf("%s: %d scopes and %d types are left", tt.name, u.scopes.len(), len(u.types))
			}
		}
		ch.Close()
	}
}

// A client that leaves scopes and makes up new ones opens streams upstream only at a limited rate.
func TestAnIdentityBeginsScopesOnlySoFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, each = 60, 50
		source := &recordingSource{}
		ch := newTestCache(source, 1000)
		defer ch.Close()
		server := newFederatedServer(ch)
		g := newGate(ListenerOptions{PerIdentity: IdentityLimits{Scopes: most}})
		c, _ := identified(t, server, g, &identity.Identity{}, at("10.0.0.1"))
		other, _ := identified(t, server, g, &identity.Identity{}, at("10.0.0.2"))
		defer other.depart()
		next := 0
		// churn requests names of so many new authorities, leaves them, and returns how many are refused.
		churn := func(c *testClient, n int) (refused int) {
			for ; n > 0; n -= each {
				var names []string
				for range min(n, each) {
					names = append(names, inAuthority(next))
					next++
				}
				if err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: names}); err != nil {
					t.Fatal(err)
				}
				for _, r := range c.readAll(t) {
					for _, e := range r.errors {
						const want = "more than 1000 new authorities, partitions and sets of dynamic parameters of this identity in a short time, but limits.scopes_per_identity is 60"
						if refused++; e.code != codes.ResourceExhausted || e.message != want {
							t.Fatalf("%s is refused with %v: %s", e.name, e.code, e.message)
						}
					}
				}
				if err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesUnsubscribe: names}); err != nil {
					t.Fatal(err)
				}
				c.readAll(t)
			}
			return refused
		}
		expect := func(what string, got, want int) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %d are refused, want %d", what, got, want)
			}
		}
		expect("as many as may be begun at once", churn(c, leastNewScopes), 0)
		source.take()
		expect("more", churn(c, 3*each), 3*each)
		if began := source.take(); len(began) > 0 {
			t.Errorf("what is refused is begun: %q", began)
		}
		c.depart()
		c, _ = identified(t, server, g, &identity.Identity{}, at("10.0.0.1"))
		expect("more on another stream", churn(c, each), each)
		next = leastNewScopes - 10
		expect("those that are still there", churn(c, 10), 0)
		next = 2 * leastNewScopes
		expect("another client's", churn(other, each), 0)
		time.Sleep(newScopesIn / 2)
		expect("half a minute later", churn(c, most), most/2)
		c.depart()
	})
}

func TestTheMemoryOfNewScopesIsBounded(t *testing.T) {
	var n newScopes
	now := time.Now()
	for i := range mostBeginning + 1000 {
		if e := n.take(identityKey{proven: fmt.Sprint(i)}, 10, now); e != nil {
			t.Fatal(e)
		}
	}
	if len(n.of) > mostBeginning {
		t.Errorf("%d identities are remembered", len(n.of))
	}
	_ = n.take(identityKey{proven: "later"}, 10, now.Add(newScopesIn))
	if len(n.of) != 1 {
		t.Errorf("%d identities are remembered that have begun nothing of late", len(n.of))
	}
}

func TestAnIdentityHasItsStreamsOnceOnAllConnections(t *testing.T) {
	for _, tt := range counted {
		server := newFederatedServer(nil)
		g := newGate(ListenerOptions{PerIdentity: IdentityLimits{Streams: 2}})
		one, _ := identified(t, server, g, &tt.one, tt.at)
		two, err := identified(t, server, g, &tt.two, tt.from)
		if err != nil {
			t.Fatal(err)
		}
		_, err = identified(t, server, g, &tt.two, tt.from)
		const tooMany = "3 open streams of this identity, but limits.streams_per_identity is 2"
		if tt.same != (status.Code(err) == codes.ResourceExhausted && status.Convert(err).Message() == tooMany) {
			t.Errorf("%s: the third stream gets %v", tt.name, err)
		}
		one.depart()
		if again, err := identified(t, server, g, &tt.one, tt.at); err != nil {
			t.Errorf("%s: a stream in the place of one that has ended gets %v", tt.name, err)
		} else {
			again.depart()
		}
		two.depart()
	}
}

// The rate of requests that get one answer does not grow with a client's connections.
func TestAnIdentityIsAnsweredNoFasterOnMoreConnections(t *testing.T) {
	const perSecond = 10
	for _, tt := range counted {
		synctest.Test(t, func(t *testing.T) {
			server := NewServer(nil, nil, Options{Log: slog.New(slog.DiscardHandler)})
			g := newGate(ListenerOptions{PerIdentity: IdentityLimits{RequestsPerSecond: perSecond}})
			take := func(id *identity.Identity, from net.Addr) (time.Duration, error) {
				began := time.Now()
				err := server.paceIdentity(peer.NewContext(t.Context(), &peer.Peer{Addr: from}), g, id)
				return time.Since(began), err
			}
			for range identityBurst * perSecond {
				if wait, e := take(&tt.one, tt.at); wait > 0 || e != nil {
					t.Fatalf("%s: a request of the burst waits %v, and gets %v", tt.name, wait, e)
				}
			}
			want := time.Duration(0)
			if tt.same {
				want = time.Second / perSecond
			}
			if wait, e := take(&tt.two, tt.from); wait != want || e != nil {
				t.Errorf("%s: the next one waits %v, and gets %v, want %v", tt.name, wait, e, want)
			}
			time.Sleep(identityBurst * time.Second)
			if wait, e := take(&tt.one, tt.at); wait > 0 || e != nil {
				t.Errorf("%s: after a pause one waits %v, and gets %v", tt.name, wait, e)
			}
		})
	}
}

func TestARequestThatWouldWaitTooLongIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond = 10
		server, _ := newTestServer(nil, 0)
		o := ListenerOptions{PerIdentity: IdentityLimits{RequestsPerSecond: perSecond}}
		handler := server.HTTPServer(o).Handler
		var answers [600]int
		var bodies [len(answers)]string
		done := make(chan struct{})
		for i := range answers {
			go func() {
				r := httptest.NewRequest(http.MethodPost, "/v3/discovery:clusters", strings.NewReader("no JSON"))
				r.Header.Set("Content-Type", "application/json")
				r.RemoteAddr = fmt.Sprint("10.0.0.1:", 1+i)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				answers[i], bodies[i] = w.Code, w.Body.String()
				done <- struct{}{}
			}()
		}
		got := map[int]int{}
		for range answers {
			<-done
		}
		for i, code := range answers {
			got[code]++
			const why = "because of this identity's other requests, but limits.requests_per_second_per_identity is 10"
			if code == http.StatusTooManyRequests && !strings.Contains(bodies[i], why) {
				t.Errorf("the answer is %s", bodies[i])
			}
		}
		const answered = (identityBurst + 1) * perSecond // with those that have waited a second at most
		if got[http.StatusBadRequest] != answered || got[http.StatusTooManyRequests] != len(answers)-answered {
			t.Errorf("the answers are %v, want %d and the others refused", got, answered)
		}
		if n := server.Stats().Limits["requests_per_second_per_identity"]; n != uint64(len(answers)-identityBurst*perSecond) {
			t.Errorf("%d requests are counted", n)
		}
	})
}

// A client that also makes up addresses makes up no more than there is room for.
func TestPacesOfManyIdentitiesAreBounded(t *testing.T) {
	var p identityPaces
	now := time.Now()
	address := func(i int) identityKey {
		return identityKey{address: prefixOf(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))}
	}
	for i := range 3 * mostPaced {
		p.take(address(i), 1, now)
	}
	if n := len(p.addresses.of); n > mostPaced+1 {
		t.Errorf("%d addresses are paced separately, want %d", n, mostPaced)
	}
	const further = 4 * mostPaced
	if _, refused := p.take(address(further), 1, now); !refused {
		t.Error("all that are too many count as one, and they came too fast")
	}
	if wait, refused := p.take(identityKey{proven: "good"}, 1, now); wait > 0 || refused {
		t.Errorf("an identity that is proven waits %v because of made-up addresses", wait)
	}
	if wait, refused := p.take(address(further), 1, now.Add(time.Minute)); wait > 0 || refused {
		t.Errorf("a minute later one waits %v", wait)
	}
	if n := len(p.addresses.of); n > 2 {
		t.Errorf("%d addresses are kept that have sent nothing for a minute", n)
	}
}

// A client whose streams are refused retries no faster on more connections, and other clients are not read more slowly.
func TestConnectionsOfRefusedStreamsAreReadMoreSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := newTestServer(nil, 0)
		p := pipeListener{next: make(chan net.Conn, 1)}
		l := server.Listen(p, ListenerOptions{})
		connect := func() (conn, client net.Conn, st *stream) {
			client, relay := net.Pipe()
			p.next <- relay
			conn, _ = l.Accept()
			st = server.open(contextStream{ctx: peer.NewContext(t.Context(), &peer.Peer{Addr: conn.RemoteAddr()})}, nil, deltaForm.name, "")
			return conn, client, st
		}
		read := func(conn, client net.Conn) time.Duration {
			began := time.Now()
			go func() { _, _ = client.Write([]byte("x")) }()
			_, _ = conn.Read(make([]byte, 1))
			return time.Since(began)
		}
		one, oneClient, refused := connect()
		two, twoClient, again := connect()
		other, otherClient, _ := connect()
		for range identityBurst * maxRefusedStreams {
			_ = refused.refuse(&excess{limit: limitTypes})
		}
		if waited := read(one, oneClient); waited != 0 {
			t.Errorf("after as many refused streams as may be at once, the connection is read after %v", waited)
		}
		for range maxRefusedStreams / 2 {
			_ = again.refuse(&excess{limit: limitTypes})
		}
		if waited := read(two, twoClient); waited != time.Second/2 {
			t.Errorf("another connection, with half of a second's worth, is read after %v", waited)
		}
		for range 10 * maxRefusedStreams {
			_ = again.refuse(&excess{limit: limitTypes})
		}
		if waited := read(two, twoClient); waited != mostIdentityWait {
			t.Errorf("with far more it is read after %v, want %v", waited, mostIdentityWait)
		}
		if waited := read(other, otherClient); waited != 0 {
			t.Errorf("a connection without refused streams is read after %v", waited)
		}
		if n := server.Stats().Limits["refused_streams"]; n != 2 {
			t.Errorf("%d pauses are counted, want 2", n)
		}
		for _, c := range []net.Conn{one, two, other, oneClient, twoClient, otherClient} {
			_ = c.Close()
		}
	})
}
