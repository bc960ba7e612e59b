package integration

// Relays that are members of a fleet: they are one client of the control plane, and none of them is missed.

import (
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
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
	members, addresses := newMembers(t, n)
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

// newMembers returns members of a fleet that do not run yet.
func newMembers(t testing.TB, n int) (members []*member, addresses []string) {
	t.Helper()
	for range n {
		p := openPort(t)
		members = append(members, &member{port: p})
		addresses = append(addresses, p.address)
	}
	return members, addresses
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

// fleetTest is a fleet of three relays, and clients of two of them in each partition.
type fleetTest struct {
	testing.TB
	cp       *controlPlane
	zones    []string
	members  []*member
	clients  []*revisions
	revision int
}

func startFleetTest(t testing.TB) *fleetTest {
	t.Helper()
	f := &fleetTest{TB: t, zones: partitionNames(12)}
	f.cp = startPartitions(t, (*corev3.Node).GetCluster, f.zones, delta)
	f.next()
	f.members = startMembers(t, 3, f.cp, byCluster)
	for i, m := range f.members[1:] {
		for _, zone := range f.zones {
			c := openClient(t, connect(t, m.address), delta, node(fmt.Sprintf("%s-%d", zone, i), zone))
			c.subscribe(clusterType, "front")
			r := &revisions{zone: zone}
			f.clients = append(f.clients, r)
			go r.follow(t, c)
		}
	}
	f.await("everybody has the first revision")
	f.next()
	f.await("everybody has the second revision")
	f.awaitStreams()
	return f
}

// next changes the cluster of each partition.
func (f *fleetTest) next() {
	f.Helper()
	f.revision++
	for _, zone := range f.zones {
		f.cp.setIn(zone, plainCluster("front", fmt.Sprintf("revision-%d;", f.revision)))
	}
}

// await waits until all clients have the newest revision.
func (f *fleetTest) await(what string) {
	f.Helper()
	for _, r := range f.clients {
		r.await(f.TB, what, func(all *[]int) bool { return len(*all) > 0 && (*all)[len(*all)-1] == f.revision })
	}
}

// awaitStreams waits until the control plane has one stream for each partition.
func (f *fleetTest) awaitStreams() {
	f.Helper()
	f.cp.await(f.TB, "there is one stream for each partition", func(s *seen) bool { return len(s.streams) == len(f.zones) })
}

// TestNobodyMissesAMemberThatIsKilled: the clients of the others lose nothing and get nothing older, and their updates
// go on within 2 s.
func TestNobodyMissesAMemberThatIsKilled(t *testing.T) {
	t.Parallel()
	const most = 2 * time.Second
	f := startFleetTest(t)
	sent := look(f.cp.recorder, func(s *seen) int { return len(s.sent) })
	f.next() // on its way when the relay dies
	f.members[0].end(t)
	killed := time.Now()
	f.next()
	f.await("everybody has what came after the relay's death")
	if gap := time.Since(killed); gap > most {
		t.Errorf("updates go on after %v, want %v", gap, most)
	}
	f.awaitStreams()
	// Each partition's cluster was sent at most for both changes, and once more if the new owner had nothing of it.
	if n := look(f.cp.recorder, func(s *seen) int { return len(s.sentOf(clusterType, sent)) }); n > 3*len(f.zones) {
		t.Errorf("%d resources were sent, want at most %d", n, 3*len(f.zones))
	}
}

// TestNobodyMissesAMemberThatHangs: its connections stay open, and it comes back with what it had.
func TestNobodyMissesAMemberThatHangs(t *testing.T) {
	t.Parallel()
	const most = 4 * time.Second // two to notice it, and what takes over
	f := startFleetTest(t)
	signal := func(s os.Signal) {
		if err := f.members[0].cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	stopped := time.Now()
	f.next()
	f.await("everybody has what came while the relay hangs")
	if gap := time.Since(stopped); gap > most {
		t.Errorf("updates go on after %v, want %v", gap, most)
	}
	signal(syscall.SIGCONT)
	f.next()
	f.await("everybody has what came when the relay is back")
	f.awaitStreams()
	f.next()
	f.await("everybody has what came after that")
}

// handoverTest is a fleet of which one member comes and goes, and clients of another one in each partition.
type handoverTest struct {
	testing.TB
	cp        *controlPlane
	zones     []string
	members   []*member
	addresses []string
	clients   []*client
}

// connect connects a client in each partition to a member.
func (h *handoverTest) connect(m *member) {
	h.Helper()
	for _, zone := range h.zones {
		c := newClient(h.TB, m.relay, delta, node(zone, zone))
		c.subscribe(clusterType, wildcard)
		c.subscribe(endpointType, "front-"+zone)
		h.clients = append(h.clients, c)
	}
}

// mustHave checks that all clients have everything, and how many resources of each partition the control plane has sent.
func (h *handoverTest) mustHave(when string, revision uint32, sent int) {
	h.Helper()
	for i, c := range h.clients {
		zone := h.zones[i%len(h.zones)]
		c.awaitHas(h.TB, when, plainCluster("front", zone), plainCluster("back", zone), plainEndpoints("front-"+zone, revision))
	}
	h.cp.read(func(s *seen) {
		if len(s.sent) != sent*len(h.zones) {
			h.Errorf("%s: the control plane has sent %d resources, want %d: %v", when, len(s.sent), sent*len(h.zones), s.sent[len(h.zones)*3:])
		}
	})
}

// awaitOwners waits until each partition has one owner among these members, each of which owns some, and one stream.
func (h *handoverTest) awaitOwners(when string, members ...*member) {
	h.Helper()
	giveUp, again := time.After(patience), time.NewTicker(20*time.Millisecond)
	defer again.Stop()
	for {
		var owned []float64
		all, least := 0., 1.
		for _, m := range members {
			n := m.metric(h.TB, "xds_relay_fleet_owned_scopes")
			owned, all, least = append(owned, n), all+n, min(least, n)
		}
		streams := look(h.cp.recorder, func(s *seen) int { return len(s.streams) })
		if least > 0 && all == float64(len(h.zones)) && streams == len(h.zones) {
			return
		}
		select {
		case <-again.C:
		case <-giveUp:
			h.Fatalf("%s: the members own %v partitions, with %d streams, want each of %d once", when, owned, streams, len(h.zones))
		}
	}
}

// TestAHandoverSendsNothingAgain: a new owner gets the state of a scope from another member, also if it has never had it
// before, and requests only what has changed since. With the control plane away, a new member has everything, too.
func TestAHandoverSendsNothingAgain(t *testing.T) {
	long(t, "scopes move back to a member after 10 s")
	t.Parallel()
	h := &handoverTest{TB: t, zones: partitionNames(24)}
	h.cp = startPartitions(t, (*corev3.Node).GetCluster, h.zones, delta)
	for _, zone := range h.zones {
		h.cp.setIn(zone, plainCluster("front", zone), plainCluster("back", zone), plainEndpoints("front-"+zone, 1))
	}
	h.members, h.addresses = newMembers(t, 3)
	comes, with, without := h.members[0], h.members[1], h.members[2] // the clients
	start := func(m *member) { m.start(t, h.cp, h.addresses, byCluster) }
	start(with)
	start(without)
	h.connect(with)
	h.mustHave("at the start", 1, 3)
	h.awaitOwners("at the start", with, without)

	start(comes)
	h.awaitOwners("after a member has come", h.members...)
	h.mustHave("after a member has come", 1, 3)
	comes.relay.end(t, syscall.SIGTERM)
	_ = comes.gap.Close()
	h.awaitOwners("after it has left", with, without)
	h.mustHave("after it has left", 1, 3)
	start(comes)
	h.awaitOwners("after it is back", h.members...)
	comes.end(t)
	h.awaitOwners("after it was killed", with, without)
	h.mustHave("after it was killed", 1, 3)

	h.cp.stop()
	start(comes)
	began := time.Now()
	h.connect(comes)
	h.mustHave("without the control plane", 1, 3)
	t.Logf("without the control plane, clients had everything from a new member after %v", time.Since(began))
	h.cp.start()
	h.awaitOwners("with the control plane", h.members...)
	for _, zone := range h.zones {
		h.cp.setIn(zone, plainEndpoints("front-"+zone, 2))
	}
	h.mustHave("at the end", 2, 4)
}
