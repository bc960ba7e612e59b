package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Two relays side by side: that of another commit, the base, and this checkout's. Both
// run each scenario once in each round, in turns: the one that was second in one round is
// first in the next. So other load on the machine affects both.

const (
	systemBase    = "base"
	compareRounds = 6
)

func compare(o *options, todo []scenario) error {
	base, err := buildBase(os.TempDir(), o.base)
	if err != nil {
		return err
	}
	// Skip scenarios that do not run the relay.
	todo = slices.DeleteFunc(todo, func(sc scenario) bool { return !slices.Contains(sc.systems, systemRelay) })
	binaries := []turn{
		{systemBase, systemRelay, &bench{binary: base.binary, quick: o.quick}},
		{systemRelay, systemRelay, &bench{binary: o.relay, quick: o.quick}},
	}
	for _, t := range binaries {
		if err := starts(t.bench.binary); err != nil {
			return fmt.Errorf("%s: %w", strings.Replace(t.label, systemBase, base.name, 1), err)
		}
	}
	rounds := o.rounds
	if rounds == 0 {
		rounds = compareRounds
	}
	turns := func(_ *scenario, round int) []turn {
		if round%2 == 0 {
			return binaries
		}
		return []turn{binaries[1], binaries[0]}
	}
	head := fmt.Sprintf("%s against %s, %d rounds. %s", thisCheckout(), base.name, rounds, machine(false))
	if o.quick {
		head += " Small numbers."
	}
	var text []byte
	err = runAll(todo, func(*scenario) int { return rounds }, turns, func(results []result) error {
		text = comparison(head, results)
		return writeComparison(o.out, head, text, results)
	})
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	return err
}

// starts returns an error if a relay does not serve with the configuration that most scenarios use.
func starts(binary string) error {
	c, err := startRelay(binary, &Spec{}, "127.0.0.1:1")
	if err != nil {
		return err
	}
	c.stop()
	return nil
}

func writeComparison(dir, head string, text []byte, results []result) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	data, err := json.MarshalIndent(struct {
		Of      string   `json:"of"`
		Results []result `json:"results"`
	}{head, results}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "compare.json"), append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "compare.md"), text, 0o600)
}

// comparison is the report of a comparison.
func comparison(head string, results []result) []byte {
	var md bytes.Buffer
	fmt.Fprintf(&md, "%s\n\n%s\n", head, legend)
	for i := range results {
		r := &results[i]
		fmt.Fprintf(&md, "\n**%s** %s\n\n| metric | base | this | ratio: least | median | most | verdict |\n|---|---|---|---|---|---|---|\n", r.ID, r.Title)
		for _, name := range r.metrics() {
			base, this := r.line(systemBase, name), r.line(systemRelay, name)
			if base == nil || this == nil {
				continue // one of the two failed
			}
			ratios := this.ratios(base)
			least, median, most := "–", "–", "–"
			if len(ratios) > 0 {
				least, median, most = ratioText(slices.Min(ratios)), ratioText(middle(ratios)), ratioText(slices.Max(ratios))
			}
			fmt.Fprintf(&md, "| %s | %s %s | %s %s | %s | %s | %s | %s |\n", name,
				figure(middle(base.all())), base.Unit, figure(middle(this.all())), this.Unit, least, median, most, judge(ratios))
		}
		for _, f := range r.Failed {
			fmt.Fprintf(&md, "\nFailed: %s\n", f)
		}
	}
	return md.Bytes()
}

const legend = "Figures are medians over the rounds; each ratio is of this checkout's figure to the base's in the same round. " +
	"**more** and **less**: beyond the noise, which is that every round has its ratio on the same side of 1, " +
	"and the median is further from 1 than half of the spread. ~: within the noise."

// enoughRounds is the number of rounds that a verdict needs.
const enoughRounds = 4

// judge returns a verdict: whether ratios differ more from 1 than from each other.
func judge(ratios []float64) string {
	if len(ratios) == 0 {
		return "no ratio"
	}
	least, median, most := slices.Min(ratios), middle(ratios), slices.Max(ratios)
	switch {
	case least == 1 && most == 1:
		return "equal"
	case len(ratios) < enoughRounds:
		return "too few rounds"
	case least <= 1 && most >= 1, math.Abs(median-1) <= (most-least)/2:
		return "~"
	case median > 1:
		return "**more**"
	}
	return "**less**"
}

// ratioText has a digit more than a figure, because differences of a few hundredths matter.
func ratioText(x float64) string {
	if x >= 10 {
		return figure(x)
	}
	return fmt.Sprintf("%.3f", x)
}

// line returns the line of a system's metric, or nil.
func (r *result) line(system, metric string) *line {
	at := slices.IndexFunc(r.Lines, func(l line) bool { return l.System == system && l.Metric == metric })
	if at < 0 {
		return nil
	}
	return &r.Lines[at]
}
