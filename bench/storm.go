package main

import (
	"fmt"
	"time"
)

// f: a storm of updates, and a client that never reads. The latency of the others is compared
// with a run without that client.

func (b *bench) storm(system string) []metric {
	const rate, size = 200, 4 << 10
	spec := &Spec{Delta: true, Resources: 100, Size: size, PerClient: 100, Stamped: true}
	clients, of := b.scale(100, 50), time.Duration(b.scale(20, 2))*time.Second
	var got [2]weather
	for deaf := range got {
		if deaf == 1 && system == systemFloor {
			break // the floor would wait for that client
		}
		s := b.begin(system, spec, clients+deaf, 1, deaf)
		during := of
		if system == systemFloor {
			during = of / 2 // there is nothing to compare with
		}
		got[deaf] = s.weather(rate, during, clients)
		s.stop()
	}
	without, with := got[0], got[1]
	out := []metric{
		{"messages per client and update", "", without.messages},
		{"CPU per message", "µs", without.cpu},
		{"latency, median", "µs", micros(without.median, 1)},
		{"latency, 99 %", "µs", micros(without.slow, 1)},
	}
	if system == systemFloor {
		return out
	}
	return append(out,
		metric{"with a stalled client: messages per client and update, of those without", "", with.messages / without.messages},
		metric{"with a stalled client: latency, median", "µs", micros(with.median, 1)},
		metric{"with a stalled client: latency, median, of that without", "", float64(with.median) / float64(without.median)},
		metric{"with a stalled client: latency, 99 %, of that without", "", float64(with.slow) / float64(without.slow)},
		metric{fmt.Sprintf("with a stalled client: memory after %s", of), "MiB", with.late / kib / kib},
		metric{fmt.Sprintf("with a stalled client: memory after %s, of that after %s", of, of/4), "", with.late / with.early},
	)
}

// weather is the result of a storm, for each client that reads.
type weather struct {
	messages, cpu float64       // messages per update, CPU per message
	median, slow  time.Duration // latency
	early, late   float64       // resident bytes after a quarter of the storm, and at its end
}

func (s *session) weather(rate int, of time.Duration, clients int) (got weather) {
	s.latencies()
	early := make(chan int64, 1)
	go func() {
		pause(of / 4)
		now, _, _ := s.server.rss() // 0 after an error, which the result shows
		early <- now
	}()
	cpu, messages := s.stormed(rate, of, s.spec.Resources)
	late, _ := s.memory()
	a := s.latencies()
	got.messages, got.cpu = float64(messages)/float64(clients)/of.Seconds()/float64(rate), micros(cpu, messages)
	got.early, got.late, got.median, got.slow = float64(<-early), float64(late), time.Duration(a.Median), time.Duration(a.Slow)
	return got
}
