package integration

// Rollouts: which clients receive a change, and when.
//
// A client that does not answer within a soak gets a substitute. So where a test counts the clients that have a change, the
// soak is longer than any machine needs for an answer, until a reload shortens it.

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// rolledOut returns the configuration of a relay with a rollout.
func rolledOut(address, upstream, rollout string) string {
	config := relayTo(address, upstream)
	return strings.Replace(config, "    servers:", "    rollout: {"+rollout+"}\n    servers:", 1)
}

// startFleet starts a control plane with a listener and clusters, a relay, and each clients of each program.
// It waits until the clients hold the listener and the cluster c.
func startFleet(t *testing.T, f form, rollout string, each int, is temper, programs ...string) (*controlPlane, *relay, *fleet) {
	t.Helper()
	cp := startControlPlane(t, f)
	cp.set(plainListener("l", "content-l1"), plainCluster("c", "content-c1"), plainCluster("other", "content-other"))
	r := startRelay(t, rolledOut(cp.address, string(f), rollout))
	fl := newFleet(t, f, func() *grpc.ClientConn { return connect(t, r.address) })
	for _, program := range programs {
		for i := range each {
			fl.join(fmt.Sprintf("%s-%d", program, i), program, is, listenerType, clusterType)
		}
	}
	fl.await(t, "all clients have the first state", func(s *fleetState) bool {
		return len(s.who("l1")) == each*len(programs) && len(s.who("c1")) == each*len(programs)
	})
	return cp, r, fl
}

func inEachForm(t *testing.T, test func(*testing.T, form)) {
	for _, f := range []form{delta, sotw} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			test(t, f)
		})
	}
}

func TestAChangeGoesToOneClientOfEachCohortFirst(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, _, fl := startFleet(t, f, "soak: 1h", 4, temper{}, "envoy", "grpc")
		cp.set(plainListener("l", "content-l2"), plainCluster("c", "content-c2"))
		fl.await(t, "two clients have all of the change", func(s *fleetState) bool {
			return len(s.who("l2")) == 2 && slices.Equal(s.who("l2"), s.who("c2"))
		})
		// A new client receives the accepted state.
		fl.join("envoy-late", "envoy", temper{}, listenerType, clusterType)
		fl.await(t, "the late client has the accepted state", func(s *fleetState) bool {
			return s.holds["envoy-late"][topic{listenerType, "l"}] == "l1" && s.holds["envoy-late"][topic{clusterType, "c"}] == "c1"
		})
		fl.read(func(s *fleetState) {
			first := s.who("l2")
			if len(s.had["l2"]) != 2 || len(first) != 2 || !strings.HasPrefix(first[0], "envoy") || !strings.HasPrefix(first[1], "grpc") {
				t.Errorf("want that exactly one client of each cohort received the change: %s", s)
			}
		})
	})
}

func TestAGoodChangeGoesToAll(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, _, fl := startFleet(t, f, "soak: 50ms", 5, temper{}, "envoy", "grpc")
		cp.set(plainListener("l", "content-l2"), plainCluster("c", "content-c2"))
		fl.await(t, "all clients have the change", func(s *fleetState) bool { return len(s.who("l2")) == 10 && len(s.who("c2")) == 10 })
		fl.read(func(s *fleetState) {
			for id, n := range s.had["l2"] {
				if n != 1 {
					t.Errorf("%s received the change %d times, want once", id, n)
				}
			}
		})
		cp.set(plainListener("new", "content-new"))
		fl.await(t, "all clients have the new listener", func(s *fleetState) bool { return len(s.who("new")) == 10 })
		cp.remove(listenerType, "new")
		fl.await(t, "no client has the removed listener", func(s *fleetState) bool { return len(s.who("new")) == 0 })
	})
}

func TestARejectedChangeIsTakenBack(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, r, fl := startFleet(t, f, "soak: 1h", 5, temper{rejects: "bad"}, "envoy", "grpc")
		cp.set(plainListener("l", "content-bad"))
		cp.await(t, "the control plane receives a NACK with a client's error message", func(s *seen) bool {
			return slices.ContainsFunc(s.nacks, func(words string) bool { return strings.Contains(words, "no such filter: bad") })
		})
		fl.await(t, "the clients that received the change have the accepted state again", func(s *fleetState) bool {
			return len(s.who("c1")) == 10 && len(s.who("l1")) == 10
		})
		fl.read(func(s *fleetState) {
			if len(s.had["bad"]) > 2 {
				t.Errorf("%d clients received the bad change: %s", len(s.had["bad"]), s)
			}
		})
		r.reload(t, rolledOut(cp.address, string(f), "soak: 50ms"))
		cp.set(plainListener("l", "content-good"))
		fl.await(t, "all clients have the good change", func(s *fleetState) bool { return len(s.who("good")) == 10 })
		fl.read(func(s *fleetState) {
			for id, n := range s.had["bad"] {
				if n != 1 {
					t.Errorf("%s received the bad change %d times, want at most once", id, n)
				}
			}
		})
	})
}

