package cache

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParamsAreCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Params(rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "params"))
		got := ParseParams(p.String())
		if len(p) == 0 {
			if p.String() != "" || got != nil {
				t.Fatalf("%q, %v", p.String(), got)
			}
			return
		}
		if got.String() != p.String() || len(got) != len(p) || strings.ContainsAny(p.String(), " \x00") {
			t.Fatalf("%q, want %q", got, p)
		}
		for k, v := range p {
			if got[k] != v {
				t.Fatalf("%q: %q, want %q", k, got[k], v)
			}
		}
	})
}
