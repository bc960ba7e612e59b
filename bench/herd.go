package main

import (
	"fmt"
	"time"
)

// q: many clients connect at once. r: many streams share a connection, as those of a sidecar
// proxy or of another relay do.

func herds() (all []scenario) {
	for _, herd := range []struct {
		id      string
		clients int
		delta   bool
	}{{"q1", 5000, true}, {"q2", 5000, false}, {"q3", 10_000, true}, {"q4", 10_000, false}} {
		title := fmt.Sprintf("herd: %d clients come at once, each on its connection, for 100 names, %s", herd.clients, form(herd.delta))
		all = append(all, of(herd.id, title, ours, func(b *bench, system string) []metric {
			return b.herd(system, &Spec{Delta: herd.delta, Resources: 100, Size: 1 << 10, PerClient: 100}, b.scale(herd.clients, herd.clients/10), 1)
		}))
	}
	for _, herd := range []struct {
		id    string
		delta bool
	}{{"q5", true}, {"q6", false}} {
		title := "herd: 5,000 clients come at once for 100 names, while 100 others get 100 updates a second of other names, " + form(herd.delta)
		all = append(all, of(herd.id, title, ours, func(b *bench, system string) []metric {
			return b.herdBesides(system, &Spec{Delta: herd.delta, Resources: 200, Size: 1 << 10, PerClient: 100, Distinct: true, Stamped: true}, b.scale(5000, 500))
		}))
	}
	for _, herd := range []struct {
		id    string
		delta bool
	}{{"r1", true}, {"r2", false}} {
		title := "streams: 10,000 come at once on 100 connections, each for 100 names, " + form(herd.delta)
		all = append(all, of(herd.id, title, ours, func(b *bench, system string) []metric {
			return b.herd(system, &Spec{Delta: herd.delta, Resources: 100, Size: 1 << 10, PerClient: 100}, b.scale(10_000, 1000), 100)
		}))
	}
	most := of("r3", "streams: 100,000 on 1,000 connections, each for 10 names: they come, one resource changes, all come back", ours, (*bench).streams)
	return append(all, most.atMost(2))
}

func form(delta bool) string {
	if delta {
		return "delta"
	}
	return "SotW"
}

// herd measures clients that connect at once.
func (b *bench) herd(system string, spec *Spec, clients, perConn int) []metric {
	s := b.beginWarm(system, spec, command{Clients: clients, PerConn: perConn, AtOnce: true})
	return []metric{
		{"CPU per client", "µs", micros(s.coldCPU, clients)},
		{"last client", "ms", millis(s.coldLast)},
		{"memory per client", "KiB", s.perClient(s.rest)},
	}
}

// herdBesides measures the updates of clients that are there while others connect at once. The clients with even numbers
// have the first half of the resources, which change.
func (b *bench) herdBesides(system string, spec *Spec, clients int) []metric {
	s := b.beginEmpty(system, spec)
	s.connect(command{Clients: b.scale(100, 50), Stride: 2})
	const rate = 100
	s.storm(rate, time.Second, spec.PerClient)
	alone := s.latencies()
	quiet := *spec
	quiet.Stamped = false
	herd := b.role("swarm", "swarm", &quiet)
	began, served := time.Now(), make(chan error, 1)
	var last time.Duration
	go func() {
		_, err := herd.do(command{Do: "connect", Group: "herd", Address: s.server.address, Spec: &quiet, Clients: clients, AtOnce: true, First: 1, Stride: 2})
		if err == nil {
			var a answer
			a, err = herd.do(command{Do: "await", Group: "herd", Timeout: patience})
			last = time.Unix(0, a.Last).Sub(began)
		}
		served <- err
	}()
	for there := false; !there; {
		s.storm(rate, 100*time.Millisecond, spec.PerClient)
		select {
		case err := <-served:
			check(err)
			there = true
		default:
		}
	}
	return append(latencyMetrics(s.latencies()),
		metric{"without the herd, 99 %", "µs", float64(alone.Slow) / 1e3},
		metric{"last client of the herd", "ms", millis(last)},
	)
}

// streams measures a process with very many streams.
func (b *bench) streams(system string) []metric {
	clients := b.scale(100_000, 10_000)
	s := b.beginWarm(system, &Spec{Delta: true, Resources: 10, Size: 1 << 10, PerClient: 10}, command{Clients: clients, PerConn: 100, AtOnce: true})
	came := []metric{
		{"memory per client", "KiB", s.perClient(s.rest)},
		{"come: CPU per client", "µs", micros(s.coldCPU, clients)},
		{"come: last client", "ms", millis(s.coldLast)},
	}
	const n = 5
	cpu, _, last := s.updates(n)
	came = append(came,
		metric{"one changes: CPU per message", "µs", micros(cpu, n*clients)},
		metric{"one changes: last client", "ms", millis(middle(last))},
	)
	s.comeBack(command{Clients: clients, PerConn: 100, AtOnce: true})
	return append(came,
		metric{"come back: CPU per client", "µs", micros(s.coldCPU, clients)},
		metric{"come back: last client", "ms", millis(s.coldLast)},
		metric{"come back: memory per client", "KiB", s.perClient(s.rest)},
	)
}
