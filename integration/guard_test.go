package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
)

// guarding returns a configuration with another guard.
func guarding(config, guard string) string {
	return strings.Replace(config, "    servers:\n", "    guard: "+guard+"\n    servers:\n", 1)
}

// clustersOf returns clusters with those numbers, which have a content.
func clustersOf(from, to int, content string) (all []proto.Message) {
	for i := from; i < to; i++ {
		all = append(all, plainCluster("c"+strconv.Itoa(i), content))
	}
	return all
}

func namesOfAll(resources []proto.Message) (names []string) {
	for _, r := range resources {
		names = append(names, nameOf(r))
	}
	return names
}

// everything subscribes clients of both forms to all clusters.
func everything(t testing.TB, r *relay, id string, has ...proto.Message) (clients []*client) {
	t.Helper()
	for _, f := range []form{delta, sotw} {
		c := newClient(t, r, f, node(id+"-"+string(f), ""))
		c.subscribe(clusterType, wildcard)
		c.awaitHas(t, "all clusters", has...)
		clients = append(clients, c)
	}
	return clients
}

// mustKeep fails the test if a client has learned that a cluster is gone.
func (c *client) mustKeep(t testing.TB) {
	t.Helper()
	c.mustLive(t)
	c.read(func(v *view) {
		for _, name := range v.received(clusterType, 0) {
			if strings.HasPrefix(name, "-") {
				t.Errorf("the %s client learned that %s is gone", c.form, name[1:])
			}
		}
	})
}

const heldMembers = "xds_relay_guard_held_members"

// awaitHeld waits until the guard holds that many members.
func (r *relay) awaitHeld(t testing.TB, want int) {
	t.Helper()
	r.awaitMetric(t, heldMembers, func(n float64) bool { return n == float64(want) })
}

// TestAControlPlaneThatComesBackWithATenth checks that clients keep the resources that a control plane
// has lost while it was away, receive changes, and receive nothing when it has all resources again.
func TestAControlPlaneThatComesBackWithATenth(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			const all, tenth = 50, 5
			cp := startControlPlane(t, upstream)
			cp.set(clustersOf(0, all, "1")...)
			r := startRelay(t, relayTo(cp.address, string(upstream)))
			clients := everything(t, r, "before", clustersOf(0, all, "1")...)

			cp.stop()
			cp.remove(clusterType, namesOfAll(clustersOf(tenth, all, ""))...)
			cp.set(plainCluster("c0", "2"), plainCluster("new", "1"))
			cp.start()
			now := append(clustersOf(1, all, "1"), plainCluster("c0", "2"), plainCluster("new", "1"))
			for _, c := range clients {
				c.awaitHas(t, "what has changed, and all the rest", now...)
			}
			r.awaitHeld(t, all-tenth)
			clients = append(clients, everything(t, r, "meanwhile", now...)...)
			r.awaitLog(t, `level=WARN msg="the guard holds members.*set=\* members=(45) of=50`)
			r.mustShow(t, "/authorities", `"members": 45`)

			// It names half of them again, and then the others.
			marks := make([]int, len(clients))
			for i, c := range clients {
				marks[i] = c.mark()
			}
			const half = 25
			cp.set(clustersOf(tenth, half, "1")...)
			r.awaitHeld(t, all-half)
			cp.set(clustersOf(half, all, "1")...)
			r.awaitHeld(t, 0)
			// What comes next is the next change, so nothing else was sent.
			cp.set(plainCluster("c7", "3"))
			for i, c := range clients {
				c.awaitHas(t, "the next change", plainCluster("c7", "3"))
				c.mustKeep(t)
				c.read(func(v *view) {
					if got := v.received(clusterType, marks[i]); c.form == delta && !slices.Equal(got, []string{"c7"}) {
						t.Errorf("the delta client was sent %v, want c7 alone", got)
					}
				})
			}
			if n := r.metric(t, "xds_relay_guard_restored_total"); n != all-tenth {
				t.Errorf("%v members count as restored, want %d", n, all-tenth)
			}

			// Later removals take effect at once, however many they are.
			cp.remove(clusterType, namesOfAll(clustersOf(0, all, ""))...)
			for _, c := range clients {
				c.await(t, "all but one cluster is gone", func(v *view) bool { return slices.Equal(v.names(clusterType), []string{"new"}) })
			}
		})
	}
}

// TestAControlPlaneThatComesBackEmpty checks that the last members of a set stay as long as the guard
// holds them, however few they are and however often the control plane comes back; and that they go then.
func TestAControlPlaneThatComesBackEmpty(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			const hold = 30 * time.Second // in which three control planes and two clients start
			few := clustersOf(0, 3, "1")
			cp := newKillable(t)
			cp.start(few...)
			r := startRelay(t, guarding(failoverTo(upstream, "{}", cp), "{hold: "+hold.String()+"}"))
			clients := everything(t, r, "before", few...)

			cp.kill()
			empty := time.Now()
			cp.start()
			r.awaitHeld(t, len(few))
			for range 2 {
				cp.kill()
				cp.start()
			}
			clients = append(clients, everything(t, r, "meanwhile", few...)...)
			for _, c := range clients {
				c.await(t, "all is gone", func(v *view) bool { return len(v.names(clusterType)) == 0 })
				c.mustLive(t)
			}
			if took := time.Since(empty); took < hold {
				t.Errorf("clients have lost everything after %v, want %v at least", took, hold)
			}
			r.awaitHeld(t, 0)
			if n := r.metric(t, "xds_relay_guard_holds_total"); n != float64(len(few)) {
				t.Errorf("%v members were held, want each once", n)
			}
			cp.kill()
			cp.start(few...)
			for _, c := range clients {
				c.awaitHas(t, "what comes after that", few...)
			}
		})
	}
}

