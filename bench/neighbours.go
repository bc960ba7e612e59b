package main

import "time"

// s: the latency of one authority's updates while another authority, or another client, causes
// load: without the load, with the load on another relay of the same machine, and with the
// load on the same relay.

const (
	systemAlone = "alone"
	systemOther = "with another relay under load"
)

func neighbours() []scenario {
	systems := []string{systemAlone, systemOther, systemRelay}
	return []scenario{
		of("s1", "neighbours: one authority's updates while another takes in a set of 1,000,000 members", systems, func(b *bench, system string) []metric {
			has := &Spec{Delta: true, Glob: true, Resources: b.scale(1_000_000, 50_000), Size: 100, PerClient: 1}
			return b.neighbours(system, has, has)
		}),
		of("s2", "neighbours: one authority's updates while a client asks another for a full state of 100 MB of its own", systems, func(b *bench, system string) []metric {
			n := b.scale(10_000, 500)
			has := &Spec{Delta: true, Full: true, Named: true, Resources: n, Size: 10 * kib, PerClient: n}
			large := *has
			large.Delta = false
			return b.neighbours(system, has, &large)
		}),
	}
}

// neighbours measures one authority while a client requests a large Spec of another.
func (b *bench) neighbours(system string, has, large *Spec) []metric {
	has.Shape, large.Shape = shapeNeighbour, shapeNeighbour
	other := b.role("neighbour", "floor", has)
	spec := &Spec{Delta: true, Resources: 100, Size: kib, PerClient: 100, Stamped: true, Neighbour: other.address}
	s := b.begin(systemRelay, spec, b.scale(20, 10), 1, 0)
	relay := s.server
	if system == systemOther {
		relay = b.relay(spec, s.source.address)
	}
	client := b.role("swarm", "swarm", large)
	s.latencies()
	began, answered := time.Now(), make(chan error, 1)
	go func() {
		if system == systemAlone {
			pause(time.Duration(b.scale(4, 1)) * time.Second)
			answered <- nil
			return
		}
		answered <- receiveAll(client, relay, large)
	}()
	for served := false; !served; {
		s.storm(100, 250*time.Millisecond, spec.Resources)
		select {
		case err := <-answered:
			check(err)
			served = true
		default:
		}
	}
	took := time.Since(began)
	pause(time.Second / 2) // for responses in flight
	return append(latencyMetrics(s.latencies()), metric{"for how long", "s", took.Seconds()})
}

// receiveAll subscribes a client to all resources of a spec, and waits until it has them.
func receiveAll(client, relay *child, spec *Spec) error {
	if _, err := client.do(command{
		Do: "connect", Group: "all", Address: relay.address, Clients: 1, Each: true, Count: spec.Resources, Spec: spec,
	}); err != nil {
		return err
	}
	_, err := client.do(command{Do: "await", Group: "all", Timeout: patience})
	return err
}
