package integration

// Relays that are members of a fleet: they are one client of the control plane, and none of them is missed.

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
)

// member is a relay of a fleet, behind a port that the others know before it starts.
type member struct {
	*relay
	port *port
	gap  net.Listener
}

// startMembers starts a fleet of n relays in front of a control plane, and waits until each knows all others.
func startMembers(t testing.TB, n int, cp *controlPlane, more string) (members []*member) {
	t.Helper()
	var addresses []string
	for range n {
		p := openPort(t)
		members = append(members, &member{port: p})
		addresses = append(addresses, p.address)
	}
	for _, m := range members {
		m.start(t, cp, addresses, more)
	}
	for _, m := range members {
		for _, other := range members {
			if other != m {
				m.awaitLog(t, `a member of the fleet is there" peer=`+regexp.QuoteMeta(other.port.address))
			}
		}
	}
	return members
}

// start starts the relay.
func (m *member) start(t testing.TB, cp *controlPlane, members []string, more string) {
	t.Helper()
	m.relay = startRelay(t, strings.Replace(prelude, "the-relay", m.port.address, 1)+servedBy(cp.address, "delta")+fmt.Sprintf(`
fleet:
  name: edge
  members: {static: [%s]}
  listen: 127.0.0.1:0
  advertise: %s
%s`, `"`+strings.Join(members, `", "`)+`"`, m.port.address, more))
	to := m.awaitLog(t, `msg="serving other members of the fleet" address=(\S+)`)
	m.gap = m.port.listen()
	var passing sync.WaitGroup
	passing.Go(func() { passTo(&passing, m.gap, to) })
	t.Cleanup(func() {
		m.end(t)
		passing.Wait()
	})
}

// end kills the relay, if it is there, and closes its port's way to it.
func (m *member) end(t testing.TB) {
	t.Helper()
	_ = m.gap.Close()
	m.kill(t)
}

// passTo forwards the connections of a listener.
func passTo(passing *sync.WaitGroup, from net.Listener, to string) {
	for {
		in, err := from.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", to)
		if err != nil {
			_ = in.Close()
			continue
		}
		ends := func(to, from net.Conn) {
			_, _ = io.Copy(to, from) // until one side closes its connection
			_ = to.Close()
			_ = from.Close()
		}
		passing.Go(func() { ends(in, out) })
		passing.Go(func() { ends(out, in) })
	}
}

// byCluster is a rule that makes each cluster of nodes a partition.
const byCluster = `
old_style_names:
  - authority: cp.example.com
    partition: node.cluster
`

func partitionNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("zone-%d", i))
	}
	return names
}

// TestAFleetIsOneClientOfTheControlPlane: however many relays there are, the control plane has one stream for each
// partition, and one subscription for each name, and all clients get what it has.
func TestAFleetIsOneClientOfTheControlPlane(t *testing.T) {
	zones := partitionNames(12)
	for n := 1; n <= 3; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			cp := startPartitions(t, (*corev3.Node).GetCluster, zones, delta)
			for _, zone := range zones {
				cp.setIn(zone, plainCluster("front", zone), plainCluster("back", zone), plainEndpoints("front-"+zone, 1))
			}
			members := startMembers(t, n, cp, byCluster)
			var clients []*client
			for i, m := range members {
				for _, zone := range zones {
					for _, f := range []form{delta, sotw} {
						c := newClient(t, m.relay, f, node(fmt.Sprintf("%s-%d-%s", zone, i, f), zone))
						c.subscribe(clusterType, wildcard)
						c.subscribe(endpointType, "front-"+zone)
						clients = append(clients, c)
					}
				}
			}
			check := func(revision uint32) {
				for i, c := range clients {
					zone := zones[i/2%len(zones)]
					c.awaitHas(t, "the zone's resources", plainCluster("front", zone), plainCluster("back", zone), plainEndpoints("front-"+zone, revision))
				}
			}
			check(1)
			for _, zone := range zones {
				cp.setIn(zone, plainEndpoints("front-"+zone, 2))
			}
			check(2)
			cp.read(func(s *seen) {
				if s.opened != len(zones) || len(s.streams) != len(zones) {
					t.Errorf("want %d streams, one for each partition; the control plane has seen %s", len(zones), s)
				}
				for topic, times := range s.requested {
					want := 1
					if topic.name == wildcard {
						want = len(zones)
					}
					if times != want {
						t.Errorf("%v was requested %d times, want %d", topic, times, want)
					}
				}
				if n := len(s.sentOf(endpointType, 0)); n != 2*len(zones) {
					t.Errorf("%d endpoints were sent, want %d", n, 2*len(zones))
				}
			})
		})
	}
}

