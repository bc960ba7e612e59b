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

// guarding returns the configuration with this guard for its authority.
func guarding(config, guard string) string {
	return strings.Replace(config, "    servers:\n", "    guard: "+guard+"\n    servers:\n", 1)
}

// clustersOf returns the clusters c<from> to c<to-1> with a content.
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

// everything connects a client of each form that subscribes to all clusters, and waits until they hold has.
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

// mustKeep fails the test if a client has received the removal of a cluster.
func (c *client) mustKeep(t testing.TB) {
	t.Helper()
	c.mustLive(t)
	c.read(func(v *view) {
		for _, name := range v.received(clusterType, 0) {
			if strings.HasPrefix(name, "-") {
				t.Errorf("the %s client received the removal of %s", c.form, name[1:])
			}
		}
	})
}

const heldMembers = "xds_relay_guard_held_members"

// awaitHeld waits until the guard holds want members.
func (r *relay) awaitHeld(t testing.TB, want int) {
	t.Helper()
	r.awaitMetric(t, heldMembers, func(n float64) bool { return n == float64(want) })
}

// TestAControlPlaneThatComesBackWithATenth checks that clients keep the resources that a control plane has
// lost in an outage, and receive its changes. When the control plane restores the resources, clients receive
// nothing.
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
				c.awaitHas(t, "the changed clusters and all others", now...)
			}
			r.awaitHeld(t, all-tenth)
			clients = append(clients, everything(t, r, "meanwhile", now...)...)
			r.awaitLog(t, `level=WARN msg="the guard holds members.*set=\* members=(45) of=50`)
			r.mustShow(t, "/authorities", `"members": 45`)

			// The control plane restores half of the lost clusters, and then the others.
			marks := make([]int, len(clients))
			for i, c := range clients {
				marks[i] = c.mark()
			}
			const half = 25
			cp.set(clustersOf(tenth, half, "1")...)
			r.awaitHeld(t, all-half)
			cp.set(clustersOf(half, all, "1")...)
			r.awaitHeld(t, 0)
			// The next cluster that a client receives is the next change, so the relay has sent nothing else.
			cp.set(plainCluster("c7", "3"))
			for i, c := range clients {
				c.awaitHas(t, "the next change", plainCluster("c7", "3"))
				c.mustKeep(t)
				c.read(func(v *view) {
					if got := v.received(clusterType, marks[i]); c.form == delta && !slices.Equal(got, []string{"c7"}) {
						t.Errorf("the delta client received %v, want only c7", got)
					}
				})
			}
			if n := r.metric(t, "xds_relay_guard_restored_total"); n != all-tenth {
				t.Errorf("the metrics count %v restored members, want %d", n, all-tenth)
			}

			// Removals on an established stream take effect at once, whatever their number.
			cp.remove(clusterType, namesOfAll(clustersOf(0, all, ""))...)
			for _, c := range clients {
				c.await(t, "the client holds only one cluster", func(v *view) bool { return slices.Equal(v.names(clusterType), []string{"new"}) })
			}
		})
	}
}

// TestAControlPlaneThatComesBackEmpty checks that the guard holds even the few members of a small set, for
// the configured time, however often the control plane restarts, and removes them after that.
func TestAControlPlaneThatComesBackEmpty(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			const hold = 30 * time.Second // long enough to start three control planes and two clients
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
				c.await(t, "the client has lost all clusters", func(v *view) bool { return len(v.names(clusterType)) == 0 })
				c.mustLive(t)
			}
			if took := time.Since(empty); took < hold {
				t.Errorf("clients lost all clusters after %v, want at least %v", took, hold)
			}
			r.awaitHeld(t, 0)
			if n := r.metric(t, "xds_relay_guard_holds_total"); n != float64(len(few)) {
				t.Errorf("the guard held %v members, want each once", n)
			}
			cp.kill()
			cp.start(few...)
			for _, c := range clients {
				c.awaitHas(t, "the restored clusters", few...)
			}
		})
	}
}

// TestAServerThatTakesOverWithATenth checks that clients keep the clusters that the next server lacks, and
// also those that the first server lacks when it is active again.
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
				late.awaitHas(t, "the endpoints that only the second server has", plainEndpoints("late", 1))
				r.awaitHeld(t, all-tenth)
				clients = append(clients, everything(t, r, "meanwhile", clustersOf(0, all, "1")...)...)
				first.start(append(clustersOf(0, all-1, "1"), plainCluster("new", "1"))...)
				for _, c := range clients {
					c.awaitHas(t, "the first server's new clusters", append(clustersOf(0, all-1, "1"), plainCluster("new", "1"))...)
				}
				r.awaitMetric(t, heldMembers, func(n float64) bool { return n <= 1 })
				for _, c := range clients {
					c.read(func(v *view) {
						for _, name := range v.received(clusterType, 0) {
							if strings.HasPrefix(name, "-") && name != "-c"+strconv.Itoa(all-1) {
								t.Errorf("the %s client received the removal of %s", c.form, name[1:])
							}
						}
					})
				}
			})
		}
	}
}

// TestAFolderThatIsEmptied checks that clients keep the resources of a directory that is emptied, even file
// by file, until the files are back.
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
	for _, c := range clients { // by then the relay has noticed that all other files are gone
		c.awaitHas(t, "the cluster of the newest file", plainCluster("new", "1"))
	}
	// If the relay noticed the first removals alone, they may have been too few for the guard to hold them.
	r.awaitMetric(t, heldMembers, func(n float64) bool { return n > files/2 })
	held := int(r.metric(t, heldMembers))
	for _, c := range clients {
		c.await(t, "the client has the held clusters and the new one", func(v *view) bool { return len(v.names(clusterType)) == held+1 })
	}
	fill()
	r.awaitHeld(t, 0)
	for _, c := range clients {
		c.awaitHas(t, "all clusters", clustersOf(0, files, "1")...)
	}
}

// TestARelayThatRestartsBeforeAControlPlaneWithATenth checks that a relay with a store compares the control
// plane's first answer with the stored resources, and holds those that the control plane has lost.
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
			// After another restart, the store still has the held clusters.
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
