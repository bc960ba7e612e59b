package main

// What `lint` prints.

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/lint"
)

// lintReport is the output of `lint -o json`.
type lintReport struct {
	Resources int           `json:"resources"`
	Errors    int           `json:"errors"`
	Warnings  int           `json:"warnings"`
	Hints     int           `json:"hints"`
	Findings  []lintFinding `json:"findings"`
}

// lintFinding is one finding.
type lintFinding struct {
	File       string        `json:"file,omitempty"`
	Line       int           `json:"line,omitempty"`
	Server     string        `json:"server,omitempty"`
	Severity   lint.Severity `json:"severity"`
	Rule       string        `json:"rule"`
	RejectedBy taster.Family `json:"rejected_by,omitempty"`
	Type       string        `json:"type,omitempty"`
	TypeURL    string        `json:"type_url,omitempty"`
	Name       string        `json:"name,omitempty"`
	Path       string        `json:"path,omitempty"`
	Text       string        `json:"text"`
	Source     string        `json:"source"`
}

func (r *lintReport) add(f lintFinding) {
	switch f.Severity {
	case lint.Error:
		r.Errors++
	case lint.Warning:
		r.Warnings++
	case lint.Hint:
		r.Hints++
	}
	r.Findings = append(r.Findings, f)
}

// print prints the report in a form. In text, it also prints the numbers of findings on standard error.
func (r *lintReport) print(stdout, stderr io.Writer, form string) error {
	if form == "json" {
		if r.Findings == nil {
			r.Findings = []lintFinding{}
		}
		out := json.NewEncoder(stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(r); err != nil {
			return fmt.Errorf("writing the output: %w", err)
		}
		return nil
	}
	for i := range r.Findings {
		if _, err := fmt.Fprintln(stdout, r.Findings[i].String()); err != nil {
			return fmt.Errorf("writing the output: %w", err)
		}
	}
	fmt.Fprintf(stderr, "%s: %s, %s, %s\n", count(r.Resources, "resource"), count(r.Errors, "error"), count(r.Warnings, "warning"), count(r.Hints, "hint"))
	return nil
}

func count(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// String returns the finding on one line.
func (f *lintFinding) String() string {
	var b strings.Builder
	switch {
	case f.Server != "":
		b.WriteString(f.Server + ": ")
	case f.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", f.File, f.Line)
	default:
		b.WriteString(f.File + ": ")
	}
	fmt.Fprintf(&b, "%s: %s: ", f.Severity, f.Rule)
	if f.Name != "" {
		fmt.Fprintf(&b, "%s %q: ", f.Type, loglines.Clip(f.Name))
	}
	b.WriteString(f.Text)
	if f.Path != "" {
		b.WriteString(", at " + f.Path)
	}
	fmt.Fprintf(&b, " (%s)", f.Source)
	return b.String()
}
