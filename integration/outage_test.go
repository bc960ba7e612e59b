package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// TestControlPlaneMayGoAndComeBack checks that clients lose nothing in an outage of the control plane, and
// receive only changes when it is back.
func TestControlPlaneMayGoAndComeBack(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			cp := startControlPlane(t, upstream)
			before := []proto.Message{
				plainCluster("stays", "1"), plainCluster("changes", "1"), plainCluster("goes", "1"),
				plainEndpoints("at-stays", 1), plainEndpoints("at-changes", 1), plainEndpoints("at-goes", 1), plainEndpoints("at-last", 1),
			}
			cp.set(before...)
			r := startRelay(t, relayTo(cp.address, string(upstream)))
			open := func(f form, id string) *client {
				c := newClient(t, r, f, node(id, ""))
				c.subscribe(clusterType, wildcard)
				c.subscribe(endpointType, "at-stays", "at-changes", "at-goes", "at-last")
				return c
			}
			clients := []*client{open(delta, "old-delta"), open(sotw, "old-sotw")}
			for _, c := range clients {
				c.awaitHas(t, "all resources", before...)
			}

			cp.stop()
			cp.turnedAway.await(t, "the relay tries to connect again", func(n *int) bool { return *n > 0 })

			// The relay serves new clients from the cache. Connected clients keep all resources.
			clients = append(clients, open(delta, "new-delta"), open(sotw, "new-sotw"))
			for _, c := range clients {
				c.awaitHas(t, "all resources while the control plane is away", before...)
				c.mustLive(t)
			}
			// A client that requests a name for the first time receives an error, but not that the resource
			// does not exist. The stream stays open because the relay serves other resources on it.
			late := newClient(t, r, delta, node("late", ""))
			late.subscribe(endpointType, "at-late", "at-stays")
			late.await(t, "the late client receives an error", func(v *view) bool {
				return v.errors[topic{endpointType, "at-late"}] != ""
			})
			late.read(func(v *view) {
				if v.gone[topic{endpointType, "at-late"}] {
					t.Error("during the outage, the late client learned that the resource does not exist")
				}
			})

			marks := make([]int, len(clients))
			for i, c := range clients {
				marks[i] = c.mark()
			}

			// During the outage, the control plane's resources change.
			cp.set(plainCluster("changes", "2"), plainEndpoints("at-changes", 2), plainEndpoints("at-late", 1))
			cp.remove(clusterType, "goes")
			var goneEndpoints []string
			if upstream == delta { // in SotW, endpoints cannot be removed
				cp.remove(endpointType, "at-goes")
				goneEndpoints = []string{"-at-goes"}
			}
			sentBefore := look(cp.recorder, func(s *seen) int { return len(s.sent) })
			cp.start()
			after := []proto.Message{plainCluster("stays", "1"), plainCluster("changes", "2"), plainEndpoints("at-stays", 1), plainEndpoints("at-changes", 2)}
			for _, c := range clients {
				c.awaitHas(t, "the changed resources", after...)
				c.await(t, fmt.Sprintf("the %s client receives the removals", c.form), func(v *view) bool {
					return v.gone[topic{clusterType, "goes"}] && (upstream == sotw || v.gone[topic{endpointType, "at-goes"}])
				})
			}
			late.awaitHas(t, "the endpoints that it got an error for", plainEndpoints("at-late", 1))
			// The next resources that a client receives are the next changes, so the relay has sent nothing
			// else.
			next := []proto.Message{plainCluster("comes", "1"), plainEndpoints("at-last", 2)}
			cp.set(next...)
			for i, c := range clients {
				c.awaitHas(t, "the next changes", next...)
				c.mustLive(t)
				c.read(func(v *view) {
					got, wantClusters := v.received(clusterType, marks[i]), []string{"-goes", "changes", "comes"}
					if c.form == sotw {
						// Each response has all clusters. There may be a response each for changes, removals
						// and new clusters.
						most := []string{"-goes", "changes", "changes", "changes", "comes", "goes", "stays", "stays", "stays"}
						least := []string{"-goes", "changes", "changes", "comes", "stays", "stays"}
						if wantClusters = most; len(got) == len(least) {
							wantClusters = least
						}
					}
					if !slices.Equal(got, wantClusters) {
						t.Errorf("client %d (%s) received the clusters %v, want %v", i, c.form, got, wantClusters)
					}
					wantEndpoints := slices.Concat(goneEndpoints, []string{"at-changes", "at-last"})
					if got := v.received(endpointType, marks[i]); !slices.Equal(got, wantEndpoints) {
						t.Errorf("client %d (%s) received the endpoints %v, want %v", i, c.form, got, wantEndpoints)
					}
				})
			}

			cp.read(func(s *seen) {
				stream := s.only()
				if stream == nil || s.opened != 2 {
					t.Fatalf("want one open stream, the second; the control plane has seen %s", s)
				}
				if upstream == sotw {
					return
				}
				// The relay sends the versions that it holds, so the control plane also sends only changes.
				for _, want := range []topic{{clusterType, "stays"}, {clusterType, "goes"}, {endpointType, "at-stays"}, {endpointType, "at-goes"}} {
					if stream.known[want] == "" {
						t.Errorf("the relay did not send the version of %v", want)
					}
				}
				for _, sent := range s.sent[sentBefore:] {
					if sent.name == "stays" || sent.name == "at-stays" {
						t.Errorf("the control plane sent %v again", sent)
					}
				}
			})
		})
	}
}

// TestAnOutageIsOneLineEachWay checks that the relay logs once that a control plane is lost and once that it
// answers again, whatever the number of partitions and failed attempts.
func TestAnOutageIsOneLineEachWay(t *testing.T) {
	cp := newKillable(t)
	cp.start(plainEndpoints("e", 1))
	r := startRelay(t, relayTo(cp.address, "auto")+"    partition: node.id\n")
	const partitions = 20
	var clients []*client
	for i := range partitions {
		c := newClient(t, r, delta, node(fmt.Sprint("node-", i), ""))
		c.subscribe(endpointType, "e")
		c.awaitHas(t, "the endpoints", plainEndpoints("e", 1))
		clients = append(clients, c)
	}
	cp.kill()
	r.awaitLog(t, `msg="control plane lost".* server=`+cp.address+` streams=(20) `)
	turnedAway := 0
	cp.turnedAway.read(func(n *int) { turnedAway = *n })
	cp.turnedAway.await(t, "more attempts fail", func(n *int) bool { return *n > turnedAway+2 })
	cp.start(plainEndpoints("e", 2))
	r.awaitLog(t, `level=INFO msg="control plane answers again".* server=`+cp.address+` .*away=(\S+)`)
	for _, c := range clients {
		c.awaitHas(t, "the changed endpoints", plainEndpoints("e", 2))
	}
	for _, line := range []string{"control plane lost", "control plane answers again"} {
		if n := strings.Count(r.stderr.String(), `msg="`+line+`"`); n != 1 {
			t.Errorf("the relay logged %q %d times, want 1", line, n)
		}
	}
}
