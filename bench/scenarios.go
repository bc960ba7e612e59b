package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The scenarios and their metrics.

// metric is a figure of a run.
type metric struct {
	name, unit string
	value      float64
}

// table is a part of the results.
type table struct{ id, title string }

// scenario runs with each system, once in each round.
type scenario struct {
	// tables are its results; run returns the metrics of each.
	tables  []table
	systems []string
	run     func(b *bench, system string) [][]metric
	// compare, if not nil, adds metrics that need several systems of a round.
	compare func(of *result, round int)
	// rounds bounds the rounds if it is not 0: for counts, and for runs of minutes.
	rounds int
}

// among returns whether the id of one of the tables begins with one of ids.
func (sc *scenario) among(ids []string) bool {
	return slices.ContainsFunc(sc.tables, func(t table) bool {
		return slices.ContainsFunc(ids, func(id string) bool { return strings.HasPrefix(t.id, id) })
	})
}

// of returns a scenario with one table.
func of(id, title string, systems []string, run func(*bench, string) []metric) scenario {
	return scenario{tables: []table{{id, title}}, systems: systems, run: func(b *bench, system string) [][]metric {
		return [][]metric{run(b, system)}
	}}
}

// atMost returns the scenario with a bound on its rounds.
func (sc scenario) atMost(rounds int) scenario {
	sc.rounds = rounds
	return sc
}

// bench is a run of all chosen scenarios.
type bench struct {
	binary string // of the relay
	quick  bool
	// tiny: the numbers are too small to measure anything. For tests.
	tiny bool

	started []*child // by the scenario that runs
}

// scale returns n, or a smaller number in a quick run.
func (b *bench) scale(n, quick int) int {
	switch {
	case b.tiny:
		return max(1, quick/50)
	case b.quick:
		return quick
	}
	return n
}

func micros(d time.Duration, n int) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(n) }

func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

const kib = 1 << 10

var everybody = []string{systemFloor, systemRelay, systemLinear, systemSnapshot}

var ours = []string{systemFloor, systemRelay}

// scenarios returns all scenarios. Most long ones run only once or twice, so that all take less
// than three quarters of an hour.
func scenarios() []scenario {
	var all []scenario
	for _, idle := range []struct {
		id               string
		clients, perConn int
	}{{"a1", 1000, 1}, {"a2", 5000, 1}, {"a3", 10_000, 1}, {"a4", 10_000, 100}} {
		title := fmt.Sprintf("idle: %d clients on %d connections, 100 names each", idle.clients, idle.clients/idle.perConn)
		all = append(all, of(idle.id, title, ours, func(b *bench, system string) []metric {
			return b.idle(system, b.scale(idle.clients, idle.clients/10), idle.perConn)
		}))
	}
	for _, delta := range []bool{true, false} {
		n, form := "1", "delta"
		if !delta {
			n, form = "2", "SotW"
		}
		all = append(all, scenario{
			tables: []table{
				{"b" + n, "one of 100 shared resources of 1 KB changes, 5,000 clients, " + form},
				{"d" + n, "cold start of 5,000 clients with 100 resources of 1 KB each, " + form},
			},
			systems: everybody,
			run:     func(b *bench, system string) [][]metric { return b.shared(system, delta) },
		})
	}
	hop := of("i", "latency of an update from origin to client", []string{systemDirect, systemHop, systemRelay}, (*bench).hop)
	hop.compare = addedLatency
	all = slices.Concat(all, detours(), switches(), heartbeats(), longPolls(), tiers(), herds(), neighbours(), firsts(), mutualTLS(), stores(), rollouts(), seen())
	all = append(all,
		of("c", "full-state SotW of 1,000 clusters of 1 KB, 1,000 clients", everybody, (*bench).fullState),
		of("e", "5,000 clients with 10 names each out of 10,000, updates to single ones", []string{systemFloor, systemRelay, systemLinear}, (*bench).distinct),
		of("f", "200 updates/s for 20 s, with one client that never reads", ours, (*bench).storm),
		of("g1", "a glob of 100,000 members: 1,000 clients join, one member changes", ours, (*bench).glob).atMost(2),
		of("g2", "what the relay holds of a glob of 100,000 members, for each", []string{systemRelay}, (*bench).perMember).atMost(1),
		of("k1", "overload: 200 updates/s, 1,000 clients, delta", ours, func(b *bench, system string) []metric {
			return b.overload(system, &Spec{Delta: true, Resources: 100, PerClient: 100}, 1000, 200)
		}),
		of("k2", "overload: 200 updates/s, 1,000 clients, SotW", ours, func(b *bench, system string) []metric {
			return b.overload(system, &Spec{Resources: 100, PerClient: 100}, 1000, 200)
		}),
		of("k3", "overload: 200 updates/s, 1,000 clients of a glob, delta", ours, func(b *bench, system string) []metric {
			return b.overload(system, &Spec{Delta: true, Glob: true, Resources: 100, PerClient: 100}, 1000, 200)
		}),
		of("k4", "overload: 100 full states of 10 KB a second, 1,000 clients, SotW", ours, func(b *bench, system string) []metric {
			return b.overload(system, &Spec{Full: true, Resources: 10, PerClient: 10}, 1000, 100)
		}),
		of("k5", "overload: 1,000 updates/s, 1,000 clients, delta", []string{systemRelay}, func(b *bench, system string) []metric {
			return b.overload(system, &Spec{Delta: true, Resources: 100, PerClient: 100}, 1000, 1000)
		}),
		of("k6", "overload: 40 updates/s, 5,000 clients, delta", ours, func(b *bench, system string) []metric {
			return b.overload(system, &Spec{Delta: true, Resources: 100, PerClient: 100}, 5000, 40)
		}),
		of("h1", "growth: one update as clients unrelated to it grow", ours, (*bench).growClients),
		of("h2", "growth: one update as the collection grows", ours, (*bench).growMembers),
		hop, of("j", "the origin's side of the relay", []string{systemRelay}, (*bench).upstream).atMost(1),
	)
	for i := range all {
		if all[i].among([]string{"k"}) {
			all[i].rounds = 2
		}
	}
	return all
}

