package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// g: a glob with many members. Clients subscribe to it, and one member changes. Also, the live
// bytes of the relay for each member.

func (b *bench) glob(system string) []metric {
	members, clients := b.scale(100_000, 10_000), b.scale(1000, 200)
	const few, n = 1000, 50
	var out []metric
	var cost [2]float64
	for i, members := range []int{members, few} {
		spec := globSpec(members)
		s := b.beginWarm(system, spec, command{Clients: clients, PerConn: 1})
		cpu, _, last := s.updates(n)
		s.stop()
		cost[i] = micros(cpu, n*clients)
		if i == 0 {
			out = []metric{
				{"join: CPU per client", "ms", micros(s.coldCPU, clients) / 1e3},
				{"join: last client", "ms", millis(s.coldLast)},
				{"join: memory per client", "KiB", s.perClient(s.rest)},
				{"one changes: CPU per message", "µs", cost[0]},
				{"one changes: last client", "ms", millis(middle(last))},
			}
		}
	}
	return append(out, metric{fmt.Sprintf("one changes: CPU per message, of that with %d members", few), "", cost[0] / cost[1]})
}

func globSpec(members int) *Spec {
	return &Spec{Delta: true, Glob: true, Resources: members, Size: 100, PerClient: 1}
}

// perMember measures the live bytes of the relay for each member, with one client: the
// difference between many and few members.
func (b *bench) perMember(string) []metric {
	var members, live, bytes [2]float64
	for i, n := range []int{b.scale(10_000, 2000), b.scale(100_000, 20_000)} {
		spec := globSpec(n)
		live[i] = b.live(spec)
		members[i] = float64(n)
		for k := range n {
			bytes[i] += float64(len(spec.encodeResource(k, 1, true)))
		}
	}
	of := func(what [2]float64) float64 { return (what[1] - what[0]) / (members[1] - members[0]) }
	return []metric{
		{"live memory per member", "B", of(live)},
		{"its bytes", "B", of(bytes)},
		{"without its bytes", "B", of(live) - of(bytes)},
	}
}

// live returns the live bytes of an idle relay with one client, as the garbage collector
// counts them. The collector runs whenever the heap has grown by a fiftieth.
func (b *bench) live(spec *Spec) float64 {
	s := b.join(b.start(systemRelay, spec, "GOGC=2"), spec)
	defer s.stop()
	s.connect(command{Clients: 1, PerConn: 1})
	return live(s.server)
}

// live reads the metrics until the garbage collector has run several times, which reading causes.
// Earlier collections may have run while the relay was busy.
func live(relay *child) float64 {
	const collections, enough = "go_gc_duration_seconds_count", 3
	before := must(relay.metric(collections))
	for end := time.Now().Add(patience); must(relay.metric(collections)) < before+enough; {
		if time.Now().After(end) {
			check(errors.New("the relay collects no garbage"))
		}
	}
	return must(relay.metric("go_gc_heap_live_bytes"))
}

// metricIn returns the value of a metric in the Prometheus format, and whether it exists.
func metricIn(page, name string) (value float64, ok bool) {
	for line := range strings.Lines(page) {
		if rest, found := strings.CutPrefix(line, name+" "); found {
			_, err := fmt.Sscan(rest, &value)
			return value, err == nil
		}
	}
	return 0, false
}
