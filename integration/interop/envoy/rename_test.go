package envoy

// Clusters that are renamed under a route, again and again, while requests run.

import (
	"fmt"
	"testing"
	"time"
)

// Behind the relay the endpoints of the new Cluster take two steps where they take one without it, and the control
// plane's is the same. So near a control plane that is near, requests may fail for up to three times as long; far from
// it, the relay's step does not count. How many requests meet the gap after a push is chance: five more are allowed
// for each push.
func TestClustersAreRenamed(t *testing.T) {
	renames(t, 0, func(direct int) int { return 2*direct + 5*renameCount })
}

func TestClustersAreRenamedFarAway(t *testing.T) {
	renames(t, 50*time.Millisecond, func(direct int) int { return direct/4 + 5*renameCount })
}

// renameCount is how often the Cluster is renamed.
const renameCount = 20

// renames pushes a Cluster with another name, the route to it, and the end of the old one, all at once, and again
// when Envoy has followed. Connected directly, Envoy has the route before it has the new Cluster's endpoints, for as
// long as these take to come from the control plane: requests fail meanwhile.
func renames(t *testing.T, distance time.Duration, slack func(direct int) int) {
	play(t, scenario{
		// With streams of their own, types come in no order at all.
		forms:    aggregatedForms,
		distance: distance, slack: slack,
		// The response that brings a Cluster may have the one before, too.
		unversioned: severalNames,
		run: func(s *side) {
			backends := []*backend{s.backend("first"), s.backend("second")}
			name := func(i int) string { return fmt.Sprint("release-", i) }
			s.push(func(w world) { s.shop(w, name(0), backends[0]) })
			s.step("requests reach the backend", s.reaches(backends[0]))
			s.send()
			for i := 1; i <= renameCount; i++ {
				s.push(func(w world) {
					w.drop(name(i - 1))
					s.shop(w, name(i), backends[i%2])
				})
				s.await(fmt.Sprint("Envoy has followed ", i), all(s.reaches(backends[i%2]),
					s.counts(`^cluster_manager\.cluster_removed$`, float64(i))))
			}
			s.load.end()
			s.step("Envoy has the last one", s.shows(activeCluster, name(renameCount)))
		},
	})
}
