package main

import "slices"

// A scenario ends at the first error, as a test does at Fatal: check and must panic with it,
// and measure returns it.

// failure is the error that ends a scenario.
type failure struct{ err error }

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// measure runs the scenario with a system, and ends the processes that it has started.
func (sc *scenario) measure(b *bench, system string) (tables [][]metric, err error) {
	run := *b // with processes of its own
	defer func() {
		for _, c := range slices.Backward(run.started) {
			c.stop()
		}
		if r := recover(); r != nil {
			f, ok := r.(failure)
			if !ok {
				panic(r)
			}
			err = f.err
		}
	}()
	return sc.run(&run, system), nil
}

// role starts a role of this program for the scenario.
func (b *bench) role(name, role string, spec *Spec) *child {
	c := must(startRole(name, role, spec))
	b.started = append(b.started, c)
	return c
}

// relay starts a relay for the scenario, between clients and an origin.
func (b *bench) relay(spec *Spec, origin string, env ...string) *child {
	c := must(startRelay(b.binary, spec, origin, env...))
	b.started = append(b.started, c)
	return c
}