// revisions are the contents of one name that a client has received, in order.
type revisions struct {
	watched[[]int]
	zone string
}

var revisionText = regexp.MustCompile(`revision-(\d+);`)

// follow reads what a client receives, until the test ends.
func (r *revisions) follow(t testing.TB, c *client) {
	for {
		m, err := c.speak.receive()
		if err != nil {
			if t.Context().Err() == nil {
				t.Errorf("%s: the stream has ended: %v", r.zone, err)
			}
			return
		}
		for _, name := range m.removed {
			t.Errorf("%s: %s was removed", r.zone, name)
		}
		for _, e := range m.errors {
			t.Errorf("%s: an error: %v", r.zone, e)
		}
		for _, held := range m.resources {
			n, _ := strconv.Atoi(revisionText.FindStringSubmatch(held.value)[1])
			r.update(func(all *[]int) {
				if k := len(*all); k > 0 && (*all)[k-1] >= n {
					t.Errorf("%s: revision %d came after %v", r.zone, n, *all)
				}
				*all = append(*all, n)
			})
		}
		c.mu.Lock()
		_ = c.speak.ack(&m) // the next receive reports the error
		c.mu.Unlock()
	}
}

// TestNobodyMissesAMemberThatIsKilled: the clients of the others lose nothing and get nothing older, and their updates
// go on within 2 s.
func TestNobodyMissesAMemberThatIsKilled(t *testing.T) {
	t.Parallel()
	const most = 2 * time.Second
	zones := partitionNames(12)
	cp := startPartitions(t, (*corev3.Node).GetCluster, zones, delta)
	revision := 0
	next := func() {
		revision++
		for _, zone := range zones {
			cp.setIn(zone, fleetCluster(revision))
		}
	}
	next()
	members := startMembers(t, 3, cp, byCluster)
	var clients []*revisions
	for i, m := range members[1:] {
		for _, zone := range zones {
			c := openClient(t, connect(t, m.address), delta, node(fmt.Sprintf("%s-%d", zone, i), zone))
			c.subscribe(clusterType, "front")
			r := &revisions{zone: zone}
			clients = append(clients, r)
			go r.follow(t, c)
		}
	}
	await := func(what string) {
		for _, r := range clients {
			r.await(t, what, func(all *[]int) bool { return len(*all) > 0 && (*all)[len(*all)-1] == revision })
		}
	}
	await("everybody has the first revision")
	next()
	await("everybody has the second revision")
	cp.read(func(s *seen) {
		if len(s.streams) != len(zones) {
			t.Errorf("want %d streams, the control plane has seen %s", len(zones), s)
		}
	})
	sent := look(cp.recorder, func(s *seen) int { return len(s.sent) })
	next() // on its way when the relay dies
	members[0].end(t)
	killed := time.Now()
	next()
	await("everybody has what came after the relay's death")
	if gap := time.Since(killed); gap > most {
		t.Errorf("updates go on after %v, want %v", gap, most)
	}
	cp.await(t, "there is one stream for each partition", func(s *seen) bool { return len(s.streams) == len(zones) })
	// Each zone's cluster was sent at most for both changes, and once more if the new owner had nothing of the zone.
	if n := look(cp.recorder, func(s *seen) int { return len(s.sentOf(clusterType, sent)) }); n > 3*len(zones) {
		t.Errorf("%d resources were sent, want at most %d", n, 3*len(zones))
	}
}

// fleetCluster is a revision of a cluster.
func fleetCluster(revision int) proto.Message {
	return plainCluster("front", fmt.Sprintf("revision-%d;", revision))
}
