package main

import "time"

// m: the control plane fails, and the relay switches to another one of the authority, whose resources
// are the same except for one. When clients have that resource, the switch is complete. Its cost is
// compared with that of the first load.

func switches() (all []scenario) {
	for _, m := range []struct {
		id, what string
		glob     bool
	}{{"m1", "a glob of 100,000 members", true}, {"m2", "100,000 names", false}} {
		all = append(all, of(m.id, "failover to another server: "+m.what+", one client", []string{systemRelay}, func(b *bench, _ string) []metric {
			n := b.scale(100_000, 5000)
			return b.switched(&Spec{Delta: true, Glob: m.glob, Resources: n, Size: 200, PerClient: n})
		}).atMost(1))
	}
	return all
}

// failoverConfig is the configuration of the authority apart from its servers.
const failoverConfig = `    failover: {policy: unreachable, grace: 100ms}
`

func (b *bench) switched(spec *Spec) []metric {
	second := b.role("second origin", "origin", spec)
	// The one resource that differs.
	const differs = 2
	must(second.do(command{Do: "update", Index: 0, Version: differs}))
	spec.Second = second.address
	s := b.beginEmpty(systemRelay, spec)
	firstCPU, firstLast := s.takeIn(1)
	before := s.settled()
	rest, _ := s.memory()
	had := s.counted()
	check(s.server.forgetPeak())
	s.watch(differs)
	s.source.stop()
	lost := time.Now()
	a := s.await()
	cpu, n := s.settled()-before, spec.Resources
	_, peak := s.memory()
	have := s.counted()
	return []metric{
		{"first server: CPU per resource", "µs", micros(firstCPU, n)},
		{"first server: last resource", "ms", millis(firstLast)},
		{"first server: memory per resource", "B", float64(s.rest-s.empty) / float64(n)},
		{"second server: CPU per resource", "µs", micros(cpu, n)},
		{"second server: CPU, of that of the first", "", float64(cpu) / float64(firstCPU)},
		{"second server: from the loss of the first to what it says", "ms", millis(time.Unix(0, a.Last).Sub(lost))},
		{"second server: most memory, of that before", "", float64(peak) / float64(rest)},
		{"second server: sent to the client", "KiB", float64(have.Bytes-had.Bytes) / kib},
		{"second server: sent as removed", "", float64(have.Removed - had.Removed)},
	}
}
