package main

import (
	"bytes"
	"image/color"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// drawCosts plots the cost of an update against a size, as SVG: a line for each system,
// with the sizes on a logarithmic scale. It returns nil if the scenario did not run.
func drawCosts(results []result, id, what string) ([]byte, error) {
	at := slices.IndexFunc(results, func(r result) bool { return r.ID == id })
	if at < 0 {
		return nil, nil
	}
	costs := map[string]plotter.XYs{}
	var order []string
	for _, l := range results[at].Lines {
		size, ok := sizeIn(l.Metric)
		if !ok {
			continue
		}
		if costs[l.System] == nil {
			order = append(order, l.System)
		}
		costs[l.System] = append(costs[l.System], plotter.XY{X: size, Y: middle(l.all())})
	}
	if len(order) == 0 || len(costs[order[0]]) < 2 {
		return nil, nil
	}
	p := newPlot(what)
	for i, system := range order {
		points := costs[system]
		slices.SortFunc(points, func(a, b plotter.XY) int { return int(a.X - b.X) })
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Width, line.Color = vg.Points(2), colours[i%len(colours)]
		dots.Shape, dots.Radius, dots.Color = draw.CircleGlyph{}, vg.Points(3), line.Color
		p.Add(line, dots)
		p.Legend.Add(system, line, dots)
		p.Y.Max = max(p.Y.Max, 1.3*slices.MaxFunc(points, func(a, b plotter.XY) int { return int(a.Y - b.Y) }).Y)
	}
	p.X.Tick.Marker = sizes(costs[order[0]])
	picture, err := p.WriterTo(vg.Points(480), vg.Points(270), "svg")
	if err != nil {
		return nil, err
	}
	var svg bytes.Buffer
	_, err = picture.WriteTo(&svg)
	// Viewers without Liberation show another sans-serif font.
	return bytes.ReplaceAll(svg.Bytes(), []byte("Liberation Sans"), []byte("Liberation Sans,Arial,sans-serif")), err
}

var colours = []color.Color{
	color.RGBA{0x88, 0x88, 0x88, 0xff}, color.RGBA{0x1f, 0x77, 0xb4, 0xff},
	color.RGBA{0xd6, 0x27, 0x28, 0xff}, color.RGBA{0x2c, 0xa0, 0x2c, 0xff},
}

// newPlot returns an empty plot of costs against a size.
func newPlot(what string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "CPU of the server per message", what, "µs"
	p.X.Scale, p.Y.Min = plot.LogScale{}, 0
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding, p.Legend.ThumbnailWidth = vg.Points(2), vg.Points(24)
	for _, style := range []*font.Font{
		&p.Title.TextStyle.Font, &p.Legend.TextStyle.Font,
		&p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Tick.Label.Font,
	} {
		style.Variant = "Sans"
	}
	grid := plotter.NewGrid()
	grid.Vertical.Width, grid.Horizontal.Color = 0, color.Gray{0xdd}
	p.Add(grid)
	return p
}

// sizes marks an axis at the measured sizes.
func sizes(points plotter.XYs) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for _, p := range points {
		ticks = append(ticks, plot.Tick{Value: p.X, Label: strconv.FormatFloat(p.X, 'f', -1, 64)})
	}
	return ticks
}

// sizeIn returns the number in a metric's name.
func sizeIn(name string) (float64, bool) {
	for word := range strings.FieldsSeq(name) {
		if n, err := strconv.ParseFloat(word, 64); err == nil {
			return n, true
		}
	}
	return 0, false
}
