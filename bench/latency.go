package main

// i: the latency that a hop adds to an update. Ratios are to a hop that only forwards, as they
// are to the floor elsewhere.

const latency = "latency"

func (b *bench) hop(name string) []metric {
	spec := &Spec{Delta: true, Resources: 1, Size: 1 << 10, PerClient: 1}
	origin := b.role("origin", "origin", spec)
	sys := &system{name: name, server: origin, source: origin}
	switch name {
	case systemHop:
		behind := *spec
		behind.Upstream = origin.address
		sys.server = b.role(name, "hop", &behind)
	case systemRelay:
		sys.server = b.relay(spec, origin.address)
	}
	s := b.join(sys, spec)
	s.connect(command{Clients: 1, PerConn: 1})
	_, _, last := s.updates(b.scale(3000, 500))
	return []metric{{latency, "µs", micros(middle(last), 1)}}
}

// addedLatency adds the latency less that without a hop, with the ratio to that of the bare
// hop.
func addedLatency(of *result, round int) {
	direct, ok := of.latency(systemDirect, round)
	for _, system := range []string{systemHop, systemRelay} {
		if v, there := of.latency(system, round); ok && there {
			of.add(system, round, []metric{{"added latency", "µs", v - direct}})
		}
	}
}
