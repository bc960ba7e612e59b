package main

import "time"

// p: a relay behind a relay, compared with one relay.

const systemSingle = "one relay"

func tiers() []scenario {
	p := of("p", "a relay behind a relay, against one", []string{systemSingle, systemRelay}, (*bench).tiers).atMost(1)
	p.compare = secondHop
	return []scenario{p}
}

func (b *bench) tiers(system string) []metric {
	one := &Spec{Delta: true, Resources: 1, Size: kib, PerClient: 1}
	glob := &Spec{Delta: true, Glob: true, Resources: b.scale(20_000, 2000), Size: 200, PerClient: 1}
	fleet := &Spec{Delta: true, Resources: 100, Size: kib, PerClient: 100}
	for _, spec := range []*Spec{one, glob, fleet} {
		spec.Tiers = 2
		if system == systemSingle {
			spec.Tiers = 1
		}
	}
	s := b.begin(systemRelay, one, 1, 1, 0)
	_, _, alone := s.updates(b.scale(2000, 300))
	s.stop()

	s = b.beginEmpty(systemRelay, glob)
	before := s.behind()
	globCPU, globLast := s.takeIn(1)
	globCPU += s.behind() - before
	s.stop()

	clients, n := b.scale(1000, 200), b.scale(20, 10)
	s = b.beginWarm(systemRelay, fleet, command{Clients: clients, PerConn: 1})
	before = s.behind()
	cpu, _, waited := s.updates(n)
	after := s.behind()
	return []metric{
		{latency, "µs", micros(middle(alone), 1)},
		{"a glob: CPU of all relays per member", "µs", micros(globCPU, glob.Resources)},
		{"a glob: last member", "ms", millis(globLast)},
		{"clients come: last client", "ms", millis(s.coldLast)},
		{"one changes: CPU per message of the clients' relay", "µs", micros(cpu, n*clients)},
		{"one changes: CPU per update of relays behind it", "µs", micros(after-before, n)},
		{"one changes: last client", "ms", millis(middle(waited))},
	}
}

// behind returns the CPU time of all relays but the one that clients connect to.
func (s *system) behind() (sum time.Duration) {
	for _, c := range s.between {
		sum += settled(c)
	}
	return sum
}

// secondHop adds the latency that the second relay adds.
func secondHop(of *result, round int) {
	one, ok := of.latency(systemSingle, round)
	if two, there := of.latency(systemRelay, round); ok && there {
		of.add(systemRelay, round, []metric{{"added latency", "µs", two - one}})
	}
}
