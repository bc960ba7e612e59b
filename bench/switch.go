package main

import (
	"fmt"
	"time"
)

// m: the control plane fails, and the relay switches to another one of the authority. That has
// the same resources except for one. When clients have that one, the switch is complete. Its
// cost is compared with that of the first load.

func switches() (all []scenario) {
	for _, m := range []struct {
		id, what string
		glob     bool
	}{{"m1", "a glob of 100,000 members", true}, {"m2", "100,000 names", false}} {
		all = append(all, scenario{
			tables:  []table{{m.id, "failover to another server: " + m.what + ", one client"}},
			systems: []string{systemRelay},
			rounds:  1,
			run: func(b *bench, _ string) ([][]metric, error) {
				n := b.scale(100_000, 5000)
				metrics, err := b.switched(&Spec{Delta: true, Glob: m.glob, Resources: n, Size: 200, PerClient: n})
				return [][]metric{metrics}, err
			},
		})
	}
	return all
}

// failoverConfig is the configuration of the authority apart from its servers.
const failoverConfig = `    failover: {policy: unreachable, grace: 100ms}
`

func (b *bench) switched(spec *Spec) ([]metric, error) {
	second, err := startRole("second origin", "origin", spec)
	if err != nil {
		return nil, err
	}
	defer second.stop()
	// The one resource that differs.
	const differs = 2
	if _, err := second.do(command{Do: "update", Index: 0, Version: differs}); err != nil {
		return nil, err
	}
	spec.Second = second.address
	s, err := b.beginEmpty(systemRelay, spec)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	firstCPU, firstLast, err := s.takeIn("all", 1)
	if err != nil {
		return nil, err
	}
	before, err := s.settled()
	if err != nil {
		return nil, err
	}
	rest, _, err := s.server.rss()
	if err != nil {
		return nil, err
	}
	had, err := s.swarm.do(command{Do: "count"})
	if err != nil {
		return nil, err
	}
	if err := s.server.forgetPeak(); err != nil {
		return nil, err
	}
	if _, err := s.swarm.do(command{Do: "watch", Group: "all", Version: differs}); err != nil {
		return nil, err
	}
	s.source.stop()
	lost := time.Now()
	a, err := s.swarm.do(command{Do: "await", Group: "all", Timeout: patience})
	if err != nil {
		return nil, fmt.Errorf("the second server: %w", err)
	}
	after, err := s.settled()
	if err != nil {
		return nil, err
	}
	_, peak, err := s.server.rss()
	if err != nil {
		return nil, err
	}
	have, err := s.swarm.do(command{Do: "count"})
	cpu, n := after-before, spec.Resources
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
	}, err
}
