package chain

import (
	"reflect"
	"strings"
	"testing"
)

func TestRejectersInWords(t *testing.T) {
	many := make([]string, 3*maxWhos)
	for i := range many {
		many[i] = HashOf(strings.Repeat("x", i))
	}
	for _, r := range []Rejecters{{}, {Whos: many[:1]}, {Whos: many[:2], Others: 20}, {Whos: many, Others: 1}} {
		got, words := CutRejecters(r.Words("no] x"))
		r.Whos = r.Whos[:min(len(r.Whos), maxWhos)]
		if words != "no] x" || len(got.Whos) != len(r.Whos) || len(r.Whos) > 0 && !reflect.DeepEqual(got, r) {
			t.Errorf("%+v is %+v and %q", r, got, words)
		}
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
