package chain

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	many := func(n int) string {
		ids := make([]string, n)
		for i := range ids {
			ids[i] = fmt.Sprint("relay-", i)
		}
		return strings.Join(ids, ",")
	}
	long := strings.Repeat("x", MaxIDBytes)
	for _, tt := range []struct {
		name   string
		values []string
		relay  bool
		ids    []string
		err    string
	}{
		{name: "no header"},
		{name: "the beginning", values: []string{"*"}, relay: true},
		{name: "an empty one", values: []string{""}, relay: true},
		{name: "two", values: []string{"a,b"}, relay: true, ids: []string{"a", "b"}},
		{name: "two headers, and spaces", values: []string{"a , b", "c"}, relay: true, ids: []string{"a", "b", "c"}},
		{name: "one twice", values: []string{"a,b,a"}, relay: true, ids: []string{"a", "b"}},
		{name: "escaped", values: []string{"a%2Cb+c,%2A,%E2%82%AC"}, relay: true, ids: []string{"a,b c", "*", "€"}},
		{name: "a bad escape", values: []string{"a%2"}, err: `x-xds-relay-chain: invalid URL escape "%2"`},
		{name: "as long as may be", values: []string{long}, relay: true, ids: []string{long}},
		{name: "too long", values: []string{long + "y"}, err: `x-xds-relay-chain has an id of more than 256 bytes, beginning with "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"`},
		{name: "far too long", values: []string{strings.Repeat("%41", 1000)}, err: `x-xds-relay-chain has an id of more than 256 bytes, beginning with "%41%41%41%41%41%41%41%41%41%41%4"`},
		{name: "as many as may be", values: []string{many(MaxRelays)}, relay: true, ids: strings.Split(many(MaxRelays), ",")},
		{name: "too many", values: []string{many(MaxRelays + 1)}, err: "x-xds-relay-chain has more than 64 relays"},
	} {
		c, err := Parse(tt.values)
		if tt.err != "" {
			if err == nil || err.Error() != tt.err {
				t.Errorf("%s: got %v, want %s", tt.name, err, tt.err)
			}
			continue
		}
		if err != nil || c.Relay != tt.relay || !slices.Equal(c.IDs, tt.ids) {
			t.Errorf("%s: got %+v, %v", tt.name, c, err)
		}
	}
}

func TestCheckShowsTheLoop(t *testing.T) {
	c := Chain{Relay: true, IDs: []string{"a", "b", "c"}}
	for _, tt := range []struct{ own, want string }{
		{"a", "loop of relays: a -> b -> c -> a"},
		{"b", "loop of relays: b -> c -> b"},
		{"c", "loop of relays: c -> c"},
		{"d", ""},
		{"", ""},
	} {
		err := c.Check(tt.own)
		if err == nil && tt.want != "" || err != nil && err.Error() != tt.want {
			t.Errorf("%q: got %v, want %s", tt.own, err, tt.want)
		}
	}
}

// A relay can read what another one announces, with any ids, and a header has printable characters
// only.
func FuzzParse(f *testing.F) {
	f.Add("a", "b", "*")
	f.Add("a,b", "é \n", "%2")
	f.Fuzz(func(t *testing.T, a, b, raw string) {
		if c, err := Parse([]string{raw}); err == nil {
			again, err := Parse([]string{c.String()})
			if err != nil || !slices.Equal(again.IDs, c.IDs) || !again.Relay {
				t.Fatalf("%q is %+v, which reads as %+v, %v", raw, c, again, err)
			}
		}
		if a == "" || b == "" || a == b || len(a) > MaxIDBytes || len(b) > MaxIDBytes {
			return
		}
		c := Chain{Relay: true, IDs: []string{a, b}}
		text := c.String()
		if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Fatalf("%q is not for a header", text)
		}
		if got, err := Parse([]string{text}); err != nil || !slices.Equal(got.IDs, c.IDs) {
			t.Fatalf("%q reads as %+v, %v", text, got, err)
		}
	})
}
