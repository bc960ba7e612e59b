package downstream

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// groupClient is a client of one type, which remembers what it was sent.
type groupClient struct {
	*testClient
	names  []string
	missed int               // changes since it has read
	has    map[string]string // content by name
	errors map[string]string
	again  map[string]bool // requested again, or sent an error of
	// rejects are the names that it has rejected and not accepted since. rejected: it has rejected a response without a
	// new resource, and accepted none since. others are the names that this response removed, or renewed.
	rejects  map[string]bool
	rejected bool
	others   map[string]bool
	refused  bool // it has ever rejected a resource
}

func newGroupClient(s *Server, form string, features ...string) *groupClient {
	return &groupClient{testClient: newTestClient(s, form, &corev3.Node{Id: "test", ClientFeatures: features}), has: map[string]string{}, errors: map[string]string{}, again: map[string]bool{}, rejects: map[string]bool{}}
}

// asks sends what the client asks for: in SotW all names, in delta those that are new.
func (c *groupClient) asks(t tb, add, drop []string) {
	t.Helper()
	c.names = slices.DeleteFunc(c.names, func(name string) bool { return slices.Contains(drop, name) })
	for _, name := range drop {
		delete(c.has, name)
		delete(c.errors, name)
		delete(c.rejects, name)
		if c.others[name] {
			delete(c.others, name)
			c.rejected = c.rejected && len(c.others) > 0
		}
	}
	for _, name := range add {
		if !slices.Contains(c.names, name) {
			c.names = append(c.names, name)
		}
		c.again[name] = true
	}
	m := c.memory(endpointType)
	var err error
	if c.st.form == deltaForm.name {
		err = c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: add, ResourceNamesUnsubscribe: drop})
	} else {
		err = c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: c.names, ResponseNonce: m.nonce, VersionInfo: m.version})
	}
	if err != nil {
		t.Fatalf("the stream ended: %v", err)
	}
}

// reads takes all responses, and answers each.
func (c *groupClient) reads(t tb, reject bool) {
	t.Helper()
	defer func() { c.missed = 0 }()
	for r := c.read(t); r != nil; r = c.read(t) {
		c.rejected, c.others = reject, map[string]bool{}
		for _, res := range r.resources {
			if res.beat {
				c.others[res.name] = true
				continue
			}
			c.rejected = false
			c.refused = c.refused || reject
			rejected := c.rejects[res.name] // then it may come again with another version
			if c.rejects[res.name] = true; !reject {
				delete(c.rejects, res.name)
			}
			if old, ok := c.has[res.name]; ok && old == res.content+res.ttl.String() && !rejected && !c.again[res.name] && c.missed < minLog/2 {
				t.Errorf("%s: %s is sent again though it has not changed", c.st.form, res.name)
			}
			c.has[res.name] = res.content + res.ttl.String()
			delete(c.errors, res.name)
			delete(c.again, res.name)
		}
		for _, name := range r.removed {
			c.others[name] = true
			delete(c.rejects, name)
			delete(c.has, name)
			delete(c.errors, name)
		}
		for _, e := range r.errors {
			if e.code == codes.NotFound { // SotW
				delete(c.rejects, e.name)
			}
			c.errors[e.name] = e.message
			c.again[e.name] = true
		}
		var detail *statuspb.Status
		if reject {
			detail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: "no"}
		}
		var err error
		if c.st.form == deltaForm.name {
			err = c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: r.nonce, ErrorDetail: detail})
		} else {
			err = c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: c.names, ResponseNonce: r.nonce, VersionInfo: r.version, ErrorDetail: detail})
		}
		if err != nil {
			t.Fatalf("the stream ended: %v", err)
		}
	}
}

func (c *groupClient) shares() bool {
	return c.st.sessions[0].Inspect().Shares
}

