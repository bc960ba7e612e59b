package envoy

// Clusters that are renamed under a route, again and again, while requests run.

import (
	"fmt"
	"testing"
	"time"
)

// Connected directly, Envoy has the route before it has the new Cluster's endpoints, for as long as these take to come
// from the control plane: requests fail meanwhile. The relay sends the route when Envoy has acknowledged the Cluster,
// and no request fails. On a machine where Envoy takes a second for that, the relay waits no longer.
func TestClustersAreRenamed(t *testing.T) { renames(t, 0) }

func TestClustersAreRenamedFarAway(t *testing.T) { renames(t, 50*time.Millisecond) }

// renameCount is how often the Cluster is renamed.
const renameCount = 20

// renames pushes a Cluster with another name, the route to it, and the end of the old one, all at once, and again
// when Envoy has followed.
func renames(t *testing.T, distance time.Duration) {
	play(t, scenario{
		// With streams of their own, types come in no order at all.
		forms:    aggregatedForms,
		distance: distance,
		slack:    func(direct int) int { return direct/10 - direct },
		// Envoy shows the version of the response that brought a Cluster, which had the old one, too.
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
