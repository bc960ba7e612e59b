package main

import (
	"fmt"
	"time"
)

// The scenarios, and how each is measured.

// metric is one figure of one run.
type metric struct {
	name, unit string
	value      float64
}

// scenario is what is done to each system, once in each round.
type scenario struct {
	id, title string
	systems   []string
	run       func(b *bench, system string) ([]metric, error)
}

// bench is a run of the whole.
type bench struct {
	relay string // the binary
	quick bool
}

// scale makes numbers smaller in a quick run.
func (b *bench) scale(n, quick int) int {
	if b.quick {
		return quick
	}
	return n
}

const patience = 2 * time.Minute

// session is a system with a swarm of clients.
type session struct {
	*system
	swarm   *child
	spec    *Spec
	clients int
	version int

	empty, rest, peak int64         // resident bytes: without clients, with them at rest, at most
	coldCPU           time.Duration // of connecting and the first state
	coldLast          time.Duration // until the last client had it
}

// begin starts a system and connects clients, which have their first state when it
// returns.
func (b *bench) begin(name string, spec *Spec, clients, perConn, deaf int) (*session, error) {
	sys, err := start(name, spec, b.relay)
	if err != nil {
		return nil, err
	}
	s := &session{system: sys, spec: spec, clients: clients, version: 1}
	if s.swarm, err = startRole("swarm", "swarm", spec); err != nil {
		sys.stop()
		return nil, err
	}
	if err := s.connect(clients, perConn, deaf); err != nil {
		s.stop()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

func (s *session) stop() {
	s.swarm.stop()
	s.system.stop()
}

func (s *session) connect(clients, perConn, deaf int) error {
	var err error
	if s.empty, _, err = s.server.rss(); err != nil {
		return err
	}
	before, err := s.server.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := s.swarm.do(command{Do: "connect", Group: "all", Address: s.server.address, Clients: clients, PerConn: perConn, Deaf: deaf, Spec: s.spec}); err != nil {
		return err
	}
	a, err := s.swarm.do(command{Do: "await", Group: "all", Timeout: patience})
	if err != nil {
		return err
	}
	s.coldLast = time.Unix(0, a.Last).Sub(began)
	after, err := s.settled()
	if err != nil {
		return err
	}
	if s.spec.Glob {
		s.coldLast = time.Since(began) // the first state is in several responses
	}
	s.coldCPU = after - before
	s.rest, s.peak, err = s.server.rss()
	return err
}

// settled waits until the server does nothing any more, and returns its CPU time.
func (s *session) settled() (time.Duration, error) {
	last, err := s.server.cpu()
	for still := 0; err == nil && still < 3; {
		pause(100 * time.Millisecond)
		var now time.Duration
		if now, err = s.server.cpu(); now-last <= 10*time.Millisecond {
			still++
		} else {
			still = 0
		}
		last = now
	}
	return last, err
}

// updates changes one resource n times, each after all clients had the last, and
// returns the CPU time for it and how long the median and the last client waited.
func (s *session) updates(n int) (cpu time.Duration, median, last []time.Duration, err error) {
	before, err := s.settled()
	if err != nil {
		return 0, nil, nil, err
	}
	for k := range n {
		s.version++
		if _, err := s.swarm.do(command{Do: "watch", Group: "all", Version: s.version}); err != nil {
			return 0, nil, nil, err
		}
		u, err := s.source.do(command{Do: "update", Index: k % s.spec.PerClient, Version: s.version})
		if err != nil {
			return 0, nil, nil, err
		}
		a, err := s.swarm.do(command{Do: "await", Group: "all", Timeout: patience})
		if err != nil {
			return 0, nil, nil, err
		}
		median = append(median, time.Duration(a.Median-u.At))
		last = append(last, time.Duration(a.Last-u.At))
	}
	after, err := s.settled()
	return after - before, median, last, err
}

func micros(d time.Duration, n int) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(n) }

func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

const kib = 1 << 10

func (s *session) perClient() float64 { return float64(s.rest-s.empty) / kib / float64(s.clients) }

var everybody = []string{systemFloor, systemRelay, systemLinear, systemSnapshot}

var ours = []string{systemFloor, systemRelay}

// scenarios returns all of them.
func scenarios() []scenario {
	var all []scenario
	for _, idle := range []struct {
		id               string
		clients, perConn int
	}{{"a1", 1000, 1}, {"a2", 5000, 1}, {"a3", 10_000, 1}, {"a4", 10_000, 100}} {
		all = append(all, scenario{
			id: idle.id, systems: ours,
			title: fmt.Sprintf("idle: %d clients on %d connections, 100 names each", idle.clients, idle.clients/idle.perConn),
			run: func(b *bench, system string) ([]metric, error) {
				spec := &Spec{Delta: true, Resources: 100, Size: 1 << 10, PerClient: 100}
				clients := b.scale(idle.clients, idle.clients/10)
				s, err := b.begin(system, spec, clients, idle.perConn, 0)
				if err != nil {
					return nil, err
				}
				defer s.stop()
				return []metric{{"memory per client", "KiB", s.perClient()}}, nil
			},
		})
	}
	for _, delta := range []bool{true, false} {
		id, form := "b1", "delta"
		if !delta {
			id, form = "b2", "SotW"
		}
		all = append(all, scenario{
			id: id, systems: everybody,
			title: "one of 100 shared resources of 1 KB changes, 5,000 clients, " + form + " (and their cold start)",
			run:   func(b *bench, system string) ([]metric, error) { return b.shared(system, delta) },
		})
	}
	return append(all,
		scenario{id: "c", systems: everybody, title: "full-state SotW of 1,000 clusters of 1 KB, 1,000 clients", run: (*bench).fullState},
		scenario{id: "e", systems: []string{systemFloor, systemRelay, systemLinear}, title: "5,000 clients with 10 names each out of 10,000, updates to single ones", run: (*bench).distinct},
		scenario{id: "f", systems: ours, title: "200 updates/s for 20 s, with one client that never reads", run: (*bench).storm},
		scenario{id: "g", systems: ours, title: "a glob of 100,000 members: clients join, one member changes", run: (*bench).glob},
		scenario{id: "h1", systems: ours, title: "growth: one update as clients unrelated to it grow", run: (*bench).growClients},
		scenario{id: "h2", systems: ours, title: "growth: one update as the collection grows", run: (*bench).growMembers},
		scenario{id: "i", systems: []string{systemDirect, systemHop, systemRelay}, title: "latency of an update from origin to client", run: (*bench).hop},
		scenario{id: "j", systems: []string{systemRelay}, title: "the origin's side of the relay", run: (*bench).upstream},
	)
}

func (b *bench) shared(system string, delta bool) ([]metric, error) {
	spec := &Spec{Delta: delta, Resources: 100, Size: 1 << 10, PerClient: 100}
	clients := b.scale(5000, 500)
	s, err := b.begin(system, spec, clients, 1, 0)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	n := b.scale(20, 10)
	cpu, median, last, err := s.updates(n)
	if err != nil {
		return nil, err
	}
	return []metric{
		{"CPU per message", "µs", micros(cpu, n*clients)},
		{"median client", "ms", millis(middle(median))},
		{"last client", "ms", millis(middle(last))},
		{"memory per client", "KiB", s.perClient()},
		{"cold start: CPU per client", "µs", micros(s.coldCPU, clients)},
		{"cold start: last client", "ms", millis(s.coldLast)},
		{"cold start: peak of memory / at rest", "", float64(s.peak) / float64(s.rest)},
	}, nil
}

func (b *bench) fullState(system string) ([]metric, error) {
	spec := &Spec{Full: true, Resources: b.scale(1000, 200), Size: 1 << 10, PerClient: 1}
	clients := b.scale(1000, 200)
	s, err := b.begin(system, spec, clients, 1, 0)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	const n = 5
	cpu, _, last, err := s.updates(n)
	if err != nil {
		return nil, err
	}
	return []metric{
		{"CPU per message", "µs", micros(cpu, n*clients)},
		{"last client", "ms", millis(middle(last))},
		{"memory per client", "KiB", s.perClient()},
	}, nil
}

// stormed runs a storm, and returns the CPU time and how many messages came of it.
func (s *session) stormed(rate int, of time.Duration, count int) (cpu time.Duration, messages int, err error) {
	before, err := s.settled()
	if err != nil {
		return 0, 0, err
	}
	had, err := s.swarm.do(command{Do: "count"})
	if err != nil {
		return 0, 0, err
	}
	if _, err := s.source.do(command{Do: "storm", Rate: rate, For: of, Count: count, Version: s.version + 1}); err != nil {
		return 0, 0, err
	}
	s.version += int(of.Seconds() * float64(rate))
	after, err := s.settled()
	if err != nil {
		return 0, 0, err
	}
	have, err := s.swarm.do(command{Do: "count"})
	return after - before, int(have.Messages - had.Messages), err
}

func (b *bench) distinct(system string) ([]metric, error) {
	clients := b.scale(5000, 500)
	spec := &Spec{Delta: true, Resources: 2 * clients, Size: 1 << 10, PerClient: 10, Distinct: true}
	s, err := b.begin(system, spec, clients, 1, 0)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	cpu, messages, err := s.stormed(500, time.Duration(b.scale(10, 3))*time.Second, spec.Resources)
	if err != nil {
		return nil, err
	}
	return []metric{
		{"CPU per message", "µs", micros(cpu, messages)},
		{"memory per client", "KiB", s.perClient()},
	}, nil
}

func (b *bench) storm(system string) ([]metric, error) {
	const size = 4 << 10
	spec := &Spec{Delta: true, Resources: 100, Size: size, PerClient: 100}
	clients := b.scale(200, 50)
	var per [2]float64
	var growth float64
	for deaf := range 2 {
		if deaf == 1 && system == systemFloor {
			break // it would wait for that client
		}
		s, err := b.begin(system, spec, clients, 1, deaf)
		if err != nil {
			return nil, err
		}
		seconds := time.Duration(b.scale(10, 2)) * time.Second
		_, first, err := s.stormed(200, seconds, spec.Resources)
		if err == nil && deaf == 1 {
			var early, late int64
			if early, _, err = s.server.rss(); err == nil {
				if _, _, err = s.stormed(200, seconds, spec.Resources); err == nil {
					late, _, err = s.server.rss()
				}
			}
			growth = float64(late) / float64(early)
		}
		per[deaf] = float64(first) / float64(clients-deaf)
		s.stop()
		if err != nil {
			return nil, err
		}
	}
	if system == systemFloor {
		return []metric{{"messages per client", "", per[0]}}, nil
	}
	return []metric{
		{"messages per client", "", per[0]},
		{"messages per client beside a stalled one, of those without", "", per[1] / per[0]},
		{"memory after the second storm, of that after the first", "", growth},
	}, nil
}

func (b *bench) glob(system string) ([]metric, error) {
	spec := &Spec{Delta: true, Glob: true, Resources: b.scale(100_000, 10_000), Size: 100, PerClient: 1}
	clients := b.scale(1000, 20)
	s, err := b.begin(system, spec, clients, 1, 0)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	const n = 20
	cpu, _, last, err := s.updates(n)
	if err != nil {
		return nil, err
	}
	return []metric{
		{"join: CPU per client", "ms", micros(s.coldCPU, clients) / 1e3},
		{"join: last client", "ms", millis(s.coldLast)},
		{"CPU per message", "µs", micros(cpu, n*clients)},
		{"last client", "ms", millis(middle(last))},
		{"memory per client", "KiB", s.perClient()},
	}, nil
}

func (b *bench) growClients(system string) (out []metric, err error) {
	for _, clients := range b.steps(100, 1000, 10_000) {
		spec := &Spec{Delta: true, Resources: clients, Size: 1 << 10, PerClient: 1, Distinct: true}
		s, err := b.begin(system, spec, clients, 10, 0)
		if err != nil {
			return nil, err
		}
		cpu, messages, err := s.stormed(2000, time.Duration(b.scale(4, 1))*time.Second, 10)
		s.stop()
		if err != nil {
			return nil, err
		}
		out = append(out, metric{fmt.Sprintf("CPU per message at %d clients", clients), "µs", micros(cpu, messages)})
	}
	return out, nil
}

func (b *bench) growMembers(system string) (out []metric, err error) {
	const clients = 10
	for _, members := range b.steps(100, 10_000, 100_000) {
		spec := &Spec{Delta: true, Glob: true, Resources: members, Size: 100, PerClient: 1}
		s, err := b.begin(system, spec, clients, 1, 0)
		if err != nil {
			return nil, err
		}
		cpu, messages, err := s.stormed(500, time.Duration(b.scale(4, 1))*time.Second, 100)
		s.stop()
		if err != nil {
			return nil, err
		}
		out = append(out, metric{fmt.Sprintf("CPU per message at %d members", members), "µs", micros(cpu, messages)})
	}
	return out, nil
}

// steps are the sizes at which growth is looked at.
func (b *bench) steps(sizes ...int) []int {
	if b.quick {
		return sizes[:len(sizes)-1]
	}
	return sizes
}

func (b *bench) hop(name string) ([]metric, error) {
	spec := &Spec{Delta: true, Resources: 1, Size: 1 << 10, PerClient: 1}
	origin, err := startRole("origin", "origin", spec)
	if err != nil {
		return nil, err
	}
	sys := &system{name: name, server: origin, source: origin}
	defer func() { sys.stop() }()
	server := origin
	switch name {
	case systemHop:
		behind := *spec
		behind.Upstream = origin.address
		server, err = startRole(name, "hop", &behind)
	case systemRelay:
		server, err = startRelay(b.relay, origin.address)
	}
	if err != nil {
		return nil, err
	}
	sys.server = server
	swarm, err := startRole("swarm", "swarm", spec)
	if err != nil {
		return nil, err
	}
	defer swarm.stop()
	s := &session{system: sys, swarm: swarm, spec: spec, clients: 1, version: 1}
	if err := s.connect(1, 1, 0); err != nil {
		return nil, err
	}
	_, _, last, err := s.updates(b.scale(500, 100))
	if err != nil {
		return nil, err
	}
	return []metric{{"latency", "µs", micros(middle(last), 1)}}, nil
}

func (b *bench) upstream(string) (out []metric, err error) {
	for _, clients := range b.steps(1, 100, 10_000) {
		spec := &Spec{Delta: true, Resources: 100, Size: 1 << 10, PerClient: 100}
		s, err := b.begin(systemRelay, spec, clients, min(clients, 10), 0)
		if err != nil {
			return nil, err
		}
		_, _, _, err = s.updates(10)
		if err != nil {
			s.stop()
			return nil, err
		}
		a, err := s.source.do(command{Do: "count"})
		s.stop()
		if err != nil {
			return nil, err
		}
		at := fmt.Sprintf(" at %d clients", clients)
		out = append(out,
			metric{"streams" + at, "", float64(a.Counts.Streams)},
			metric{"subscriptions" + at, "", float64(a.Counts.Subscriptions)},
			metric{"requests" + at, "", float64(a.Counts.Requests)},
			metric{"bytes sent" + at, "KiB", float64(a.Counts.ResponseBytes) / kib},
		)
	}
	return out, nil
}