func TestAClientThatDiesOfAChangeStopsIt(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, r, fl := startFleet(t, f, "soak: 5s, deaths: 1", 5, temper{diesOf: "deadly"}, "envoy", "grpc")
		cp.set(plainListener("l", "content-deadly"))
		cp.await(t, "the control plane receives a NACK", func(s *seen) bool {
			return slices.ContainsFunc(s.nacks, func(words string) bool { return strings.Contains(words, "died") })
		})
		r.reload(t, rolledOut(cp.address, string(f), "soak: 50ms, deaths: 1"))
		cp.set(plainListener("l", "content-good"))
		fl.await(t, "the remaining clients have the good change", func(s *fleetState) bool { return len(s.who("good")) >= 8 })
		fl.read(func(s *fleetState) {
			if len(s.had["deadly"]) > 2 {
				t.Errorf("%d clients received the deadly change: %s", len(s.had["deadly"]), s)
			}
		})
	})
}

func TestWhatHasGrownWaitsForAPerson(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, _, fl := startFleet(t, f, "soak: 50ms", 3, temper{}, "envoy")
		cp.set(plainListener("l", "content-"+strings.Repeat("x", 1000)))
		cp.set(plainCluster("c", "content-c2"))
		fl.await(t, "all clients have another change", func(s *fleetState) bool { return len(s.who("c2")) == 3 })
		fl.read(func(s *fleetState) {
			if len(s.who("l1")) != 3 || len(s.had[strings.Repeat("x", 1000)]) > 0 {
				t.Errorf("clients received the resource that has grown: %s", s)
			}
		})
	})
}

func TestFrozenNothingNewIsLetThrough(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, _, fl := startFleet(t, f, "soak: 50ms, frozen: true, types: [listener]", 3, temper{}, "envoy")
		cp.set(plainListener("l", "content-l2"))
		cp.set(plainCluster("c", "content-c2"))
		fl.await(t, "clients receive a change of a type that is not rolled out", func(s *fleetState) bool { return len(s.who("c2")) == 3 })
		fl.join("late", "envoy", temper{}, listenerType)
		fl.await(t, "a new client has the accepted state", func(s *fleetState) bool { return s.holds["late"][topic{listenerType, "l"}] == "l1" })
		fl.read(func(s *fleetState) {
			if len(s.had["l2"]) > 0 {
				t.Errorf("clients received a change of a frozen rollout: %s", s)
			}
		})
	})
}

func TestWhatIsRemovedStaysUntilAllAreOnTheNewSide(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, _, fl := startFleet(t, f, "soak: 1h", 3, temper{}, "envoy")
		cp.set(plainListener("l", "content-l2"))
		fl.await(t, "the first client has the change", func(s *fleetState) bool { return len(s.who("l2")) == 1 })
		cp.remove(clusterType, "other")
		cp.set(plainListener("l", "content-l3"))
		fl.await(t, "the first client has the change after the removal", func(s *fleetState) bool { return len(s.who("l3")) == 1 })
		fl.read(func(s *fleetState) {
			if len(s.who("other")) != 3 {
				t.Errorf("a client lost the removed cluster during the rollout: %s", s)
			}
		})
	})
}

