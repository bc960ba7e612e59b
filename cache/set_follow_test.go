package cache

import (
	"testing"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// When a member becomes a redirect, the set remembers its previous resource until the redirect's
// target is found.
func TestRedirectsRememberWhatTheyWere(t *testing.T) {
	c, s, _ := newWatchedSet(t)
	redirect := func(to string) Change {
		return Change{Name: "r", Resource: NewResource(Spec{Name: "r", TypeURL: xdstype.Locator, Value: []byte(to), Redirect: "xdstp://a/T/" + to})}
	}
	was := func() string {
		is := "nothing"
		s.Since(&SetWatch{}, func(m Member) bool {
			if m.Name == "r" && m.Previous != nil {
				is = m.Previous.Version()
			}
			return true
		})
		return is
	}
	one, two := res("r", "1", "one"), res("r", "2", "two")
	for i, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"a redirect from the beginning", func() { delta(c, redirect("x")) }, "nothing"},
		{"content", func() { delta(c, Change{Name: "r", Resource: one}) }, "nothing"},
		{"and another", func() { delta(c, Change{Name: "r", Resource: two}) }, "nothing"},
		{"a redirect", func() { delta(c, redirect("x")) }, "2"},
		{"to elsewhere", func() { delta(c, redirect("y")) }, "2"},
		{"that cannot be fetched again", func() { delta(c, Change{Name: "r", Err: unavailable}) }, "2"},
		{"the same, after a reconnect", func() { full(c, "", redirect("y")) }, "2"},
		{"which is found", func() { s.DropPrevious("r") }, "nothing"},
		{"and leads elsewhere again", func() { delta(c, redirect("x")) }, "nothing"},
		{"content again", func() { delta(c, Change{Name: "r", Resource: one}) }, "nothing"},
		{"and a redirect", func() { delta(c, redirect("x")) }, "1"},
		{"gone", func() { delta(c, gone("r")) }, "nothing"},
		{"a redirect, after that", func() { delta(c, redirect("x")) }, "nothing"},
		{"content", func() { delta(c, Change{Name: "r", Resource: two}) }, "nothing"},
		{"a redirect among all there is", func() { full(c, "", redirect("x")) }, "2"},
		{"which has nothing of it any more", func() { full(c, "") }, "nothing"},
	} {
		if step.do(); was() != step.want {
			t.Errorf("step %d, %s: it was %s, want %s", i, step.what, was(), step.want)
		}
	}
	if len(s.previousOf) != 0 {
		t.Errorf("%d members are remembered for nothing", len(s.previousOf))
	}
}
