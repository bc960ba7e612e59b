package main

import "time"

// k: more updates than the server can send to all clients. The floor queues them, so its
// clients lag behind; the relay merges them.

func (b *bench) overload(system string, spec *Spec, clients, rate int) []metric {
	spec.Size, spec.Stamped = 1<<10, true
	if b.tiny {
		clients = 10
	}
	of, deaf := time.Duration(b.scale(20, 5))*time.Second, 1
	if system == systemFloor {
		deaf = 0 // the floor would wait for that client
	}
	s := b.begin(system, spec, clients+deaf, 1, deaf)
	s.latencies()
	before, had := s.settled(), s.counted()
	updates := int(of.Seconds() * float64(rate))
	// All clients receive the last version, however many before it were merged.
	s.watch(s.version + updates)
	began := time.Now()
	s.storm(rate, of, spec.Resources)
	ended := time.Now()
	a := s.await()
	after, have, came := s.settled(), s.counted(), s.latencies()
	versions, messages := float64(came.Stamps)/float64(clients), float64(have.Messages-had.Messages)/float64(clients)
	return append(latencyMetrics(came),
		metric{"updates a second", "", float64(updates) / ended.Sub(began).Seconds()},
		metric{"versions delivered, of all", "", versions / float64(updates*spec.perUpdate())},
		metric{"messages per client and update", "", messages / float64(updates)},
		metric{"from the last update to everybody's having it", "ms", millis(time.Unix(0, a.Last).Sub(ended))},
		metric{"CPU per version delivered", "µs", micros(after-before, int(came.Stamps))},
	)
}

func latencyMetrics(a answer) []metric {
	return []metric{
		{"latency, median", "µs", float64(a.Median) / 1e3},
		{"latency, 99 %", "µs", float64(a.Slow) / 1e3},
		{"latency, longest", "µs", float64(a.Most) / 1e3},
	}
}

// perUpdate returns the number of stamped resources that a client receives for one change.
func (s *Spec) perUpdate() int {
	if s.Full && !s.Delta {
		return s.Resources
	}
	return 1
}
