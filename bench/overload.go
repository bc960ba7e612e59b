package main

import "time"

// k: more updates than the server can send to all clients. The floor queues them, so its
// clients lag behind; the relay merges them.

func (b *bench) overload(system string, spec *Spec, clients, rate int) ([]metric, error) {
	spec.Size, spec.Stamped = 1<<10, true
	if b.tiny {
		clients = 10
	}
	of, deaf := time.Duration(b.scale(20, 5))*time.Second, 1
	if system == systemFloor {
		deaf = 0 // the floor would wait for that client
	}
	s, err := b.begin(system, spec, clients+deaf, 1, deaf)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	if _, err := s.swarm.do(command{Do: "latency"}); err != nil { // reset the latencies
		return nil, err
	}
	before, err := s.settled()
	if err != nil {
		return nil, err
	}
	had, err := s.swarm.do(command{Do: "count"})
	if err != nil {
		return nil, err
	}
	updates := int(of.Seconds() * float64(rate))
	s.version += updates
	// All clients receive the last version, however many before it were merged.
	if _, err := s.swarm.do(command{Do: "watch", Group: "all", Version: s.version}); err != nil {
		return nil, err
	}
	if _, err := s.source.do(command{Do: "storm", Rate: rate, For: of, Count: spec.Resources, Version: s.version - updates + 1}); err != nil {
		return nil, err
	}
	ended := time.Now()
	a, err := s.swarm.do(command{Do: "await", Group: "all", Timeout: patience})
	if err != nil {
		return nil, err
	}
	after, err := s.settled()
	if err != nil {
		return nil, err
	}
	have, err := s.swarm.do(command{Do: "count"})
	if err != nil {
		return nil, err
	}
	came, err := s.swarm.do(command{Do: "latency"})
	if err != nil {
		return nil, err
	}
	versions, messages := float64(came.Stamps)/float64(clients), float64(have.Messages-had.Messages)/float64(clients)
	return []metric{
		{"latency, median", "µs", float64(came.Median) / 1e3},
		{"latency, 99 %", "µs", float64(came.Slow) / 1e3},
		{"latency, longest", "µs", float64(came.Most) / 1e3},
		{"versions delivered, of all", "", versions / float64(updates*spec.perUpdate())},
		{"messages per client and update", "", messages / float64(updates)},
		{"from the last update to everybody's having it", "ms", millis(time.Unix(0, a.Last).Sub(ended))},
		{"CPU per version delivered", "µs", micros(after-before, int(came.Stamps))},
	}, nil
}

// perUpdate returns the number of stamped resources that a client receives for one change.
func (s *Spec) perUpdate() int {
	if s.Full && !s.Delta {
		return s.Resources
	}
	return 1
}
