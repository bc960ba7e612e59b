package chain

import (
	"reflect"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/internal/loglines"
)

func TestRejectersInWords(t *testing.T) {
	many := make([]Rejecter, 3*maxWhos)
	for i := range many {
		many[i] = Rejecter{HashOf(strings.Repeat("x", i)), strings.Repeat("c", maxCohort)}
	}
	mixed := []Rejecter{{HashOf("a"), "gRPC Go/1.65, [x] of y] "}, {HashOf("b"), ""}, {HashOf("c"), "envoy/1.30.1"}}
	for _, r := range []Rejecters{{}, {Whos: many[:1]}, {Whos: many[:2], Others: 20}, {Whos: many, Others: 1}, {Whos: mixed}} {
		got, words := CutRejecters(r.Words("no] x"))
		r.Whos = r.Whos[:min(len(r.Whos), maxWhos)]
		if words != "no] x" || len(got.Whos) != len(r.Whos) || len(r.Whos) > 0 && !reflect.DeepEqual(got, r) {
			t.Errorf("%+v is %+v and %q", r, got, words)
		}
	}
	for _, cohort := range []string{strings.Repeat("c", maxCohort+1), strings.Repeat("/", maxCohort/2)} {
		if got, _ := CutRejecters(Rejecters{Whos: []Rejecter{{HashOf("a"), cohort}}}.Words("no")); len(got.Whos) != 1 || got.Whos[0].Cohort != "" {
			t.Errorf("%q is sent as %+v", cohort, got)
		}
	}
	if n := len(Rejecters{Whos: many}.Words("")); n > loglines.MaxText {
		t.Errorf("those who reject take %d bytes, of which relays read %d", n, loglines.MaxText)
	}
	earlier := "[rejected by " + HashOf("a") + " beside 3] no"
	if got, words := CutRejecters(earlier); words != "no" || !reflect.DeepEqual(got, Rejecters{Whos: []Rejecter{{Who: HashOf("a")}}, Others: 3}) {
		t.Errorf("%q has %+v and %q", earlier, got, words)
	}
	for _, words := range []string{
		"", "no", "[rejected by ] no", "[rejected by x beside 1] no", "[rejected by " + HashOf("") + " beside -1] no",
		"[rejected by " + HashOf("") + ", beside 1] no", "[rejected by " + strings.Repeat(HashOf("")+",", maxWhos) + HashOf("") + " beside 1] no",
	} {
		if r, rest := CutRejecters(words); rest != words || r.Whos != nil {
			t.Errorf("%q has %+v", words, r)
		}
	}
}