func (b *bench) idle(system string, clients, perConn int) []metric {
	spec := &Spec{Delta: true, Resources: 100, Size: 1 << 10, PerClient: 100}
	s := b.beginWarm(system, spec, command{Clients: clients, PerConn: perConn})
	return []metric{{"memory per client", "KiB", s.perClient(s.rest)}}
}

// shared measures b and d: the clients connect (d) before the updates (b).
func (b *bench) shared(system string, delta bool) [][]metric {
	spec := &Spec{Delta: delta, Resources: 100, Size: 1 << 10, PerClient: 100}
	clients := b.scale(5000, 500)
	s := b.beginWarm(system, spec, command{Clients: clients, PerConn: 1})
	n := b.scale(10, 20)
	cpu, median, last := s.updates(n)
	return [][]metric{
		{
			{"CPU per message", "µs", micros(cpu, n*clients)},
			{"median client", "ms", millis(middle(median))},
			{"last client", "ms", millis(middle(last))},
			{"memory per client", "KiB", s.perClient(s.rest)},
		},
		{
			{"CPU per client", "µs", micros(s.coldCPU, clients)},
			{"last client", "ms", millis(s.coldLast)},
			{"most memory per client", "KiB", s.perClient(s.peak)},
			{"most memory, of that at rest", "", float64(s.peak) / float64(s.rest)},
		},
	}
}

func (b *bench) fullState(system string) []metric {
	spec := &Spec{Full: true, Resources: b.scale(1000, 200), Size: 1 << 10, PerClient: 1}
	clients := b.scale(1000, 200)
	s := b.beginWarm(system, spec, command{Clients: clients, PerConn: 1})
	n := b.scale(3, 10)
	cpu, _, last := s.updates(n)
	_, peak := s.memory()
	return []metric{
		{"CPU per message", "µs", micros(cpu, n*clients)},
		{"last client", "ms", millis(middle(last))},
		{"memory per client", "KiB", s.perClient(s.rest)},
		{"most memory per client", "KiB", s.perClient(peak)},
	}
}

func (b *bench) distinct(system string) []metric {
	clients := b.scale(5000, 500)
	spec := &Spec{Delta: true, Resources: 2 * clients, Size: 1 << 10, PerClient: 10, Distinct: true}
	s := b.beginWarm(system, spec, command{Clients: clients, PerConn: 1})
	cpu, messages := s.stormed(500, time.Duration(b.scale(6, 1))*time.Second, spec.Resources)
	return []metric{
		{"CPU per message", "µs", micros(cpu, messages)},
		{"memory per client", "KiB", s.perClient(s.rest)},
	}
}

func (b *bench) growClients(system string) (out []metric) {
	for _, clients := range b.steps(100, 1000, 10_000) {
		spec := &Spec{Delta: true, Resources: clients, Size: 1 << 10, PerClient: 1, Distinct: true}
		s := b.begin(system, spec, clients, 10, 0)
		cpu, messages := s.stormed(2000, time.Duration(b.scale(4, 1))*time.Second, 10)
		s.stop()
		out = append(out, metric{fmt.Sprintf("CPU per message at %d clients", clients), "µs", micros(cpu, messages)})
	}
	return out
}

func (b *bench) growMembers(system string) (out []metric) {
	const clients = 10
	for _, members := range b.steps(100, 10_000, 100_000) {
		spec := &Spec{Delta: true, Glob: true, Resources: members, Size: 100, PerClient: 1}
		s := b.begin(system, spec, clients, 1, 0)
		cpu, messages := s.stormed(500, time.Duration(b.scale(4, 1))*time.Second, 100)
		s.stop()
		out = append(out, metric{fmt.Sprintf("CPU per message at %d members", members), "µs", micros(cpu, messages)})
	}
	return out
}

// steps returns the sizes at which growth is measured.
func (b *bench) steps(sizes ...int) []int {
	switch {
	case b.tiny:
		return sizes[:1]
	case b.quick:
		return sizes[:len(sizes)-1]
	}
	return sizes
}

func (b *bench) upstream(string) (out []metric) {
	for _, clients := range b.steps(1, 100, 10_000) {
		spec := &Spec{Delta: true, Resources: 100, Size: 1 << 10, PerClient: 100}
		s := b.begin(systemRelay, spec, clients, min(clients, 10), 0)
		s.updates(10)
		a := must(s.source.do(command{Do: "count"}))
		s.stop()
		at := fmt.Sprintf(" at %d clients", clients)
		out = append(out,
			metric{"streams" + at, "", float64(a.Counts.Streams)},
			metric{"subscriptions" + at, "", float64(a.Counts.Subscriptions)},
			metric{"requests" + at, "", float64(a.Counts.Requests)},
			metric{"bytes sent" + at, "KiB", float64(a.Counts.ResponseBytes) / kib},
		)
	}
	return out
}
