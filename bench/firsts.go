package main

import "time"

// t: the first clients of a large set. They connect at once, before the relay has cached it.

func firsts() (all []scenario) {
	for _, sc := range []struct {
		id, title string
		spec      Spec
	}{
		{"t1", "first answers: 1,000 clients come for a wildcard of 1,000 clusters of 1 KB, SotW", Spec{Full: true}},
		{"t2", "the same, delta", Spec{Full: true, Delta: true}},
		{"t3", "first answers: 1,000 clients come for a glob of 1,000 members of 1 KB, delta", Spec{Glob: true, Delta: true}},
	} {
		all = append(all, of(sc.id, sc.title, ours, func(b *bench, system string) ([]metric, error) {
			spec := sc.spec
			spec.Resources, spec.Size, spec.PerClient = b.scale(1000, 1000), kib, 1
			return b.firsts(system, &spec, b.scale(1000, 200))
		}))
	}
	return all
}

func (b *bench) firsts(system string, spec *Spec, clients int) ([]metric, error) {
	s, err := b.beginEmpty(system, spec)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	before, err := s.settled()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	// Count resources, because their number per response varies.
	if _, err := s.swarm.do(command{
		Do: "connect", Group: "all", Address: s.server.address, Clients: clients,
		Each: true, Count: clients * spec.Resources, Spec: spec,
	}); err != nil {
		return nil, err
	}
	a, err := s.swarm.do(command{Do: "await", Group: "all", Timeout: patience})
	if err != nil {
		return nil, err
	}
	after, err := s.settled()
	return []metric{
		{"median client", "ms", millis(time.Unix(0, a.Median).Sub(began))},
		{"last client", "ms", millis(time.Unix(0, a.Last).Sub(began))},
		{"CPU per client", "ms", micros(after-before, clients) / 1e3},
	}, err
}
