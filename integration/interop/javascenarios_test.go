package interop

// java-control-plane under gRPC's clients: names, clusters and the control plane itself come and go.

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// javaLane is a lane whose control plane is java-control-plane, which can be replaced.
type javaLane struct {
	*lane
	plane *javaControlPlane
	gate  *gate // in front of the control plane
	start func() *javaControlPlane
}

// openJavaLane opens a lane with a shop that the client has reached.
func openJavaLane(t testing.TB, w way, c grpcClient, groups string, backends []*backend) *javaLane {
	t.Helper()
	l := &javaLane{start: func() *javaControlPlane { return newJavaControlPlane(t, w.form, groups) }}
	l.plane = l.start()
	l.gate = newGate(t, l.plane.address)
	l.gate.turn(true)
	address := l.gate.address
	if w.relayed {
		address = startRelay(t, address).address
	}
	l.lane = &lane{scene: newScene(t, l.plane), way: w, backends: backends, client: c.dial(t, bootstrap(t, address))}
	l.stock("shop", backends[0])
	l.push()
	l.await("shop", backends[0])
	return l
}

// push makes the control plane have the resources of the scene, when all its responses have been answered: only
// then it sends the next.
func (l *javaLane) push() {
	l.t.Helper()
	eventually(l.t, "the control plane has answers", l.plane.Answered)
	l.scene.push()
}

// restart kills the control plane, and starts another with the resources of the scene.
func (l *javaLane) restart() {
	l.t.Helper()
	version := l.plane.version
	l.gate.turn(false)
	l.plane.End(l.t, syscall.SIGKILL)
	l.plane = l.start()
	l.plane.version = version
	l.scene.turn = l.plane.turn
	l.push()
	l.gate.forwardTo(l.plane.address)
	l.gate.turn(true)
}

// javaScenarios are what works with java-control-plane directly.
var javaScenarios = []struct {
	name string
	run  func(*javaLane) time.Duration
}{
	{"a shop comes", func(l *javaLane) time.Duration {
		l.stock("comes", l.backends[0])
		l.push()
		took := l.await("comes", l.backends[0])
		l.move("shop", "comes")
		return took
	}},
	{"a shop has come", func(l *javaLane) time.Duration {
		l.add("comes")
		return l.move("shop", "comes")
	}},
	{"a requested shop comes", func(l *javaLane) time.Duration {
		l.call("comes", noKey, 100*time.Millisecond)
		l.move("shop")
		l.stock("comes", l.backends[0])
		l.push()
		took := l.await("comes", l.backends[0])
		l.move("shop", "comes")
		return took
	}},
	{"a shop goes", func(l *javaLane) time.Duration {
		l.addAndLeave("goes")
		return l.move("shop")
	}},
	{"names linger", func(l *javaLane) time.Duration {
		l.addAndLeave("goes")
		l.clear("goes")
		l.push()
		return l.move("shop")
	}},
	{"names come back", func(l *javaLane) time.Duration {
		l.addAndLeave("goes")
		l.clear("goes")
		l.push()
		l.stock("goes", l.backends[2])
		l.push()
		took := l.await("goes", l.backends[2])
		l.move("shop", "goes")
		return took
	}},
	{"renamed cluster", func(l *javaLane) time.Duration {
		l.reroute("shop", "shop", "new", l.backends[1])
		l.push()
		took := l.await("shop", l.backends[1])
		l.reroute("shop", "new", "shop", l.backends[2])
		l.push()
		l.await("shop", l.backends[2])
		return took
	}},
	{"cluster comes back", func(l *javaLane) time.Duration {
		l.put(clusterType, "other", edsCluster("other"))
		l.place("other", l.backends[1])
		l.put(routeType, "shop", routesTo("shop", "other"))
		l.push()
		l.await("shop", l.backends[1])
		l.drop(clusterType, "shop")
		l.drop(endpointType, "shop")
		l.push()
		l.put(clusterType, "shop", edsCluster("shop"))
		l.place("shop", l.backends[2])
		l.push()
		l.put(routeType, "shop", routesTo("shop", "shop"))
		l.push()
		return l.await("shop", l.backends[2])
	}},
	{"restart", func(l *javaLane) time.Duration {
		l.place("shop", l.backends[1])
		l.restart()
		took := l.await("shop", l.backends[1])
		l.move("shop")
		return took
	}},
	{"restart with less than before", func(l *javaLane) time.Duration {
		l.addAndLeave("goes")
		l.clear("goes")
		l.place("shop", l.backends[2])
		l.restart()
		took := l.await("shop", l.backends[2])
		l.move("shop")
		return took
	}},
	{"restart with less than requested", func(l *javaLane) time.Duration {
		l.add("goes")
		l.clear("goes")
		l.place("shop", l.backends[2])
		l.restart()
		took := l.await("shop", l.backends[2])
		l.move("shop")
		return took
	}},
}

// add adds a shop that the client reaches, after another has changed.
func (l *javaLane) add(shop string) {
	l.t.Helper()
	l.stock(shop, l.backends[0])
	l.push()
	l.move("shop")
	l.await(shop, l.backends[0])
}

// addAndLeave adds a shop, closes its channel, and waits for the change of another shop.
func (l *javaLane) addAndLeave(shop string) {
	l.t.Helper()
	l.add(shop)
	l.leave(shop)
	l.move("shop")
}

// move moves shops to another backend and back, and returns how long the last took.
func (l *javaLane) move(shops ...string) (took time.Duration) {
	l.t.Helper()
	for _, to := range l.backends[:2] {
		for _, s := range shops {
			l.place(s, to)
		}
		l.push()
		for _, s := range shops {
			took = l.await(s, to)
		}
	}
	return took
}

// reroute moves a shop from one cluster to another, in one snapshot.
func (l *lane) reroute(shop, from, to string, at *backend) {
	l.put(routeType, shop, routesTo(shop, to))
	l.drop(clusterType, from)
	l.drop(endpointType, from)
	l.put(clusterType, to, edsCluster(to))
	l.place(to, at)
}

// TestJavaControlPlane checks that gRPC's clients follow java-control-plane through the relay at least as well as
// directly.
func TestJavaControlPlane(t *testing.T) {
	for _, tt := range []struct {
		groups string
		client grpcClient
		on     []way
	}{
		{peers.OneForAll, grpcClients[0], ways},
		{peers.OneByID, grpcClients[1], ways[1:]},
	} {
		t.Run(tt.groups+"/"+tt.client.name, func(t *testing.T) {
			t.Parallel()
			c := tt.client
			required(t, c.name, c.prepare)
			required(t, "java-control-plane", prepareJava)
			backends := []*backend{startBackend(t, "b0"), startBackend(t, "b1"), startBackend(t, "b2")}
			compare(t, "java-control-plane, group "+tt.groups, c.name, tt.on, func(t *testing.T, w way, record func(string, observation)) {
				for _, s := range javaScenarios {
					name := fmt.Sprintf("%s, %s", s.name, w.form)
					if !w.relayed {
						name = s.name + ", direct"
					}
					t.Run(s.name, func(t *testing.T) {
						l := openJavaLane(t, w, c, tt.groups, backends)
						var seen observation
						seen.known = known(t, name, func(t testing.TB) {
							l.scene.t = t
							seen.took = s.run(l)
						}) != ""
						record(s.name, seen)
					})
				}
			})
		})
	}
	comparisons.note("group "+peers.OneByID+", direct", "gRPC", "gRPC's clients send their Node with the first request of a stream alone, and java-control-plane takes the group from each request")
}
