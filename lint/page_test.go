package lint

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of rules into docs/lint.md")

const page = "../docs/lint.md"

// The table of rules in docs/lint.md is generated from the rules: go test ./lint -run Page -update.
func TestThePageHasTheRules(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- rules -->\n", "<!-- end of rules -->"
	before, rest, _ := strings.Cut(string(text), begin)
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s has no place for the rules", page)
	}
	want := before + begin + table() + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Errorf("%s does not have the current rules: run go test ./lint -run Page -update", page)
	}
}

func table() string {
	var b strings.Builder
	b.WriteString("\n| rule | severity | about | what should hold | source |\n|---|---|---|---|---|\n")
	for _, r := range Rules() {
		severity := r.Severity.String()
		if r.RejectedBy != "" {
			severity += map[string]string{"all": ": all reject it", "envoy": ": Envoy rejects it", "grpc": ": gRPC rejects it"}[string(r.RejectedBy)]
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.ID, severity, r.Of, r.Want, r.Source)
	}
	return b.String() + "\n"
}