func TestARefusedChangeDoesNotSpreadByARestart(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp := startControlPlane(t, f)
		cp.set(plainListener("l", "content-l1"))
		config := storing(t, rolledOut(cp.address, string(f), "soak: 1h"), "")
		r := startRelay(t, config)
		fl := newFleet(t, f, func() *grpc.ClientConn { return connect(t, r.address) })
		for i := range 4 {
			fl.join(fmt.Sprintf("envoy-%d", i), "envoy", temper{rejects: "bad"}, listenerType)
		}
		fl.await(t, "all clients have the first state", func(s *fleetState) bool { return len(s.who("l1")) == 4 })
		eventually(t, "the relay has stored the first state", func() error {
			if written, pending := r.metric(t, "xds_relay_store_records_written_total"), r.metric(t, "xds_relay_store_pending"); written < 2 || pending > 0 {
				return fmt.Errorf("%v records are written, %v are pending", written, pending)
			}
			return nil
		})
		cp.set(plainListener("l", "content-bad"))
		cp.await(t, "the control plane receives a NACK", func(s *seen) bool { return len(s.nacks) > 0 })
		r.kill(t)

		r = startRelay(t, config)
		again := newFleet(t, f, func() *grpc.ClientConn { return connect(t, r.address) })
		for i := range 4 {
			again.join(fmt.Sprintf("envoy-%d", i), "envoy", temper{rejects: "bad"}, listenerType)
		}
		again.await(t, "all clients have the state that was accepted before", func(s *fleetState) bool { return len(s.who("l1")) == 4 })
		again.read(func(s *fleetState) {
			if len(s.had["bad"]) > 1 {
				t.Errorf("after the restart, %d clients received the refused change: %s", len(s.had["bad"]), s)
			}
		})
	})
}

var fleetClients = flag.Int("fleet", 60, "number of clients in TestARolloutOnAFleet")

// TestARolloutOnAFleet logs when the clients of three cohorts receive changes, some of which they reject.
// Each client receives a bad change at most once and a good one exactly once. At most one client of each
// cohort receives a bad change.
func TestARolloutOnAFleet(t *testing.T) {
	t.Parallel()
	const cohorts, rounds = 3, 2
	clients := *fleetClients
	cp := startControlPlane(t, delta)
	cp.set(plainListener("l", "content-good0"))
	untilAnswered, inSteps := rolledOut(cp.address, "delta", "soak: 1h"), rolledOut(cp.address, "delta", "soak: 1500ms")
	r := startRelay(t, untilAnswered)
	var conns []*grpc.ClientConn
	for range 20 {
		conns = append(conns, connect(t, r.address))
	}
	next := 0
	fl := newFleet(t, delta, func() *grpc.ClientConn { next++; return conns[next%len(conns)] })
	for i := range clients {
		fl.join(fmt.Sprintf("client-%d", i), fmt.Sprintf("program-%d", i%cohorts), temper{rejects: "bad"}, listenerType)
	}
	fl.await(t, "all clients have the first state", func(s *fleetState) bool { return len(s.who("good0")) == clients })
	for round := range rounds {
		before, bad, good := fmt.Sprintf("good%d", round), fmt.Sprintf("bad%d", round), fmt.Sprintf("good%d", round+1)
		begin := time.Now()
		cp.set(plainListener("l", "content-"+bad))
		cp.await(t, "the control plane receives a client's error message", func(s *seen) bool {
			return slices.ContainsFunc(s.nacks, func(words string) bool { return strings.Contains(words, "no such filter: "+bad) })
		})
		refused := time.Since(begin)
		if round == 0 {
			fl.await(t, "the clients that received the change have the accepted state again", func(s *fleetState) bool {
				for id := range s.had[bad] {
					if s.had[before][id] < 2 {
						return false
					}
				}
				return len(s.had[bad]) > 0
			})
		} // in the other round, the next change comes while the clients return to the accepted state
		back := time.Since(begin)
		fixed := time.Now()
		cp.set(plainListener("l", "content-"+good))
		r.reload(t, inSteps)
		fl.await(t, "all clients have a good change", func(s *fleetState) bool { return len(s.who(good)) == clients })
		all := time.Since(fixed)
		r.reload(t, untilAnswered)
		fl.read(func(s *fleetState) {
			t.Logf("a bad change: NACK after %s; %d of %d clients received it, and had the accepted state again after %s\n%s",
				refused.Round(time.Millisecond), len(s.had[bad]), clients, back.Round(time.Millisecond), s.table(bad, begin, cohorts))
			t.Logf("a good change: all clients after %s\n%s", all.Round(time.Millisecond), s.table(good, fixed, cohorts))
			if n := len(s.had[bad]); n > cohorts {
				t.Errorf("%d clients of %d cohorts received a bad change", n, cohorts)
			}
			for id, n := range s.had[bad] {
				if n > 1 {
					t.Errorf("%s received a bad change %d times, want at most once", id, n)
				}
			}
			for id, n := range s.had[good] {
				if n != 1 {
					t.Errorf("%s received a good change %d times, want once", id, n)
				}
			}
		})
	}
}