// TestClientsWithTheSameNames holds that clients that ask for the same names, and so are a
// group, are sent what one is sent that requests them alone: whatever becomes of the names,
// whatever each of them asks for and answers, and whenever each reads. None is sent again what
// it has.
func TestClientsWithTheSameNames(t *testing.T) {
	shared, apart := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		c := newTestCache(silentSource{}, 1000)
		defer c.Close()
		features := rapid.SampledFrom([][]string{nil, {session.FeatureTTL, session.FeatureWrapped}}).Draw(t, "features")
		limit := rapid.SampledFrom([]int{DefaultMaxResponseBytes, DefaultMaxResponseBytes, 400}).Draw(t, "limit")
		server, _ := newTestServer(c, limit)
		names := []string{"a", "b", "c", "d", "e"}
		var clients []*groupClient // by pairs: one of a group, and one that is alone
		for i := range 6 {
			form := []string{deltaForm.name, sotwForm.name}[i%2]
			alone, _ := newTestServer(c, limit)
			for _, s := range []*Server{server, alone} {
				clients = append(clients, newGroupClient(s, form, features...))
			}
		}
		defer func() {
			for _, cl := range clients {
				cl.close()
			}
		}()
		come := func(i int) {
			for _, cl := range clients[2*i : 2*i+2] {
				if len(cl.names) == 0 {
					cl.asks(t, names, nil)
				}
			}
		}
		come(0) // their lists are known from the second time on
		come(1)
		come(2)
		come(3)
		put := func(change cache.Change) {
			for _, cl := range clients {
				cl.missed++
			}
			c.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType, Changes: []cache.Change{change}})
		}
		name := rapid.SampledFrom(names)
		pair := rapid.IntRange(0, len(clients)/2-1)
		origins := []*cache.OriginVersion{nil, cache.NewOriginVersion("s", "1"), cache.NewOriginVersion("s", "2")}
		t.Repeat(map[string]func(*rapid.T){
			"changes": func(t *rapid.T) {
				n, content := name.Draw(t, "name"), rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "content")
				put(cache.Change{Name: n, Resource: newTestResource(endpointType, n, "", content), Origin: rapid.SampledFrom(origins).Draw(t, "origin")})
			},
			"all change": func(t *rapid.T) {
				for _, cl := range clients {
					cl.missed += len(names)
				}
				u := cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType}
				content := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "content")
				for _, n := range names {
					u.Changes = append(u.Changes, cache.Change{Name: n, Resource: newTestResource(endpointType, n, "", content), Origin: origins[1]})
				}
				c.Apply(u)
			},
			"goes": func(t *rapid.T) { put(cache.Change{Name: name.Draw(t, "name"), Gone: true}) },
			"fails": func(t *rapid.T) {
				put(cache.Change{Name: name.Draw(t, "name"), Err: &cache.Error{Code: codes.Internal, Message: "broken"}})
			},
			"lives": func(t *rapid.T) {
				n := name.Draw(t, "name")
				put(cache.Change{Name: n, Resource: newTestResource(endpointType, n, "", "x").WithTTL(time.Minute)})
			},
			"reads": func(t *rapid.T) {
				reject := rapid.Bool().Draw(t, "reject")
				for i := pair.Draw(t, "pair"); i < len(clients)/2; i += 2 {
					clients[2*i].reads(t, reject)
					clients[2*i+1].reads(t, reject)
				}
			},
			"comes": func(t *rapid.T) { come(pair.Draw(t, "pair")) },
			"asks": func(t *rapid.T) {
				i, n, drop := pair.Draw(t, "pair"), name.Draw(t, "name"), rapid.Bool().Draw(t, "drop")
				for _, cl := range clients[2*i : 2*i+2] {
					switch {
					case len(cl.names) == 0:
					case slices.Contains(cl.names, n) && len(cl.names) > 1 && drop:
						cl.asks(t, nil, []string{n})
					default:
						cl.asks(t, []string{n}, nil)
					}
				}
			},
			"leaves": func(t *rapid.T) {
				i := pair.Draw(t, "pair")
				for k := 2 * i; k < 2*i+2; k++ {
					clients[k].close()
					if k%2 == 1 {
						clients[k].st.server.lists = nameLists{} // it has not seen the list
					}
					clients[k] = newGroupClient(clients[k].st.server, clients[k].st.form, features...)
				}
			},
		})
		for _, cl := range clients {
			cl.reads(t, false)
		}
		for i := 0; i < len(clients); i += 2 {
			one, alone := clients[i], clients[i+1]
			if !maps.Equal(one.has, alone.has) || !maps.Equal(one.errors, alone.errors) {
				t.Errorf("%s: one of a group has\n%v %v, and one that is alone\n%v %v", one.st.form, one.has, one.errors, alone.has, alone.errors)
			}
			for _, cl := range clients[i : i+2] {
				for h := range cl.st.server.InspectStream(cl.st.id).Held("") {
					if h.State == session.Failed || h.State == session.DoesNotExist { // the resource that it has rejected is not known any more
						delete(cl.rejects, h.Name)
					}
				}
				for _, is := range cl.st.describe().Types {
					if want := len(cl.rejects) > 0 || cl.rejected; want != (is.NACK != nil) {
						t.Errorf("%s: a client rejects %v: %t, want %t", cl.st.form, cl.rejects, is.NACK != nil, want)
					}
				}
			}
			if len(one.names) == 0 {
				continue
			}
			if alone.shares() {
				t.Errorf("the one that is alone is in a group")
			}
			if one.shares() {
				shared++
			} else {
				apart++
			}
		}
	})
	if shared == 0 || apart == 0 {
		t.Errorf("%d clients were in a group at the end, and %d were not any more, want some of both", shared, apart)
	}
}

