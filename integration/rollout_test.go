package integration

// Rollouts: which clients receive a change, and when.

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// rolledOut is the configuration of a relay with a rollout.
func rolledOut(address, upstream, rollout string) string {
	config := relayTo(address, upstream)
	return strings.Replace(config, "    servers:", "    rollout: {"+rollout+"}\n    servers:", 1)
}

// startFleet starts a control plane that has a listener and a cluster, a relay, and so many clients of
// each program, which hold them.
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
		// New clients get what is accepted.
		fl.join("envoy-late", "envoy", temper{}, listenerType, clusterType)
		fl.await(t, "the late client has the accepted state", func(s *fleetState) bool {
			return s.holds["envoy-late"][topic{listenerType, "l"}] == "l1" && s.holds["envoy-late"][topic{clusterType, "c"}] == "c1"
		})
		fl.read(func(s *fleetState) {
			first := s.who("l2")
			if len(s.had["l2"]) != 2 || len(first) != 2 || !strings.HasPrefix(first[0], "envoy") || !strings.HasPrefix(first[1], "grpc") {
				t.Errorf("the change was sent to others than one of each cohort: %s", s)
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
					t.Errorf("%s was sent the change %d times", id, n)
				}
			}
		})
		cp.set(plainListener("new", "content-new"))
		fl.await(t, "all clients have what is new", func(s *fleetState) bool { return len(s.who("new")) == 10 })
		cp.remove(listenerType, "new")
		fl.await(t, "nobody has what was removed", func(s *fleetState) bool { return len(s.who("new")) == 0 })
	})
}

func TestARejectedChangeIsTakenBack(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, _, fl := startFleet(t, f, "soak: 200ms", 5, temper{rejects: "bad"}, "envoy", "grpc")
		cp.set(plainListener("l", "content-bad"))
		cp.await(t, "the control plane is sent a NACK in a client's words", func(s *seen) bool {
			return slices.ContainsFunc(s.nacks, func(words string) bool { return strings.Contains(words, "no such filter: bad") })
		})
		fl.await(t, "those who had the change have the accepted state again", func(s *fleetState) bool {
			return len(s.who("c1")) == 10 && len(s.who("l1")) == 10
		})
		fl.read(func(s *fleetState) {
			if len(s.had["bad"]) > 2 {
				t.Errorf("a bad change touched %d clients: %s", len(s.had["bad"]), s)
			}
		})
		cp.set(plainListener("l", "content-good"))
		fl.await(t, "all clients have what is good", func(s *fleetState) bool { return len(s.who("good")) == 10 })
		fl.read(func(s *fleetState) {
			for id, n := range s.had["bad"] {
				if n != 1 {
					t.Errorf("%s was sent what is bad %d times", id, n)
				}
			}
		})
	})
}