// table shows when how many clients of each cohort had received a content. It has a line for each group of
// deliveries with less than a tenth of a second between them.
func (s *fleetState) table(content string, begin time.Time, cohorts int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%10s", "after")
	for cohort := range cohorts {
		fmt.Fprintf(&b, "%12s", fmt.Sprintf("program-%d", cohort))
	}
	sent, last := make([]int, cohorts), time.Time{}
	line := func() {
		fmt.Fprintf(&b, "\n%10s", last.Sub(begin).Round(time.Millisecond))
		for _, n := range sent {
			fmt.Fprintf(&b, "%12d", n)
		}
	}
	for _, e := range s.log {
		if e.content != content {
			continue
		}
		if !last.IsZero() && e.at.Sub(last) > time.Second/10 {
			line()
		}
		var i int
		_, _ = fmt.Sscanf(e.to, "client-%d", &i)
		sent[i%cohorts]++
		last = e.at
	}
	line()
	return b.String()
}

// A rejected change stays rejected when its last client has left, and the relay has dropped the set.
func TestWhatIsRefusedStaysSoWhenClientsHaveGone(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp := startControlPlane(t, f)
		cp.set(plainListener("l", "content-l1"), plainCluster("c", "content-c1"))
		r := startRelay(t, rolledOut(cp.address, string(f), "soak: 1h")+"cache: {linger: 10ms}\n")
		fl := newFleet(t, f, func() *grpc.ClientConn { return connect(t, r.address) })
		leave := fl.join("envoy-1", "envoy", temper{rejects: "bad"}, listenerType, clusterType)
		fl.await(t, "the client has the first state", func(s *fleetState) bool { return len(s.who("l1")) == 1 && len(s.who("c1")) == 1 })
		cp.set(plainListener("l", "content-bad"))
		cp.await(t, "the control plane receives the client's error message", func(s *seen) bool { return len(s.nacks) > 0 })
		leave()
		fl.await(t, "the client's stream ends", func(s *fleetState) bool { return s.ended["envoy-1"] })
		eventually(t, "the relay has dropped the sets without clients", func() error {
			if n := r.metric(t, "xds_relay_cache_sets"); n > 1 {
				return fmt.Errorf("the relay holds %v sets", n)
			}
			return nil
		})
		fl.join("envoy-2", "envoy", temper{rejects: "bad"}, listenerType)
		fl.await(t, "another client has the accepted state", func(s *fleetState) bool { return len(s.who("l1")) == 2 })
		fl.read(func(s *fleetState) {
			if s.had["bad"]["envoy-2"] > 0 {
				t.Errorf("another client received the rejected change: %s", s)
			}
		})
	})
}

// When another resource changes, the rollout withholds the rejected version, and sends the other change to
// all clients.
func TestWhatIsRejectedDoesNotHoldUpTheRest(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, r, fl := startFleet(t, f, "soak: 1h", 4, temper{rejects: "bad"}, "envoy")
		cp.set(plainListener("l", "content-bad"))
		cp.await(t, "the control plane receives a client's error message", func(s *seen) bool { return len(s.nacks) > 0 })
		cp.set(plainCluster("c", "content-c2"))
		fl.await(t, "a first client has another change", func(s *fleetState) bool { return len(s.who("c2")) == 1 })
		r.reload(t, rolledOut(cp.address, string(f), "soak: 50ms"))
		fl.await(t, "all clients have the other change", func(s *fleetState) bool { return len(s.who("c2")) == 4 })
		fl.read(func(s *fleetState) {
			if len(s.had["bad"]) != 1 || len(s.who("l1")) != 4 {
				t.Errorf("the relay sent the rejected change again: %s", s)
			}
		})
		cp.set(plainListener("l", "content-good"))
		fl.await(t, "all clients have the good change", func(s *fleetState) bool { return len(s.who("good")) == 4 })
	})
}

