package main

import (
	"bytes"
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

func TestPlotHasALineForEachSystem(t *testing.T) {
	r := result{ID: "h1"}
	for _, system := range ours {
		r.add(system, 0, []metric{{"CPU per message at 100 clients", "µs", 10}, {"CPU per message at 1000 clients", "µs", 11}})
	}
	if got := bytes.Count(plot([]result{r}, "h1", "clients"), []byte("<polyline")); got != 2 {
		t.Errorf("got %d lines, want 2", got)
	}
	if plot(nil, "h1", "clients") != nil {
		t.Error("got a plot of nothing")
	}
}
