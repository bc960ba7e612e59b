package integration

// Incidents of other systems (docs/incidents.md), repeated with clients that are connected to the
// control plane directly, and with the same clients behind a relay.

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// at returns a function that always returns the same address.
func at(address string) func() string { return func() string { return address } }

// withContent returns clusters with a content in the form that plainContent finds.
func withContent(from, to int, content string) []proto.Message {
	return clustersOf(from, to, "content-"+content)
}

// bothForms runs proxies of both forms.
func bothForms(t testing.TB, address func() string, program string, is proxyTemper) []*proxy {
	t.Helper()
	return append(startProxies(t, 1, delta, address, program+"-delta", is), startProxies(t, 1, sotw, address, program+"-sotw", is)...)
}

// TestIncidentAControlPlaneServesBeforeItHasRestored tests a control plane that serves after a restart before
// it has restored its resources. Clients that are connected directly lose the missing resources. Clients
// behind the relay keep them, and new clients receive all of them.
func TestIncidentAControlPlaneServesBeforeItHasRestored(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			const all, early = 60, 2
			cp := startControlPlane(t, delta, sotw)
			cp.set(withContent(0, all, "1")...)
			r := startRelay(t, relayTo(cp.address, string(upstream)))
			direct, relayed := bothForms(t, at(cp.address), "direct", proxyTemper{}), bothForms(t, at(r.address), "relayed", proxyTemper{})
			awaitEach(t, append(relayed, direct...), "has everything", holding(all))

			cp.stop()
			cp.remove(clusterType, namesOfAll(clustersOf(early, all, ""))...)
			cp.start()
			awaitEach(t, direct, "has only the control plane's resources", holding(early))
			r.awaitHeld(t, all-early)
			awaitEach(t, bothForms(t, at(cp.address), "directly-meanwhile", proxyTemper{}), "has only the control plane's resources", holding(early))
			relayed = append(relayed, bothForms(t, at(r.address), "relayed-meanwhile", proxyTemper{})...)
			awaitEach(t, relayed, "has everything", holding(all))

			cp.set(withContent(early, all, "1")...)
			r.awaitHeld(t, 0)
			cp.set(withContent(0, 1, "2")...)
			awaitEach(t, append(relayed, direct...), "has the next change", func(s *proxyState) bool { return len(s.holds) == all && s.holds["c0"] == "2" })
			mustHaveLost(t, relayed, 0)
			mustHaveLost(t, direct, all-early)
		})
	}
}

// TestIncidentARegistryComesBackWithATenth tests the loss of a machine with the control plane and the relay.
// The control plane comes back with a tenth of its resources. The relay has a store, and serves all of them.
func TestIncidentARegistryComesBackWithATenth(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			const all, tenth = 60, 6
			cp := startControlPlane(t, delta, sotw)
			cp.set(withContent(0, all, "1")...)
			relays := newRelays(t, storing(t, relayTo(cp.address, string(upstream)), ""))
			front := startBalancerTo(t, relays.address)
			direct, relayed := bothForms(t, at(cp.address), "direct", proxyTemper{}), bothForms(t, at(front.address), "relayed", proxyTemper{})
			awaitEach(t, append(relayed, direct...), "has everything", holding(all))
			relays.now.awaitStored(t, all+1)

			cp.stop()
			relays.replace()
			cp.remove(clusterType, namesOfAll(clustersOf(tenth, all, ""))...)
			cp.start()
			awaitEach(t, direct, "has only the control plane's resources", holding(tenth))
			relays.now.awaitHeld(t, all-tenth)
			awaitEach(t, bothForms(t, at(cp.address), "directly-meanwhile", proxyTemper{}), "has only the control plane's resources", holding(tenth))
			relayed = append(relayed, bothForms(t, at(front.address), "relayed-meanwhile", proxyTemper{})...)
			awaitEach(t, relayed, "has everything", holding(all))

			cp.set(withContent(tenth, all, "1")...)
			cp.set(withContent(0, 1, "2")...)
			awaitEach(t, append(relayed, direct...), "has the next change", func(s *proxyState) bool { return len(s.holds) == all && s.holds["c0"] == "2" })
			mustHaveLost(t, relayed, 0)
			mustHaveLost(t, direct, all-tenth)
		})
	}
}

// eachWay runs test with clients that are connected to a control plane directly, and with clients behind a
// relay with a rollout.
func eachWay(t *testing.T, rollout string, test func(t *testing.T, f form, cp *controlPlane, relay *relay, address func() string)) {
	inEachForm(t, func(t *testing.T, f form) {
		for _, way := range []string{"directly", "through the relay"} {
			t.Run(way, func(t *testing.T) {
				cp := startControlPlane(t, f)
				cp.set(withContent(0, 3, "1")...)
				if way == "directly" {
					test(t, f, cp, nil, at(cp.address))
					return
				}
				r := startRelay(t, rolledOut(cp.address, string(f), rollout))
				test(t, f, cp, r, at(r.address))
			})
		}
	})
}

