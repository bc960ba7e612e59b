package main

import (
	"time"

	"google.golang.org/grpc/mem"
)

// n: resources with TTLs. The origin sends a heartbeat for each every second. Clients that
// support TTLs receive the heartbeats, too.

const beatTTL = 5 * time.Second

func heartbeats() []scenario {
	return []scenario{of("n", "10,000 resources with TTLs, heartbeats every second", ours, (*bench).beats).atMost(1)}
}

func (b *bench) beats(system string) (out []metric) {
	of := time.Duration(b.scale(10, 3)) * time.Second
	for _, c := range []struct {
		name    string
		clients int
		delta   bool
	}{{"1 client", 1, true}, {"50 clients", 50, true}, {"50 SotW clients that know no TTLs", 50, false}} {
		if system == systemFloor && !c.delta {
			continue // the system has no heartbeats
		}
		n := b.scale(10_000, 1000)
		spec := &Spec{Delta: c.delta, Resources: n, Size: 200, PerClient: n, TTL: beatTTL}
		out = append(out, b.beatsTo(system, spec, c.name, c.clients, of)...)
	}
	return out
}

func (b *bench) beatsTo(system string, spec *Spec, name string, clients int, of time.Duration) []metric {
	s := b.beginEmpty(system, spec)
	defer s.stop()
	s.connectForAll(clients)
	s.await()
	// No settling: without heartbeats, resources expire after a few seconds.
	before, had := must(s.server.cpu()), s.counted()
	must(s.source.do(command{Do: "beat", For: of}))
	pause(time.Second / 2) // for responses in flight
	after, have := must(s.server.cpu()), s.counted()
	seconds := of.Seconds()
	metrics := []metric{{name + ": CPU of a second", "ms", millis(after-before) / seconds}}
	if spec.Delta {
		metrics = append(metrics,
			metric{name + ": CPU per heartbeat sent", "µs", micros(after-before, int(have.Bytes-had.Bytes)/len(spec.heartbeat(0)))},
			metric{name + ": sent to each in a second", "KiB", float64(have.Bytes-had.Bytes) / kib / float64(clients) / seconds})
	}
	return append(metrics, metric{name + ": messages to each in a second", "", float64(have.Messages-had.Messages) / float64(clients) / seconds})
}

// beat calls f at once and then every second.
func beat(c *command, f func()) (answer, error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for range int(c.For.Seconds()) {
		f()
		<-tick.C
	}
	return answer{}, nil
}

// beat sends heartbeats of all resources of each stream.
func (o *origin) beat() {
	o.mu.Lock()
	to := map[*originStream][]int{}
	for st := range o.streams {
		for name := range st.names {
			if i, ok := o.has.index[name]; ok {
				to[st] = append(to[st], i)
			}
		}
	}
	o.mu.Unlock()
	for st, indexes := range to {
		var b []byte
		for _, i := range indexes {
			b = append(b, o.spec.heartbeat(i)...)
		}
		_ = o.sendTo(st, b, 1) // the stream has ended
	}
}

// beat broadcasts the heartbeats of all resources.
func (f *floor) beat() {
	var b []byte
	for i := range f.ready {
		b = append(b, f.spec.heartbeat(i)...)
	}
	b = append(b, f.spec.tail(1, true)...)
	f.broadcast(f.everybody(), []*message{{body: mem.BufferSlice{mem.SliceBuffer(b)}}})
}

func (s *Spec) heartbeat(i int) []byte { return resourceField(s.name(i), "", 1, s.TTL, nil) }
