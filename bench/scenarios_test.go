package main

import (
	"fmt"
	"math"
	"os"
	"sync"
	"testing"
)

// The processes of a run are this one.
func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "-role" && os.Args[3] == "-spec" {
		if err := play(os.Args[2], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Nothing is measured here: the numbers are so small that every scenario is over in a
// second or two, and several run at once.
func TestEveryScenarioRunsWithEverySystem(t *testing.T) {
	if testing.Short() {
		t.Skip("runs some hundred processes")
	}
	binary, err := buildRelay(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{binary: binary, quick: true, tiny: true}
	const atOnce = 8
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for _, sc := range scenarios() {
		for _, system := range sc.systems {
			places <- struct{}{}
			wg.Go(func() {
				defer func() { <-places }()
				runs(t, b, &sc, system)
			})
		}
	}
	wg.Wait()
}

func runs(t *testing.T, b *bench, sc *scenario, system string) {
	t.Helper()
	id := sc.tables[0].id
	tables, err := sc.measure(b, system)
	if err != nil {
		t.Errorf("%s: %s: %v", id, system, err)
		return
	}
	if len(tables) != len(sc.tables) {
		t.Errorf("%s: %s: got %d tables, want %d", id, system, len(tables), len(sc.tables))
	}
	for _, metrics := range tables {
		seen, something := map[string]bool{}, false
		for _, m := range metrics {
			if seen[m.name] || m.name == "" {
				t.Errorf("%s: %s: %q is no name of a metric, or that of two", id, system, m.name)
			}
			if math.IsNaN(m.value) || math.IsInf(m.value, 0) {
				t.Errorf("%s: %s: %s is %v", id, system, m.name, m.value)
			}
			seen[m.name], something = true, something || m.value > 0
		}
		if !something {
			t.Errorf("%s: %s: nothing was measured", id, system)
		}
	}
}
