package main

import "time"

// l: the origin has the resources under other names, or in other places, than clients request.
// For comparison, the relay also serves the same content directly.

const systemPlain = "xds-relay, plain"

var withPlain = []string{systemFloor, systemPlain, systemRelay}

// detours are the scenarios of shapes.
func detours() (all []scenario) {
	for _, d := range []struct {
		id, title string
		shape     shape
	}{
		{"l1", "a view of two globs, against a glob", shapeView},
		{"l2", "the same, renamed", shapeRenamed},
		{"l3", "names that redirect to another authority, against names that do not", shapeRedirect},
		{"l4", "names served from their #alt, the primary's server being gone, against names without", shapeAlt},
		{"l5", "aliases, against names", shapeAlias},
	} {
		all = append(all, of(d.id, d.title, withPlain, func(b *bench, system string) []metric {
			return b.detour(system, &Spec{Delta: true, Glob: d.shape == shapeView || d.shape == shapeRenamed, Shape: d.shape})
		}).atMost(1))
	}
	return all
}

// detour measures one client that receives many resources and then a storm of updates, and
// many clients that subscribe to few.
func (b *bench) detour(system string, spec *Spec) []metric {
	if system == systemPlain {
		system, spec = systemRelay, spec.plain()
	}
	many, few := *spec, *spec
	many.Resources, many.Size, many.Stamped = b.scale(20_000, 2000), 200, true
	many.PerClient = many.Resources
	of := b.takenIn(system, &many)
	few.Resources, few.Size, few.PerClient = 100, kib, 100
	clients, n := b.scale(1000, 200), b.scale(20, 10)
	s := b.beginWarm(system, &few, command{Clients: clients, PerConn: 1})
	cpu, _, last := s.updates(n)
	return append(of,
		metric{"many join: CPU per client", "µs", micros(s.coldCPU, clients)},
		metric{"many join: last client", "ms", millis(s.coldLast)},
		metric{"many join: memory per client", "KiB", s.perClient(s.rest)},
		metric{"one changes: CPU per message", "µs", micros(cpu, n*clients)},
		metric{"one changes: last client", "ms", millis(middle(last))},
	)
}

// takenIn measures the one client.
func (b *bench) takenIn(system string, spec *Spec) []metric {
	s := b.beginEmpty(system, spec)
	defer s.stop()
	cpu, last := s.takeIn(1)
	out := []metric{
		{"taking in: CPU per resource", "µs", micros(cpu, spec.Resources)},
		{"taking in: last resource", "ms", millis(last)},
		{"taking in: memory per resource", "B", float64(s.rest-s.empty) / float64(spec.Resources)},
	}
	s.latencies()
	const rate = 1000
	during := time.Duration(b.scale(4, 1)) * time.Second
	cpu, _ = s.stormed(rate, during, spec.Resources)
	a := s.latencies()
	return append(out,
		metric{"1,000 updates/s: CPU per update", "µs", micros(cpu, int(rate*during.Seconds()))},
		metric{"1,000 updates/s: latency, median", "µs", float64(a.Median) / 1e3},
		metric{"1,000 updates/s: latency, 99 %", "µs", float64(a.Slow) / 1e3},
		metric{"1,000 updates/s: versions delivered, of all", "", float64(a.Stamps) / rate / during.Seconds()},
	)
}

// takeIn connects clients and waits until they have all resources. It returns the CPU time of
// the server, and the time until the last client had the last resource.
func (s *session) takeIn(clients int) (cpu, last time.Duration) {
	s.empty, _ = s.memory()
	before := s.settled()
	began := time.Now()
	s.connectForAll(clients)
	a := s.await()
	cpu = s.settled() - before
	s.rest, s.peak = s.memory()
	return cpu, time.Unix(0, a.Last).Sub(began)
}
