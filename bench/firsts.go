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
		all = append(all, of(sc.id, sc.title, ours, func(b *bench, system string) []metric {
			spec := sc.spec
			spec.Resources, spec.Size, spec.PerClient = b.scale(1000, 1000), kib, 1
			return b.firsts(system, &spec, b.scale(1000, 200))
		}))
	}
	return all
}

func (b *bench) firsts(system string, spec *Spec, clients int) []metric {
	s := b.beginEmpty(system, spec)
	before := s.settled()
	began := time.Now()
	s.connectForAll(clients)
	a := s.await()
	return []metric{
		{"median client", "ms", millis(time.Unix(0, a.Median).Sub(began))},
		{"last client", "ms", millis(time.Unix(0, a.Last).Sub(began))},
		{"CPU per client", "ms", micros(s.settled()-before, clients) / 1e3},
	}
}
