package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// g: a glob with many members. Clients subscribe to it, and one member changes. Also, the live
// bytes of the relay for each member.

func (b *bench) glob(system string) ([]metric, error) {
	members, clients := b.scale(100_000, 10_000), b.scale(1000, 200)
	const few, n = 1000, 50
	var out []metric
	var cost [2]float64
	for i, members := range []int{members, few} {
		spec := globSpec(members)
		s, err := b.beginWarm(system, spec, command{Clients: clients, PerConn: 1})
		if err != nil {
			return nil, err
		}
		cpu, _, last, err := s.updates(n)
		s.stop()
		if err != nil {
			return nil, err
		}
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
	return append(out, metric{fmt.Sprintf("one changes: CPU per message, of that with %d members", few), "", cost[0] / cost[1]}), nil
}

func globSpec(members int) *Spec {
	return &Spec{Delta: true, Glob: true, Resources: members, Size: 100, PerClient: 1}
}

// perMember measures the live bytes of the relay for each member, with one client: the
// difference between many and few members.
func (b *bench) perMember(string) ([]metric, error) {
	var members, live, bytes [2]float64
	for i, n := range []int{b.scale(10_000, 2000), b.scale(100_000, 20_000)} {
		spec := globSpec(n)
		var err error
		if live[i], err = b.live(spec); err != nil {
			return nil, err
		}
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
	}, nil
}

// live returns the live bytes of an idle relay with one client, as the garbage collector
// counts them. The collector runs whenever the heap has grown by a fiftieth.
func (b *bench) live(spec *Spec) (float64, error) {
	sys, err := start(systemRelay, spec, b.relay, "GOGC=2")
	if err != nil {
		return 0, err
	}
	defer sys.stop()
	s, err := b.join(sys, spec, 1, 1, 0)
	if err != nil {
		return 0, err
	}
	defer s.swarm.stop()
	return live(sys.server)
}

// live reads the metrics until there were collections, to which reading leads. The last one
// before may have run while the relay was busy.
func live(relay *child) (float64, error) {
	const collections, enough = "go_gc_duration_seconds_count", 3
	before, err := relay.metric(collections)
	for end := time.Now().Add(patience); err == nil && time.Now().Before(end); {
		var now float64
		if now, err = relay.metric(collections); now >= before+enough {
			return relay.metric("go_gc_heap_live_bytes")
		}
	}
	return 0, errors.Join(err, errors.New("the relay collects no garbage"))
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
