package downstream

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/costs"
)

// What one client may have any number of: with twice as many of it there is twice the work,
// and not four times.

// workCrowd is a crowd whose clients' responses are small.
func workCrowd(t *testing.T) *crowd {
	c := newTestCache(silentSource{}, 1<<20)
	t.Cleanup(c.Close)
	return &crowd{t: t, cache: c, server: NewServer(c, newClusterNames, Options{MaxResponseBytes: 16 << 10, Log: slog.New(slog.DiscardHandler)})}
}

const workType = "xdstp://" + knownAuthority + "/envoy.config.endpoint.v3.ClusterLoadAssignment/"

func workNames(format string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(workType+format, i)
	}
	return names
}

// put gives names a version, also in the globs that they are in.
func (c *crowd) put(version string, names ...string) {
	u := cache.Update{Scope: cache.Scope{Authority: knownAuthority}, TypeURL: endpointType}
	sets := map[string]*cache.SetUpdate{}
	for _, name := range names {
		change := cache.Change{Name: name, Gone: version == ""}
		if version != "" {
			change.Resource = newTestResource(endpointType, name, version, version)
		}
		u.Changes = append(u.Changes, change)
		glob := globIn(name)
		if sets[glob] == nil {
			sets[glob] = &cache.SetUpdate{Name: glob}
		}
		sets[glob].Changes = append(sets[glob].Changes, change)
	}
	for _, set := range sets {
		u.Sets = append(u.Sets, *set)
	}
	c.cache.Apply(u)
	synctest.Wait()
}

// ask has a delta client ask for names, or give them up.
func (c *crowd) ask(st *stream, subscribe, unsubscribe []string) {
	c.take(st, encoded(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: subscribe, ResourceNamesUnsubscribe: unsubscribe}))
}

func inWorkBubble(t *testing.T, n int, work func(c *crowd, n int)) {
	costs.Linear(t, n, func(t *testing.T, n int) {
		synctest.Test(t, func(t *testing.T) { work(workCrowd(t), n) })
	})
}

// Names, and as many globs that contain them, subscribed to and unsubscribed from one after another.
func TestWorkOfNamesAndGlobsInDelta(t *testing.T) {
	inWorkBubble(t, 200, func(c *crowd, n int) {
		names, globs := workNames("dir/%d/x", n), workNames("dir/%d/*", n)
		st := c.join(deltaForm.name, endpointType, names...)
		c.put("1", names...)
		for _, glob := range globs {
			c.ask(st, []string{glob}, nil)
		}
		for _, name := range names {
			c.put("2", name)
		}
		for i := range n {
			c.ask(st, nil, []string{names[i]})
		}
		for i := range n {
			c.ask(st, nil, []string{globs[i]})
		}
	})
}

// The same for a client that is sent full states, all at once.
func TestWorkOfNamesAndGlobsInSotW(t *testing.T) {
	inWorkBubble(t, 200, func(c *crowd, n int) {
		names, globs := workNames("dir/%d/x", n), workNames("dir/%d/*", n)
		st := c.join(sotwForm.name, endpointType, append(names, globs...)...)
		c.put("1", names...)
		c.put("2", names...)
		last := st.nonces
		c.take(st, encoded(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResponseNonce: fmt.Sprint(last), ResourceNames: names[:1]}))
	})
}

// Removals are sent in responses each of which has room for few.
func TestWorkOfRemovals(t *testing.T) {
	long := strings.Repeat("x", 1000)
	inWorkBubble(t, 1000, func(c *crowd, n int) {
		names := workNames("dir/"+long+"%d", n)
		c.join(deltaForm.name, endpointType, names...)
		c.put("1", names...)
		c.put("", names...)
	})
}

// Names that a glob gives as well, and from all of which the client unsubscribes.
func TestWorkOfNamesLeftToAGlob(t *testing.T) {
	long := strings.Repeat("x", 1000)
	inWorkBubble(t, 1000, func(c *crowd, n int) {
		names := workNames("dir/"+long+"%d", n)
		st := c.join(deltaForm.name, endpointType, append(names, workType+"dir/*")...)
		c.put("1", names...)
		c.ask(st, nil, names)
	})
}

// One glob in many spellings.
func TestWorkOfSpellings(t *testing.T) {
	spellings := func(n int) (names []string) {
		for i := range n {
			var s strings.Builder
			for bit := range 14 {
				if i>>bit&1 == 1 {
					s.WriteString("%61")
				} else {
					s.WriteString("a")
				}
			}
			names = append(names, workType+s.String()+"/*")
		}
		return names
	}
	t.Run("delta", func(t *testing.T) {
		inWorkBubble(t, 400, func(c *crowd, n int) {
			st := c.join(deltaForm.name, endpointType, spellings(n)...)
			for _, name := range spellings(n) {
				c.ask(st, nil, []string{name})
			}
		})
	})
	t.Run("sotw", func(t *testing.T) {
		inWorkBubble(t, 400, func(c *crowd, n int) {
			st := c.join(sotwForm.name, endpointType, spellings(n)...)
			c.put("1", workType+strings.Repeat("a", 14)+"/x")
			c.take(st, encoded(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResponseNonce: fmt.Sprint(st.nonces)}))
		})
	})
}

// A client that reconnects with the versions of what it holds, by name and by globs.
func TestWorkOfResumingClients(t *testing.T) {
	inWorkBubble(t, 400, func(c *crowd, n int) {
		names, globs := workNames("dir/%d/x", n), workNames("dir/%d/*", n)
		first := c.join(deltaForm.name, endpointType, append(names, globs...)...)
		c.put("1", names...)
		first.end()
		versions := map[string]string{}
		for i, name := range names {
			versions[name] = fmt.Sprint(i % 2)
		}
		g := &countingStream{codec: newCodec(0)}
		st := c.server.open(g, nil, deltaForm.name, "")
		c.take(st, encoded(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: append(names, globs...), InitialResourceVersions: versions}))
		if g.messages == 0 {
			c.t.Error("the client is sent nothing")
		}
		st.end()
		c.server.forget(st)
	})
}

// A client that rejects everything.
func TestWorkOfRejections(t *testing.T) {
	inWorkBubble(t, 200, func(c *crowd, n int) {
		name := workType + "x"
		st := c.join(deltaForm.name, endpointType, name)
		for i := range n {
			c.put(fmt.Sprint(i), name)
			c.take(st, encoded(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: fmt.Sprint(st.nonces), ErrorDetail: &statuspb.Status{Code: 3, Message: "no"}}))
		}
	})
}