func TestARejectionAtAnEdgeStopsARolloutAtTheRoot(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp := startControlPlane(t, f)
		cp.set(plainListener("l", "content-l1"))
		root := startRelay(t, rolledOut(cp.address, string(f), "soak: 1h, cohort: '\"relays\"'"))
		fl := newFleet(t, f, nil)
		for i := range 3 {
			edge := startRelay(t, strings.Replace(relayTo(root.address, string(f)), "the-relay", fmt.Sprintf("edge-%d", i), 1))
			fl.conn = func() *grpc.ClientConn { return connect(t, edge.address) }
			for j := range 2 {
				fl.join(fmt.Sprintf("envoy-%d-%d", i, j), "envoy", temper{rejects: "bad"}, listenerType)
			}
		}
		fl.await(t, "all clients have the first state", func(s *fleetState) bool { return len(s.who("l1")) == 6 })
		cp.set(plainListener("l", "content-bad"))
		cp.await(t, "the control plane receives a NACK with the client's error message", func(s *seen) bool {
			return slices.ContainsFunc(s.nacks, func(words string) bool { return strings.Contains(words, "no such filter: bad") })
		})
		fl.read(func(s *fleetState) {
			if len(s.had["bad"]) > 2 { // the clients of one edge
				t.Errorf("%d clients received the bad change: %s", len(s.had["bad"]), s)
			}
		})
		cp.set(plainListener("l", "content-l2"))
		fl.await(t, "the clients of one edge have the next change", func(s *fleetState) bool { return len(s.who("l2")) == 2 })
	})
}

func TestTheControlPlaneIsSentTheAcceptedVersion(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		h := startHandmade(t)
		r := startRelay(t, rolledOut(h.address, string(f), "soak: 1h"))
		fl := newFleet(t, f, func() *grpc.ClientConn { return connect(t, r.address) })
		for i := range 3 {
			fl.join(fmt.Sprintf("envoy-%d", i), "envoy", temper{rejects: "bad"}, listenerType)
		}
		s := h.stream(t)
		s.awaitAsked(t, listenerType, wildcard)
		s.respond(t, listenerType, "1", versioned(t, "1", plainListener("l", "content-l1")))
		fl.await(t, "all clients have the first state", func(s *fleetState) bool { return len(s.who("l1")) == 3 })
		// The client may reject the change before the relay has sent its ACK. In SotW the NACK then replaces the ACK.
		nack := s.respond(t, listenerType, "2", versioned(t, "2", plainListener("l", "content-bad")))
		if nack != "" && !strings.Contains(nack, "no such filter: bad") {
			t.Fatalf("the relay rejected the response itself: %s", nack)
		}
		s.requests.await(t, "the relay rejects the newest response, with the accepted version", func(all *requests) bool {
			last := (*all)[len(*all)-1]
			return last.nack != nil && last.nonce == "2" && strings.Contains(last.nack.GetMessage(), "no such filter: bad") &&
				(f == delta || last.version == "version 1")
		})
		// The relay acknowledges the rejected resource if the control plane sends it once more, and does not
		// try it again.
		if nack := s.respond(t, listenerType, "3", versioned(t, "2", plainListener("l", "content-bad"))); nack != "" {
			t.Fatalf("the relay rejected the same resource twice: %s", nack)
		}
		s.respond(t, listenerType, "4", versioned(t, "3", plainListener("l", "content-good")))
		fl.await(t, "the first client has the good change", func(s *fleetState) bool { return len(s.who("good")) == 1 })
		fl.read(func(s *fleetState) {
			if len(s.had["bad"]) != 1 {
				t.Errorf("%d clients received the bad change, want 1: %s", len(s.had["bad"]), s)
			}
			for id, n := range s.had["bad"] {
				if n != 1 {
					t.Errorf("%s received the bad change %d times, want at most once", id, n)
				}
			}
		})
	})
}

