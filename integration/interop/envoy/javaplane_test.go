package envoy

// java-control-plane, in which all resources of a group of Nodes change at the same time. It answers a SotW request only
// if it has every name of it.

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

const javaPrograms peers.Java = "../java"

var prepareJava = sync.OnceValue(javaPrograms.Build)

// javaSource is a running java-control-plane.
type javaSource struct {
	*peers.JavaControlPlane
	plane *plane
	group string // of Envoy
}

// newJava starts java-control-plane, which does not serve yet.
func (p *plane) newJava() *javaSource {
	p.t.Helper()
	groups, group := peers.OneForAll, peers.OneForAll
	if p.kind == javaByID {
		groups, group = peers.OneByID, nodeID
	}
	hear := func(r peers.JavaRequest) {
		h := heard{typeURL: r.Type, names: append(r.Names, r.Subscribe...), node: r.Node}
		if r.Error != nil {
			h.nack = *r.Error
		}
		p.hear(h)
	}
	return &javaSource{JavaControlPlane: javaPrograms.StartControlPlane(p.t, "both", groups, hear), plane: p, group: group}
}

// publish implements source. It waits until all responses are answered: only then java-control-plane sends the next.
func (j *javaSource) publish(to world) {
	j.plane.t.Helper()
	peers.Eventually(j.plane.t, "the control plane has answers", j.Answered)
	var resources []proto.Message
	for _, named := range to {
		for _, r := range named {
			resources = append(resources, r)
		}
	}
	j.plane.version++
	j.Set(j.group, fmt.Sprint(j.plane.version), resources)
}

// withJava returns a scenario with java-control-plane.
func withJava(run func(*side)) scenario {
	return scenario{
		planes: []kind{javaOne, javaByID},
		forms:  aggregatedForms, // the program serves ADS
		// In delta, each process has other versions for the same resources. In SotW, Envoy shows the version of the
		// response that brought a Cluster, which had the renamed one, too.
		unversioned: func(form) bool { return true },
		// java-control-plane takes the group from each request. The relay sends the Node with each, and an Envoy that is
		// connected directly has to do so, too.
		bootstrap: func(s *side, bootstrap object) {
			if s.relay == nil {
				bootstrap["dynamic_resources"].(object)["ads_config"].(object)["set_node_on_first_message_only"] = false
			}
		},
		run: run,
	}
}

// Endpoints and Clusters of java-control-plane change, go, and come back.
func TestEnvoyFollowsJavaControlPlane(t *testing.T) {
	play(t, withJava(func(s *side) {
		first, second := s.backend("first"), s.backend("second")
		s.push(func(w world) {
			s.shop(w, "one", first)
			s.clusterWith(w, "other", first)
		})
		s.step("requests reach the first backend", s.reaches(first))
		s.step("Envoy is live", s.envoy.live)
		s.send()

		s.push(func(w world) { w.set("one", endpoints("one", second)) })
		s.step("requests reach other endpoints", s.reaches(second))

		s.push(func(w world) { w.drop("other") })
		s.step("a Cluster goes", s.lacks(activeCluster, "other"))
		s.push(func(w world) { w.set("one", endpoints("one", first)) })
		s.step("endpoints change without it", s.reaches(first))
		s.push(func(w world) { s.clusterWith(w, "other", first) })
		s.step("the Cluster comes back as it was", all(s.shows(activeCluster, "other"), s.hasHost("other", first)))
		s.push(func(w world) { w.set("other", endpoints("other", second)) })
		s.step("the Cluster's endpoints change", s.hasHost("other", second))
	}))
}

// A Cluster is renamed under a route, with its endpoints.
func TestJavaControlPlaneRenamesAClusterUnderItsRoute(t *testing.T) {
	sc := withJava(func(s *side) {
		first, second, third := s.backend("first"), s.backend("second"), s.backend("third")
		s.push(func(w world) { s.shop(w, "one", first) })
		s.step("requests reach the first backend", s.reaches(first))
		s.send()
		s.push(func(w world) {
			w.drop("one")
			s.shop(w, "two", second)
		})
		s.step("a Cluster has another name", all(s.reaches(second), s.lacks(activeCluster, "one")))
		s.push(func(w world) { w.set("two", endpoints("two", third)) })
		s.step("its endpoints change", s.reaches(third))
	})
	sc.planes = []kind{javaOne} // each Node has the same snapshot either way
	// Requests fail from the end of the old Cluster to the new route, directly and with SotW upstream. How many depends on
	// how long java-control-plane takes from its Clusters to its routes, in each run anew.
	sc.slack = func(int) int { return requestsPerSecond / 5 }
	play(t, sc)
}

// java-control-plane comes back without a Cluster. In delta it does not read initial_resource_versions, and says
// nothing of what is gone: an Envoy that is connected directly keeps the Cluster until it restarts itself.
func TestJavaControlPlaneRestartsWithLess(t *testing.T) {
	sc := withJava(func(s *side) {
		first, second, third := s.backend("first"), s.backend("second"), s.backend("third")
		s.push(func(w world) {
			s.shop(w, "one", first)
			s.clusterWith(w, "other", first)
		})
		s.step("requests reach the first backend", all(s.reaches(first), s.hasHost("other", first)))
		s.send()
		s.plane.stop()
		s.push(func(w world) {
			w.drop("other")
			w.set("one", endpoints("one", second))
		})
		s.plane.start()
		gone := func() error { return nil }
		if !s.form.delta {
			gone = s.lacks(activeCluster, "other")
		}
		s.step("the control plane is back with less", all(s.reaches(second), gone))
		s.push(func(w world) { w.set("one", endpoints("one", third)) })
		s.step("endpoints change after the restart", s.reaches(third))
	})
	// With SotW upstream, the relay knows that it is gone.
	sc.differs = func(_ row, line string) bool { return strings.HasPrefix(line, "- ") && strings.Contains(line, "other") }
	play(t, sc)
}
