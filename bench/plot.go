package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// plot draws the cost of an update against a size, as SVG: a line for each system,
// with the sizes on a logarithmic scale. It is nil if the scenario was not run.
func plot(results []result, id, what string) []byte {
	at := slices.IndexFunc(results, func(r result) bool { return r.ID == id })
	if at < 0 {
		return nil
	}
	type point struct{ size, cost float64 }
	curves := map[string][]point{}
	var order []string
	var least, most, dearest float64
	for _, l := range results[at].Lines {
		size, ok := sizeIn(l.Metric)
		if !ok {
			continue
		}
		if curves[l.System] == nil {
			order = append(order, l.System)
		}
		p := point{size, middle(l.all())}
		curves[l.System] = append(curves[l.System], p)
		if least == 0 || size < least {
			least = size
		}
		most, dearest = max(most, size), max(dearest, p.cost)
	}
	if most <= least || dearest == 0 {
		return nil
	}
	const width, height, margin = 640, 360, 60
	x := func(size float64) float64 {
		return margin + (width-2*margin)*math.Log(size/least)/math.Log(most/least)
	}
	y := func(cost float64) float64 { return height - margin - (height-2*margin)*cost/(dearest*1.1) }
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="20">CPU of the server per message, in µs</text>`+"\n", margin-50)
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", width/2, height-margin+34, html.EscapeString(what))
	fmt.Fprintf(&b, `<path d="M%d %d V%d H%d" fill="none" stroke="black"/>`+"\n", margin, margin/2, height-margin, width-margin)
	for i := range 5 {
		cost := dearest * 1.1 * float64(i) / 4
		fmt.Fprintf(&b, `<path d="M%d %.0f h%d" stroke="#dddddd"/>`+"\n", margin, y(cost), width-2*margin)
		fmt.Fprintf(&b, `<text x="%d" y="%.0f" text-anchor="end">%s</text>`+"\n", margin-6, y(cost)+4, figure(cost))
	}
	for _, p := range curves[order[0]] {
		fmt.Fprintf(&b, `<path d="M%.0f %d v5" stroke="black"/>`+"\n", x(p.size), height-margin)
		fmt.Fprintf(&b, `<text x="%.0f" y="%d" text-anchor="middle">%.0f</text>`+"\n", x(p.size), height-margin+18, p.size)
	}
	colours := []string{"#888888", "#1f77b4", "#d62728", "#2ca02c"}
	for i, system := range order {
		points := curves[system]
		slices.SortFunc(points, func(a, b point) int { return int(a.size - b.size) })
		var path strings.Builder
		for _, p := range points {
			fmt.Fprintf(&path, "%.1f,%.1f ", x(p.size), y(p.cost))
		}
		colour := colours[i%len(colours)]
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.TrimSpace(path.String()), colour)
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", margin+10+i*150, height-12, colour, html.EscapeString(system))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// sizeIn is the number in a metric's name.
func sizeIn(name string) (float64, bool) {
	for word := range strings.FieldsSeq(name) {
		if n, err := strconv.ParseFloat(word, 64); err == nil {
			return n, true
		}
	}
	return 0, false
}