// A Listener takes the address of another one. A client that is shown the change gets the removal with the addition, and
// so does a client that goes back.
func TestAReplacementIsRolledOutAsAWhole(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		h := startHandmade(t)
		r := startRelay(t, rolledOut(h.address, string(f), "soak: 1h"))
		fl := newFleet(t, f, func() *grpc.ClientConn { return connect(t, r.address) })
		for i := range 4 {
			fl.join(fmt.Sprintf("envoy-%d", i), "envoy", temper{rejects: "bad", alone: true}, listenerType, clusterType)
		}
		s := h.stream(t)
		s.awaitAsked(t, listenerType, wildcard)
		s.awaitAsked(t, clusterType, wildcard)
		s.respond(t, listenerType, "1", versioned(t, "1", plainListener("l1", "content-l1")))
		c := versioned(t, "1", plainCluster("c", "content-c1"))
		old := versioned(t, "1", plainCluster("old", "content-old"))
		s.respond(t, clusterType, "2", c, old)
		have := func(content string, n int) {
			t.Helper()
			fl.await(t, fmt.Sprintf("%d clients have %s", n, content), func(s *fleetState) bool { return len(s.who(content)) == n })
		}
		have("l1", 4)
		have("c1", 4)
		// The first client accepts the Listener, and then rejects a Cluster.
		s.replace(t, listenerType, "3", "l1", versioned(t, "2", plainListener("l2", "content-l2")))
		have("l2", 1)
		s.replace(t, clusterType, "4", "old", c, versioned(t, "2", plainCluster("d", "content-bad")))
		s.requests.await(t, "the control plane is sent the client's words", func(all *requests) bool {
			return slices.ContainsFunc(*all, func(r request) bool { return strings.Contains(r.nack.GetMessage(), "no such filter: bad") })
		})
		have("l1", 4)
		fl.read(func(s *fleetState) {
			if len(s.had["l2"]) != 1 || len(s.had["bad"]) != 1 {
				t.Errorf("want that one client received the change: %s", s)
			}
		})
		r.reload(t, rolledOut(h.address, string(f), "soak: 50ms"))
		s.respond(t, clusterType, "5", c, versioned(t, "3", plainCluster("d", "content-d3")))
		have("l2", 4)
		have("d3", 4)
		fl.read(func(s *fleetState) {
			if len(s.who("l1")) > 0 {
				t.Errorf("clients keep the Listener that was replaced: %s", s)
			}
		})
	})
}

// A client that goes back loses at once what only the change had.
func TestTheWayBackIsNotHeld(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, _, fl := startFleet(t, f, "soak: 1h", 3, temper{rejects: "bad"}, "envoy")
		cp.remove(clusterType, "other") // so what follows is no first answer
		cp.set(plainCluster("new", "content-new"))
		fl.await(t, "the first client has the new Cluster", func(s *fleetState) bool { return len(s.who("new")) == 1 })
		begin := time.Now()
		cp.set(plainCluster("worse", "content-bad"))
		fl.await(t, "no client has the new Cluster", func(s *fleetState) bool { return len(s.had["bad"]) == 1 && len(s.who("new")) == 0 })
		// A removal that waits for other clients or for silence takes longer.
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("the client kept a Cluster of the change for %s", took)
		}
	})
}

// Several responses join one change. The control plane hears which resource was rejected, as the answer to each type's
// newest response.
func TestTheNACKNamesWhatWasRejected(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		h := startHandmade(t)
		r := startRelay(t, rolledOut(h.address, string(f), "soak: 1h"))
		fl := newFleet(t, f, func() *grpc.ClientConn { return connect(t, r.address) })
		for i := range 3 {
			fl.join(fmt.Sprintf("envoy-%d", i), "envoy", temper{rejects: "bad"}, listenerType, clusterType)
		}
		s := h.stream(t)
		s.awaitAsked(t, listenerType, wildcard)
		s.awaitAsked(t, clusterType, wildcard)
		have := func(content string, n int) {
			t.Helper()
			fl.await(t, fmt.Sprintf("%d clients have %s", n, content), func(s *fleetState) bool { return len(s.who(content)) == n })
		}
		b, c, d := plainCluster("b", "content-b1"), plainCluster("c", "content-c1"), plainCluster("d", "content-d1")
		s.respond(t, listenerType, "1", versioned(t, "1", plainListener("l", "content-l1")))
		s.respond(t, clusterType, "2", versioned(t, "1", b), versioned(t, "1", c), versioned(t, "1", d))
		have("l1", 3)
		have("d1", 3)
		s.respond(t, listenerType, "3", versioned(t, "2", plainListener("l", "content-l2")))
		have("l2", 1)
		b2 := versioned(t, "2", plainCluster("b", "content-b2"))
		s.respond(t, clusterType, "4", b2, versioned(t, "1", c), versioned(t, "1", d))
		have("b2", 1)
		s.send(t, clusterType, "5", b2, versioned(t, "2", plainCluster("c", "content-bad")), versioned(t, "1", d))
		for typeURL, nonce := range map[string]string{listenerType: "3", clusterType: "5"} {
			s.requests.await(t, "the control plane hears of it for both types", func(all *requests) bool {
				return slices.ContainsFunc(*all, func(r request) bool {
					return r.typeURL == typeURL && r.nonce == nonce && strings.Contains(r.nack.GetMessage(), `rejected the change: cluster "c": no such filter: bad`)
				})
			})
		}
	})
}
