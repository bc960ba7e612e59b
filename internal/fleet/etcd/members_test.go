package etcd

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestARelayThatIsNotListedLingers: an etcd that lost its data takes nobody away before it could register again.
func TestARelayThatIsNotListedLingers(t *testing.T) {
	const lingers = 10 * time.Second
	start := time.Unix(1, 0)
	for _, tt := range []struct {
		name  string
		lists []string // one per line: the second at which it is read, what is listed, and the members
	}{
		{"members come", []string{"0 b: b", "1 b a: a b"}},
		{"a member goes", []string{"0 a b: a b", "1 a: a b", "10 a: a b", "11 a: a"}},
		{"a member comes back", []string{"0 a b: a b", "1 a: a b", "9 a b: a b", "12 a: a b", "21 a: a b", "22 a: a"}},
		{"an etcd that lost its data after an hour", []string{"0 a b: a b", "3600 : a b", "3601 a: a b", "3602 a b: a b", "3700 a b: a b"}},
		{"nobody was known", []string{"0 : "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := roll{lingers: lingers}
			for _, list := range tt.lists {
				read, want, _ := strings.Cut(list, ": ")
				words := strings.Fields(strings.TrimSuffix(read, ":"))
				var second int
				if _, err := fmt.Sscan(words[0], &second); err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(r.call(start.Add(time.Duration(second)*time.Second), words[1:]), " "); got != want {
					t.Errorf("after %q: %q, want %q", read, got, want)
				}
			}
		})
	}
}
