package main

import (
	"bytes"
	"fmt"
	"testing"
)

func TestPlotHasALineForEachSystem(t *testing.T) {
	r := result{ID: "h1"}
	for _, system := range ours {
		r.add(system, 0, []metric{{"CPU per message at 100 clients", "µs", 10}, {"CPU per message at 1000 clients", "µs", 11}})
	}
	svg, err := drawCosts([]result{r}, "h1", "clients")
	if err != nil {
		t.Fatal(err)
	}
	for _, system := range ours {
		if !bytes.Contains(svg, []byte(">"+system+"<")) {
			t.Errorf("%s is not in the legend of %s", system, svg)
		}
	}
	// Each has a line, and one in the legend.
	for i := range ours {
		red, green, blue, _ := colours[i].RGBA()
		colour := fmt.Appendf(nil, "#%02X%02X%02X", red>>8, green>>8, blue>>8)
		if got := bytes.Count(svg, append([]byte("stroke:"), colour...)); got != 2 {
			t.Errorf("got %d lines of colour %s, want 2: %s", got, colour, svg)
		}
	}
	if svg, err := drawCosts(nil, "h1", "clients"); svg != nil || err != nil {
		t.Errorf("got a plot of nothing: %s, %v", svg, err)
	}
}