func TestAClientThatDiesOfAChangeStopsIt(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, _, fl := startFleet(t, f, "soak: 200ms, deaths: 1", 5, temper{diesOf: "deadly"}, "envoy", "grpc")
		cp.set(plainListener("l", "content-deadly"))
		cp.await(t, "the control plane is sent a NACK", func(s *seen) bool {
			return slices.ContainsFunc(s.nacks, func(words string) bool { return strings.Contains(words, "died") })
		})
		cp.set(plainListener("l", "content-good"))
		fl.await(t, "all that live have what is good", func(s *fleetState) bool { return len(s.who("good")) >= 8 })
		fl.read(func(s *fleetState) {
			if len(s.had["deadly"]) > 2 {
				t.Errorf("%d clients died: %s", len(s.had["deadly"]), s)
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
		fl.await(t, "all have another change", func(s *fleetState) bool { return len(s.who("c2")) == 3 })
		fl.read(func(s *fleetState) {
			if len(s.who("l1")) != 3 || len(s.had[strings.Repeat("x", 1000)]) > 0 {
				t.Errorf("what has grown was let through: %s", s)
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
		fl.await(t, "types that are not rolled out pass", func(s *fleetState) bool { return len(s.who("c2")) == 3 })
		fl.join("late", "envoy", temper{}, listenerType)
		fl.await(t, "a new client has what is accepted", func(s *fleetState) bool { return s.holds["late"][topic{listenerType, "l"}] == "l1" })
		fl.read(func(s *fleetState) {
			if len(s.had["l2"]) > 0 {
				t.Errorf("something new was let through: %s", s)
			}
		})
	})
}

func TestWhatIsRemovedStaysUntilAllAreOnTheNewSide(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, _, fl := startFleet(t, f, "soak: 1h", 3, temper{}, "envoy")
		cp.set(plainListener("l", "content-l2"))
		fl.await(t, "the first client has what is new", func(s *fleetState) bool { return len(s.who("l2")) == 1 })
		cp.remove(clusterType, "other")
		cp.set(plainListener("l", "content-l3"))
		fl.await(t, "the first client has what came after the removal", func(s *fleetState) bool { return len(s.who("l3")) == 1 })
		fl.read(func(s *fleetState) {
			if len(s.who("other")) != 3 {
				t.Errorf("a client has lost what was removed: %s", s)
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
		eventually(t, "it is stored", func() error {
			if written, pending := r.metric(t, "xds_relay_store_records_written_total"), r.metric(t, "xds_relay_store_pending"); written < 2 || pending > 0 {
				return fmt.Errorf("%v written, %v pending", written, pending)
			}
			return nil
		})
		cp.set(plainListener("l", "content-bad"))
		cp.await(t, "the control plane is sent a NACK", func(s *seen) bool { return len(s.nacks) > 0 })
		r.kill(t)

		r = startRelay(t, config)
		again := newFleet(t, f, func() *grpc.ClientConn { return connect(t, r.address) })
		for i := range 4 {
			again.join(fmt.Sprintf("envoy-%d", i), "envoy", temper{rejects: "bad"}, listenerType)
		}
		again.await(t, "all clients have what was accepted before", func(s *fleetState) bool { return len(s.who("l1")) == 4 })
		again.read(func(s *fleetState) {
			if len(s.had["bad"]) > 1 {
				t.Errorf("a refused change touched %d clients: %s", len(s.had["bad"]), s)
			}
		})
	})
}

var fleetClients = flag.Int("fleet", 60, "how many clients TestARolloutOnAFleet has")

// TestARolloutOnAFleet shows who has what when: clients in three cohorts, which reject some changes. Each is
// sent a change at most once, and a good one exactly once; a bad one touches one client of each cohort.
func TestARolloutOnAFleet(t *testing.T) {
	t.Parallel()
	const cohorts, rounds = 3, 2
	clients := *fleetClients
	cp := startControlPlane(t, delta)
	cp.set(plainListener("l", "content-good0"))
	r := startRelay(t, rolledOut(cp.address, "delta", "soak: 1500ms"))
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
		cp.await(t, "the control plane receives a client's words", func(s *seen) bool {
			return slices.ContainsFunc(s.nacks, func(words string) bool { return strings.Contains(words, "no such filter: "+bad) })
		})
		refused := time.Since(begin)
		if round == 0 {
			fl.await(t, "those who were sent the change have the accepted state again", func(s *fleetState) bool {
				for id := range s.had[bad] {
					if s.had[before][id] < 2 {
						return false
					}
				}
				return len(s.had[bad]) > 0
			})
		} // in the other round, the next change comes while they go back
		back := time.Since(begin)
		fixed := time.Now()
		cp.set(plainListener("l", "content-"+good))
		fl.await(t, "all clients have a good change", func(s *fleetState) bool { return len(s.who(good)) == clients })
		all := time.Since(fixed)
		fl.read(func(s *fleetState) {
			t.Logf("a bad change: NACK after %s, %d clients of %d touched, who had the accepted state again after %s\n%s",
				refused.Round(time.Millisecond), len(s.had[bad]), clients, back.Round(time.Millisecond), s.table(bad, begin, cohorts))
			t.Logf("a good change: all clients after %s\n%s", all.Round(time.Millisecond), s.table(good, fixed, cohorts))
			if n := len(s.had[bad]); n > cohorts {
				t.Errorf("a bad change touched %d clients of %d cohorts", n, cohorts)
			}
			for id, n := range s.had[bad] {
				if n > 1 {
					t.Errorf("%s was sent a bad change %d times", id, n)
				}
			}
			for id, n := range s.had[good] {
				if n != 1 {
					t.Errorf("%s was sent a good change %d times", id, n)
				}
			}
		})
	}
}

// table says when a content was sent to how many clients of each cohort: a line for each time at which it
// went to more, with what came within a tenth of a second.
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

// What was refused stays refused when nobody is interested for a while, and the relay has forgotten the
// rest.
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
		cp.await(t, "the control plane receives the client's words", func(s *seen) bool { return len(s.nacks) > 0 })
		leave()
		fl.await(t, "the client has gone", func(s *fleetState) bool { return s.ended["envoy-1"] })
		eventually(t, "the relay has given up what nobody is interested in", func() error {
			if n := r.metric(t, "xds_relay_cache_sets"); n > 1 {
				return fmt.Errorf("%v wildcards", n)
			}
			return nil
		})
		fl.join("envoy-2", "envoy", temper{rejects: "bad"}, listenerType)
		fl.await(t, "another client has what is accepted", func(s *fleetState) bool { return len(s.who("l1")) == 2 })
		fl.read(func(s *fleetState) {
			if s.had["bad"]["envoy-2"] > 0 {
				t.Errorf("another client was sent what was refused: %s", s)
			}
		})
	})
}

// A resource that was rejected in another version than the accepted one is set apart, when something else
// changes.
func TestWhatIsRejectedDoesNotHoldUpTheRest(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		cp, _, fl := startFleet(t, f, "soak: 100ms", 4, temper{rejects: "bad"}, "envoy")
		cp.set(plainListener("l", "content-bad"))
		cp.await(t, "the control plane receives a client's words", func(s *seen) bool { return len(s.nacks) > 0 })
		cp.set(plainCluster("c", "content-c2"))
		fl.await(t, "all clients have another change", func(s *fleetState) bool { return len(s.who("c2")) == 4 })
		fl.read(func(s *fleetState) {
			if len(s.had["bad"]) != 1 || len(s.who("l1")) != 4 {
				t.Errorf("what was rejected was tried again: %s", s)
			}
		})
		cp.set(plainListener("l", "content-good"))
		fl.await(t, "all clients have what is good", func(s *fleetState) bool { return len(s.who("good")) == 4 })
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
		cp.await(t, "the control plane is sent a NACK in the client's words", func(s *seen) bool {
			return slices.ContainsFunc(s.nacks, func(words string) bool { return strings.Contains(words, "no such filter: bad") })
		})
		fl.read(func(s *fleetState) {
			if len(s.had["bad"]) > 2 { // those of one edge
				t.Errorf("a bad change touched %d clients: %s", len(s.had["bad"]), s)
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
		if nack := s.respond(t, listenerType, "2", versioned(t, "2", plainListener("l", "content-bad"))); nack != "" {
			t.Fatalf("the response was not acknowledged when it came: %s", nack)
		}
		s.requests.await(t, "the newest response is rejected, with the version that was accepted", func(all *requests) bool {
			last := (*all)[len(*all)-1]
			return last.nack != nil && last.nonce == "2" && strings.Contains(last.nack.GetMessage(), "no such filter: bad") &&
				(f == delta || last.version == "version 1")
		})
		// The relay acknowledges a resource that is sent once more, and does not try it again.
		if nack := s.respond(t, listenerType, "3", versioned(t, "2", plainListener("l", "content-bad"))); nack != "" {
			t.Fatalf("the same was rejected twice: %s", nack)
		}
		s.respond(t, listenerType, "4", versioned(t, "3", plainListener("l", "content-good")))
		fl.await(t, "the first client has what is good", func(s *fleetState) bool { return len(s.who("good")) == 1 })
		fl.read(func(s *fleetState) {
			if len(s.had["bad"]) != 1 {
				t.Errorf("what is bad was sent to %d clients: %s", len(s.had["bad"]), s)
			}
			for id, n := range s.had["bad"] {
				if n != 1 {
					t.Errorf("%s was sent what is bad %d times", id, n)
				}
			}
		})
	})
}
