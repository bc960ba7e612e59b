package main

import "time"

// p: a relay behind a relay, compared with one relay.

const systemSingle = "one relay"

func tiers() []scenario {
	p := of("p", "a relay behind a relay, against one", []string{systemSingle, systemRelay}, (*bench).tiers)
	p.rounds, p.compare = 1, secondHop
	return []scenario{p}
}

func (b *bench) tiers(system string) ([]metric, error) {
	one := &Spec{Delta: true, Resources: 1, Size: kib, PerClient: 1}
	glob := &Spec{Delta: true, Glob: true, Resources: b.scale(20_000, 2000), Size: 200, PerClient: 1}
	fleet := &Spec{Delta: true, Resources: 100, Size: kib, PerClient: 100}
	for _, spec := range []*Spec{one, glob, fleet} {
		spec.Tiers = 2
		if system == systemSingle {
			spec.Tiers = 1
		}
	}
	s, err := b.begin(systemRelay, one, 1, 1, 0)
	if err != nil {
		return nil, err
	}
	_, _, alone, err := s.updates(b.scale(2000, 300))
	s.stop()
	if err != nil {
		return nil, err
	}
	out := []metric{{latency, "µs", micros(middle(alone), 1)}}

	sys, err := start(systemRelay, glob, b.relay)
	if err != nil {
		return nil, err
	}
	cpu, last, err := b.through(sys, glob)
	sys.stop()
	if err != nil {
		return nil, err
	}
	out = append(out,
		metric{"a glob: CPU of all relays per member", "µs", micros(cpu, glob.Resources)},
		metric{"a glob: last member", "ms", millis(last)})

	clients, n := b.scale(1000, 200), b.scale(20, 10)
	if s, err = b.beginWarm(systemRelay, fleet, command{Clients: clients, PerConn: 1}); err != nil {
		return nil, err
	}
	defer s.stop()
	before, err := s.behind()
	if err != nil {
		return nil, err
	}
	cpu, _, waited, err := s.updates(n)
	if err != nil {
		return nil, err
	}
	after, err := s.behind()
	return append(out,
		metric{"clients come: last client", "ms", millis(s.coldLast)},
		metric{"one changes: CPU per message of the clients' relay", "µs", micros(cpu, n*clients)},
		metric{"one changes: CPU per update of relays behind it", "µs", micros(after-before, n)},
		metric{"one changes: last client", "ms", millis(middle(waited))},
	), err
}

// through connects one client, waits until it has all resources, and returns the CPU time of all
// relays.
func (b *bench) through(sys *system, spec *Spec) (cpu, last time.Duration, err error) {
	s, err := newSession(sys, spec)
	if err != nil {
		return 0, 0, err
	}
	defer s.swarm.stop()
	before, err := s.behind()
	if err != nil {
		return 0, 0, err
	}
	if cpu, last, err = s.takeIn("all", 1); err != nil {
		return 0, 0, err
	}
	after, err := s.behind()
	return cpu + after - before, last, err
}

// behind returns the CPU time of all relays but the one that clients connect to.
func (s *system) behind() (sum time.Duration, err error) {
	for _, c := range s.between {
		cpu, err := settled(c)
		if err != nil {
			return 0, err
		}
		sum += cpu
	}
	return sum, nil
}

// secondHop adds the latency that the second relay adds.
func secondHop(of *result, round int) {
	one, ok := of.latency(systemSingle, round)
	if two, there := of.latency(systemRelay, round); ok && there {
		of.add(systemRelay, round, []metric{{"added latency", "µs", two - one}})
	}
}
