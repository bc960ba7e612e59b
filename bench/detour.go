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
		all = append(all, scenario{
			tables:  []table{{d.id, d.title}},
			systems: withPlain,
			rounds:  1,
			run: func(b *bench, system string) ([][]metric, error) {
				metrics, err := b.detour(system, &Spec{Delta: true, Glob: d.shape == shapeView || d.shape == shapeRenamed, Shape: d.shape})
				return [][]metric{metrics}, err
			},
		})
	}
	return all
}

// detour measures one client that receives many resources and then a storm of updates, and
// many clients that subscribe to few.
func (b *bench) detour(system string, spec *Spec) ([]metric, error) {
	if system == systemPlain {
		system, spec = systemRelay, spec.plain()
	}
	many, few := *spec, *spec
	many.Resources, many.Size, many.Stamped = b.scale(20_000, 2000), 200, true
	many.PerClient = many.Resources
	of, err := b.takenIn(system, &many)
	if err != nil {
		return nil, err
	}
	few.Resources, few.Size, few.PerClient = 100, kib, 100
	clients, n := b.scale(1000, 200), b.scale(20, 10)
	s, err := b.beginWarm(system, &few, command{Clients: clients, PerConn: 1})
	if err != nil {
		return nil, err
	}
	defer s.stop()
	cpu, _, last, err := s.updates(n)
	if err != nil {
		return nil, err
	}
	return append(of,
		metric{"many join: CPU per client", "µs", micros(s.coldCPU, clients)},
		metric{"many join: last client", "ms", millis(s.coldLast)},
		metric{"many join: memory per client", "KiB", s.perClient(s.rest)},
		metric{"one changes: CPU per message", "µs", micros(cpu, n*clients)},
		metric{"one changes: last client", "ms", millis(middle(last))},
	), nil
}

// takenIn measures the one client.
func (b *bench) takenIn(system string, spec *Spec) ([]metric, error) {
	s, err := b.beginEmpty(system, spec)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	cpu, last, err := s.takeIn("all", 1)
	if err != nil {
		return nil, err
	}
	out := []metric{
		{"taking in: CPU per resource", "µs", micros(cpu, spec.Resources)},
		{"taking in: last resource", "ms", millis(last)},
		{"taking in: memory per resource", "B", float64(s.rest-s.empty) / float64(spec.Resources)},
	}
	if _, err := s.swarm.do(command{Do: "latency"}); err != nil { // reset the latencies
		return nil, err
	}
	const rate = 1000
	during := time.Duration(b.scale(4, 1)) * time.Second
	if cpu, _, err = s.stormed(rate, during, spec.Resources); err != nil {
		return nil, err
	}
	a, err := s.swarm.do(command{Do: "latency"})
	return append(out,
		metric{"1,000 updates/s: CPU per update", "µs", micros(cpu, int(rate*during.Seconds()))},
		metric{"1,000 updates/s: latency, median", "µs", float64(a.Median) / 1e3},
		metric{"1,000 updates/s: latency, 99 %", "µs", float64(a.Slow) / 1e3},
		metric{"1,000 updates/s: versions delivered, of all", "", float64(a.Stamps) / rate / during.Seconds()},
	), err
}

// takeIn connects clients and waits until they have all resources. It returns the CPU time of
// the server, and the time until the last client had the last resource.
func (s *session) takeIn(group string, clients int) (cpu, last time.Duration, err error) {
	if s.empty, _, err = s.server.rss(); err != nil {
		return 0, 0, err
	}
	before, err := s.settled()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	connect := command{Do: "connect", Group: group, Address: s.server.address, Clients: clients, Spec: s.spec, Each: true, Count: clients * len(s.spec.indexes(0))}
	if _, err := s.swarm.do(connect); err != nil {
		return 0, 0, err
	}
	a, err := s.swarm.do(command{Do: "await", Group: group, Timeout: patience})
	if err != nil {
		return 0, 0, err
	}
	after, err := s.settled()
	if err != nil {
		return 0, 0, err
	}
	s.clients = clients
	s.rest, s.peak, err = s.server.rss()
	return after - before, time.Unix(0, a.Last).Sub(began), err
}
