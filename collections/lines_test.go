package collections

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Authorities can make any number of redirect loops.
func TestLinesAboutLoopsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		o, s, say := listWorldLogging(t, "a:l", &out)
		defer o.close()
		defer o.cache.Unwatch(s)
		const many = 300
		var list []string
		for i := range many {
			name := fmt.Sprintf("a/loop-%d", i)
			list = append(list, name)
			o.say(cache.Change{Name: long(name), Resource: cache.NewResource(cache.Spec{
				Name: long(name), TypeURL: xdstype.Locator, Value: mustMarshal(t, locator(t, long(name))), Redirect: long(name),
			})})
		}
		say(list...)
		if got := o.resolver.Loops(); got != many {
			t.Errorf("%d loops were found, want %d", got, many)
		}
		if got, want := strings.Count(out.String(), "redirects in a loop"), loglines.AtOnce; got != want {
			t.Errorf("%d lines about loops, want %d", got, want)
		}
	})
}

// Authorities cannot cause any number of log lines about members with one name.
func TestLinesAboutMembersOfOneNameAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &setPlayer{t: t, views: map[string]View{}, keys: map[string]cache.Key{}}
		do := func(format string, args ...any) {
			t.Helper()
			if err := p.do(fmt.Sprintf(format, args...)); err != nil {
				t.Fatal(err)
			}
		}
		do("view b/all/* = b/all/*, c/all/*")
		do("subscribe b/all/*")
		defer p.close()
		const many, rounds = 20, 20
		for round := range rounds {
			var first, other []string
			for i := range many {
				first = append(first, fmt.Sprintf(`b/all/%d-%d 1 "first"`, round, i))
				other = append(other, fmt.Sprintf(`b/all/%d-%d 2 "other"`, round, i))
			}
			do("set b/all/* = %s", strings.Join(first, ";"))
			do("set c/all/* = %s", strings.Join(other, ";"))
			p.settle()
		}
		if got := p.resolver.Clashes(); got != many*rounds {
			t.Errorf("%d clashes, want %d", got, many*rounds)
		}
		if got, want := strings.Count(p.logs.String(), "two members have the same name"), loglines.AtOnce; got != want {
			t.Errorf("%d lines about members of one name, want %d", got, want)
		}
	})
}