// TestAServerThatTakesOverWithATenth checks that clients keep what the next server does not have, and
// what the first one does not have when it is back.
func TestAServerThatTakesOverWithATenth(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("upstream %s, shared versions %t", upstream, shared), func(t *testing.T) {
				t.Parallel()
				const all, tenth = 30, 3
				first, second := newKillable(t), newKillable(t)
				first.start(clustersOf(0, all, "1")...)
				second.start(append(clustersOf(0, tenth, "1"), plainEndpoints("late", 1))...)
				r := startRelay(t, failoverTo(upstream, fmt.Sprintf("{hysteresis: 1ms, shared_versions: %t}", shared), first, second))
				clients := everything(t, r, "before", clustersOf(0, all, "1")...)
				first.kill()
				late := newClient(t, r, delta, node("late", ""))
				late.subscribe(endpointType, "late")
				late.awaitHas(t, "what only the second server has", plainEndpoints("late", 1))
				r.awaitHeld(t, all-tenth)
				clients = append(clients, everything(t, r, "meanwhile", clustersOf(0, all, "1")...)...)
				first.start(append(clustersOf(0, all-1, "1"), plainCluster("new", "1"))...)
				for _, c := range clients {
					c.awaitHas(t, "what the first server has now", append(clustersOf(0, all-1, "1"), plainCluster("new", "1"))...)
				}
				r.awaitMetric(t, heldMembers, func(n float64) bool { return n <= 1 })
				for _, c := range clients {
					c.read(func(v *view) {
						for _, name := range v.received(clusterType, 0) {
							if strings.HasPrefix(name, "-") && name != "-c"+strconv.Itoa(all-1) {
								t.Errorf("the %s client learned that %s is gone", c.form, name[1:])
							}
						}
					})
				}
			})
		}
	}
}

// TestAFolderThatIsEmptied checks that clients keep what was in a directory, also if it was emptied
// file by file, until it is there again.
func TestAFolderThatIsEmptied(t *testing.T) {
	t.Parallel()
	const files = 20
	dir := t.TempDir()
	file := func(i int) string { return "c" + strconv.Itoa(i) + ".json" }
	fill := func() {
		for i := range files {
			writeResources(t, dir, file(i), clustersOf(i, i+1, "1")...)
		}
	}
	fill()
	config := strings.Replace(fromDirectory(dir), "    directory:", "    guard: {hold: 1h}\n    directory:", 1)
	r := startRelay(t, config+"old_style_names: [{authority: files.example.com}]\n")
	clients := everything(t, r, "before", clustersOf(0, files, "1")...)
	for i := range files {
		if err := os.Remove(filepath.Join(dir, file(i))); err != nil {
			t.Fatal(err)
		}
	}
	writeResources(t, dir, "new.json", plainCluster("new", "1"))
	for _, c := range clients { // the relay has seen then that all others are gone
		c.awaitHas(t, "the file that came last", plainCluster("new", "1"))
	}
	// Those that were the first to go may be too few for the guard, if the relay has seen that.
	r.awaitMetric(t, heldMembers, func(n float64) bool { return n > files/2 })
	held := int(r.metric(t, heldMembers))
	for _, c := range clients {
		c.await(t, "it has what is held, and what is new", func(v *view) bool { return len(v.names(clusterType)) == held+1 })
	}
	fill()
	r.awaitHeld(t, 0)
	for _, c := range clients {
		c.awaitHas(t, "all clusters", clustersOf(0, files, "1")...)
	}
}

// TestARelayThatRestartsBeforeAControlPlaneWithATenth checks that a relay with a store knows what there
// was before, and that clients are not sent the tenth alone.
func TestARelayThatRestartsBeforeAControlPlaneWithATenth(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			const all, tenth = 50, 5
			cp := startControlPlane(t, upstream)
			cp.set(clustersOf(0, all, "1")...)
			config := storing(t, relayTo(cp.address, string(upstream)), "")
			r := startRelay(t, config)
			everything(t, r, "before", clustersOf(0, all, "1")...)
			r.awaitStored(t, all+1)
			r.kill(t)

			cp.remove(clusterType, namesOfAll(clustersOf(tenth, all, ""))...)
			cp.set(plainCluster("c0", "2"))
			r = startRelay(t, config)
			now := append(clustersOf(1, all, "1"), plainCluster("c0", "2"))
			clients := everything(t, r, "after", now...)
			r.awaitHeld(t, all-tenth)
			for _, c := range clients {
				c.mustKeep(t)
			}
			// And once more: what was held is still stored.
			r.awaitMetric(t, "xds_relay_store_pending", func(n float64) bool { return n == 0 })
			r.kill(t)
			r = startRelay(t, config)
			everything(t, r, "again", now...)
			r.awaitHeld(t, all-tenth)
			cp.set(clustersOf(tenth, all, "1")...)
			r.awaitHeld(t, 0)
		})
	}
}
