package main

// i: the latency that a hop adds to an update. Ratios are to a hop that only forwards, as they
// are to the floor elsewhere.

const latency = "latency"

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
		server, err = startRelay(b.relay, spec, origin.address)
	}
	if err != nil {
		return nil, err
	}
	sys.server = server
	s, err := b.join(sys, spec, 1, 1, 0)
	if err != nil {
		return nil, err
	}
	defer s.swarm.stop()
	_, _, last, err := s.updates(b.scale(3000, 500))
	if err != nil {
		return nil, err
	}
	return []metric{{latency, "µs", micros(middle(last), 1)}}, nil
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