// TestIncidentOnlyOneVersionRejectsAResource tests a resource that clients of an older version reject, and
// those of a newer version accept. Without the relay, all clients of the older version receive it, and one
// that starts later has no resources. Behind the relay, only one client of the older version receives it.
func TestIncidentOnlyOneVersionRejectsAResource(t *testing.T) {
	eachWay(t, "soak: 1h", func(t *testing.T, f form, cp *controlPlane, relay *relay, address func() string) {
		const olds, news = 4, 8
		old := startProxies(t, olds, f, address, "envoy-1.29", proxyTemper{rejects: "filter"})
		all := append(startProxies(t, news, f, address, "envoy-1.30", proxyTemper{}), old...)
		awaitEach(t, all, "has everything", holding(3))

		cp.set(withContent(0, 1, "filter")...)
		cp.await(t, "the control plane receives a NACK with a client's error message", nacked("no such filter: filter"))
		late := func() []*proxy {
			return startProxies(t, 1, f, address, "envoy-1.29-late", proxyTemper{rejects: "filter"})
		}
		if relay == nil {
			awaitEach(t, old, "rejects the resource", func(s *proxyState) bool { return s.nacks > 0 })
			awaitEach(t, late(), "starts and has no resources", func(s *proxyState) bool { return s.nacks > 0 && len(s.holds) == 0 })
			return
		}
		awaitEach(t, append(all, late()...), "has the accepted state", func(s *proxyState) bool { return len(s.holds) == 3 && s.holds["c0"] == "1" })
		if ids := sentTo(old, "filter"); len(ids) != 1 {
			t.Errorf("of the older version, %v received the resource, want only one client", ids)
		}
		if ids := sentTo(all, "filter"); len(ids) > 2 {
			t.Errorf("%v received the resource, want at most one client of each version", ids)
		}
	})
}

// TestIncidentAResourceKillsClientsWithoutANACK tests a resource that makes clients crash before they answer;
// their supervisors restart them. Clients that are connected directly all crash again and again. Behind the
// relay, only one client crashes, until the relay takes the change back.
func TestIncidentAResourceKillsClientsWithoutANACK(t *testing.T) {
	eachWay(t, "soak: 1h, deaths: 1", func(t *testing.T, f form, cp *controlPlane, relay *relay, address func() string) {
		const clients = 8
		all := startProxies(t, clients, f, address, "envoy", proxyTemper{diesOf: "deadly"})
		awaitEach(t, all, "has everything", holding(3))
		cp.set(withContent(0, 1, "deadly")...)
		if relay == nil {
			awaitEach(t, all, "crashes again after restarts", func(s *proxyState) bool { return s.deaths >= 3 })
			return
		}
		cp.await(t, "the control plane receives the news that a client died", nacked("died"))
		awaitEach(t, all, "has the accepted state", func(s *proxyState) bool { return len(s.holds) == 3 && s.holds["c0"] == "1" })
		if ids := sentTo(all, "deadly"); len(ids) != 1 || deathsOf(all) > 2 {
			t.Errorf("%v received the resource, and clients crashed %d times, want one client and at most 2 crashes", ids, deathsOf(all))
		}
	})
}

// TestIncidentAFileTriplesInSize tests a resource that grows beyond a limit of all clients, which makes them
// crash. Clients that are connected directly all crash. The relay sends the resource to no client before an
// operator approves it, and passes on all other changes.
func TestIncidentAFileTriplesInSize(t *testing.T) {
	eachWay(t, "soak: 100ms", func(t *testing.T, f form, cp *controlPlane, relay *relay, address func() string) {
		const clients, size = 8, 20_000
		normal, large := strings.Repeat("f", size), strings.Repeat("f", 3*size+1000)
		cp.set(withContent(0, 1, normal)...)
		all := startProxies(t, clients, f, address, "envoy", proxyTemper{most: 2 * size})
		awaitEach(t, all, "has everything", holding(3))
		cp.set(withContent(0, 1, large)...)
		if relay == nil {
			awaitEach(t, all, "crashes again after restarts", func(s *proxyState) bool { return s.deaths >= 3 })
			return
		}
		eventually(t, "the rollout's status says that the resource has grown", func() error { return rolloutShows(relay, "has grown") })
		cp.set(withContent(1, 2, "2")...)
		awaitEach(t, all, "has another change", holdingContent("c1", "2"))
		cp.set(withContent(0, 1, normal+"g")...)
		awaitEach(t, all, "has the resource in its normal size", holdingContent("c0", normal+"g"))
		if n := deathsOf(all); n > 0 {
			t.Errorf("clients crashed %d times, want 0", n)
		}
	})
}

// TestIncidentAFileOfADirectoryTriplesInSize is the same for a relay that serves a directory.
func TestIncidentAFileOfADirectoryTriplesInSize(t *testing.T) {
	t.Parallel()
	const clients, size = 4, 20_000
	normal, large := strings.Repeat("f", size), strings.Repeat("f", 3*size+1000)
	dir := t.TempDir()
	writeResources(t, dir, "features.json", withContent(0, 1, normal)...)
	writeResources(t, dir, "others.json", withContent(1, 3, "1")...)
	config := strings.Replace(fromDirectory(dir), "    directory:", "    rollout: {soak: 100ms}\n    directory:", 1)
	r := startRelay(t, config+"old_style_names: [{authority: files.example.com}]\n")
	all := startProxies(t, clients, delta, at(r.address), "envoy", proxyTemper{most: 2 * size})
	awaitEach(t, all, "has everything", holding(3))
	writeResources(t, dir, "features.json", withContent(0, 1, large)...)
	eventually(t, "the rollout's status says that the resource has grown", func() error { return rolloutShows(r, "has grown") })
	writeResources(t, dir, "others.json", withContent(1, 3, "2")...)
	awaitEach(t, all, "has another change", holdingContent("c1", "2"))
	if n := deathsOf(all); n > 0 {
		t.Errorf("clients crashed %d times, want 0", n)
	}
}

// rolloutShows returns an error unless the status of the rollouts contains words.
func rolloutShows(r *relay, words string) error {
	out, err := command("rollout", "status", "--admin", r.admin).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if !strings.Contains(string(out), words) {
		return fmt.Errorf("the status is\n%s", out)
	}
	return nil
}