// TestVersionsOfAGroup: the version of a SotW response is that of a client that is alone, also
// when the origin gives the same content another version.
func TestVersionsOfAGroup(t *testing.T) {
	c := newTestCache(silentSource{}, 1000)
	defer c.Close()
	server, _ := newTestServer(c, DefaultMaxResponseBytes)
	names := []string{"a", "b", "c"}
	put := func(content string, o *cache.OriginVersion, names ...string) {
		u := cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType}
		for _, n := range names {
			u.Changes = append(u.Changes, cache.Change{Name: n, Resource: newTestResource(endpointType, n, "", content), Origin: o})
		}
		c.Apply(u)
	}
	come := func(form string) *groupClient {
		cl := newGroupClient(server, form)
		t.Cleanup(cl.close)
		cl.asks(t, names, nil)
		return cl
	}
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		come(form)
		for round := range 3 {
			first := cache.NewOriginVersion("s", fmt.Sprint("first", round))
			put("x", first, names...)
			for _, step := range []struct {
				what string
				do   func()
				want string // SotW: empty for a hash
			}{
				{"one version of all", func() {}, fmt.Sprint("first", round)},
				{"another version of the same", func() {
					first.Set("again")
					put("x", first, names...)
				}, "again"},
				{"one has another version", func() { put("x", cache.NewOriginVersion("s", "second"), "b") }, ""},
				{"one has none", func() { put("x", nil, "b") }, ""},
			} {
				step.do()
				member := come(form)
				if !member.shares() {
					t.Fatalf("%s: it is in no group", form)
				}
				alone := newGroupClient(func() *Server { s, _ := newTestServer(c, DefaultMaxResponseBytes); return s }(), form)
				alone.asks(t, names, nil)
				got, want := member.read(t).version, alone.read(t).version
				alone.close()
				if got != want {
					t.Errorf("%s, %s: the version is %q, and of one that is alone %q", form, step.what, got, want)
				}
				if form == sotwForm.name && step.want != "" && got != step.want {
					t.Errorf("%s: the version is %q, want %q", step.what, got, step.want)
				}
			}
		}
	}
}

// Of a list of names, a client is refused those that it may not have, also if others share the list
// who may have all of them; it does not matter who comes first.
func TestAClientThatIsDeniedANameIsInNoGroup(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		for _, before := range []string{"", "other"} { // what those who come before are denied
			t.Run(fmt.Sprintf("%s, the others are denied %q", form, before), func(t *testing.T) {
				c := newTestCache(silentSource{}, 1000)
				defer c.Close()
				server, _ := newTestServer(c, DefaultMaxResponseBytes)
				u := cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType}
				for _, name := range []string{"a", "b"} {
					u.Changes = append(u.Changes, cache.Change{Name: name, Resource: newTestResource(endpointType, name, "", name)})
				}
				come := func(denied string) *groupClient {
					cl := newGroupClient(server, form)
					t.Cleanup(cl.close)
					cl.node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{deniedField: structpb.NewStringValue(denied)}}
					cl.asks(t, []string{"a", "b"}, nil)
					c.Apply(u)
					cl.reads(t, false)
					return cl
				}
				for range 2 {
					for _, denied := range []string{before, before, "b"} {
						cl := come(denied)
						_, a := cl.has["a"]
						_, b := cl.has["b"]
						_, refused := cl.errors["b"]
						if want := denied != "b"; !a || b != want || refused == want {
							t.Errorf("denied %q: it has %v, and errors %v", denied, slices.Sorted(maps.Keys(cl.has)), cl.errors)
						}
					}
				}
				if cl := come(before); !cl.shares() {
					t.Error("who may have all names is in no group")
				}
			})
		}
	}
}

// TestCostOfComing: a client that asks for the same names as others costs the same when it
// comes, and when it goes, however many names there are.
func TestCostOfComing(t *testing.T) {
	skipUnderRace(t)
	const clients = 200
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			cost := func(n int) (mallocs, bytes uint64) {
				names := benchNames(n)
				synctest.Test(t, func(t *testing.T) {
					c := newCrowd(t)
					c.join(form, endpointType, names...)
					c.counted(func() cache.Update { return puts(endpointType, "v", values(n, 10, 0)...) })
					c.join(form, endpointType, names...)
					c.join(form, endpointType, names...)
					node := &corev3.Node{Id: "test"}
					request := encoded(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: endpointType, ResourceNamesSubscribe: names})
					if form == sotwForm.name {
						request = encoded(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: endpointType, ResourceNames: names})
					}
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					for range clients {
						st := c.server.open(&countingStream{codec: newCodec(0)}, nil, form, "")
						c.take(st, request)
						st.end()
						c.server.forget(st)
					}
					runtime.ReadMemStats(&after)
					mallocs, bytes = (after.Mallocs-before.Mallocs)/clients, (after.TotalAlloc-before.TotalAlloc)/clients
				})
				return mallocs, bytes
			}
			fewMallocs, fewBytes := cost(20)
			manyMallocs, manyBytes := cost(2000)
			t.Logf("with 20 names %d allocations and %d bytes, with 2000 names %d and %d", fewMallocs, fewBytes, manyMallocs, manyBytes)
			if manyMallocs > fewMallocs+5 || manyBytes > fewBytes+1<<10 {
				t.Errorf("with 20 names a client costs %d allocations and %d bytes, with 2000 names %d and %d, want the same", fewMallocs, fewBytes, manyMallocs, manyBytes)
			}
			if fewMallocs > allocsOfComing {
				t.Errorf("a client costs %d allocations, want at most %d", fewMallocs, allocsOfComing)
			}
		})
	}
}

// allocsOfComing is what a client costs that comes, is sent what there is, and goes.
const allocsOfComing = 14
