package main

import (
	"slices"
	"testing"
)

func TestRatiosAreToTheFirstSystemInTheSameRound(t *testing.T) {
	var r result
	for round, cost := range []float64{10, 20, 40} {
		r.add(systemFloor, round, []metric{{"cost", "µs", cost}})
		r.add(systemRelay, round, []metric{{"cost", "µs", 2 * cost}})
	}
	floor, relay := &r.Lines[0], &r.Lines[1]
	if got := middle(relay.ratios(r.basis(relay))); got != 2 {
		t.Errorf("got a ratio of %v, want 2", got)
	}
	if got := middle(floor.all()); got != 20 {
		t.Errorf("got a median of %v, want 20", got)
	}
}

func TestMiddleIsTheMedian(t *testing.T) {
	for _, tt := range []struct {
		of   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 2}, 2}} {
		if got := middle(tt.of); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.of, got, tt.want)
		}
	}
}

func TestAddedLatencyIsAgainstThatOfTheBareHop(t *testing.T) {
	var r result
	for system, value := range map[string]float64{systemDirect: 70, systemHop: 100, systemRelay: 115} {
		r.add(system, 0, []metric{{latency, "µs", value}})
	}
	addedLatency(&r, 0)
	addedLatency(&r, 1) // of which there is nothing
	for i := range r.Lines {
		if l := &r.Lines[i]; l.System == systemRelay && l.Metric == "added latency" {
			if got := middle(l.ratios(r.basis(l))); got != 1.5 {
				t.Errorf("got a ratio of %v, want 1.5", got)
			}
			return
		}
	}
	t.Error("the relay has no added latency")
}

func TestScenariosHaveTheirTables(t *testing.T) {
	seen := map[string]bool{}
	for _, sc := range scenarios() {
		for _, table := range sc.tables {
			if seen[table.id] {
				t.Errorf("%s is there twice", table.id)
			}
			seen[table.id] = true
			if !sc.among([]string{table.id}) || sc.among([]string{"no"}) {
				t.Errorf("%s cannot be chosen by its id", table.id)
			}
		}
	}
	for _, letter := range "abcdefghij" {
		if !slices.ContainsFunc(scenarios(), func(sc scenario) bool { return sc.among([]string{string(letter)}) }) {
			t.Errorf("there is no scenario %c", letter)
		}
	}
}
