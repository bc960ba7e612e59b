package collections

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/urn"
)

// listWorld is a view of the collection at a URL, with a given content of a:l.
func listWorld(t *testing.T, url string) (o *origins, s *setSub, say func(entries ...string)) {
	return listWorldLogging(t, url, io.Discard)
}

func listWorldLogging(t *testing.T, url string, to io.Writer) (o *origins, s *setSub, say func(entries ...string)) {
	u, _ := urn.ParseURL(long(url))
	o = newOrigins(t, Options{Views: map[string]View{"view/0": {Collections: []urn.URL{u}}}, Log: slog.New(slog.NewTextHandler(to, nil))})
	s = &setSub{}
	say = func(entries ...string) {
		var list [][]byte
		for _, e := range entries {
			list = append(list, locatorEntry(t, long(e)))
		}
		o.say(cache.Change{Name: long("a:l"), Resource: cache.NewResource(cache.Spec{
			Name: long("a:l"), TypeURL: collectionType, Value: collection(long("a:l"), list...).Value(),
		})})
		o.settle()
	}
	s.set = o.cache.WatchSet(cache.Key{Scope: cache.Scope{Derived: "view/0"}, TypeURL: clusterType, Name: cache.Wildcard}, s)
	return o, s, say
}

// The author of a list collection cannot cause requests for any number of collections.
func TestNoMoreThanSoManyCollectionsAreExpanded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, s, say := listWorld(t, "a:l")
		defer o.close()
		defer o.cache.Unwatch(s)
		var many []string
		for i := range maxCollections + 10 {
			many = append(many, fmt.Sprintf("a/%d/*", i))
		}
		say(many...)
		if got, want := len(o.requested), maxCollections; got != want {
			t.Errorf("%d collections are requested, want %d", got, want)
		}
		if got, want := o.resolver.Failures(), uint64(11); got != want {
			t.Errorf("%d failures, want %d", got, want)
		}
		// Those that are gone do not count.
		say()
		for i := range 3 {
			say(many[300*i : 300*i+300]...)
		}
		if got, want := o.resolver.Failures(), uint64(11); got != want {
			t.Errorf("%d failures, want %d", got, want)
		}
	})
}

// The author of a list collection cannot cause any number of log lines.
func TestLinesAboutTheEntriesOfAListAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		o, s, say := listWorldLogging(t, "a:l", &out)
		defer o.close()
		defer o.cache.Unwatch(s)
		lines := func() int {
			defer out.Reset()
			return strings.Count(out.String(), "\n")
		}
		var many []string
		for i := range maxCollections + 500 {
			many = append(many, fmt.Sprintf("a/%d/*", i))
		}
		say(many...)
		if got, want := lines(), loglines.AtOnce; got != want {
			t.Errorf("%d lines about too many collections, want %d", got, want)
		}
		var bad [][]byte
		for range 500 {
			bad = append(bad, []byte{0xff})
		}
		o.say(cache.Change{Name: long("a:l"), Resource: cache.NewResource(cache.Spec{
			Name: long("a:l"), TypeURL: collectionType, Value: collection(long("a:l"), bad...).Value(),
		})})
		o.settle()
		if got, want := lines(), loglines.AtOnce; got != want {
			t.Errorf("%d lines about bad entries, want %d", got, want)
		}
	})
}

// While the members of the alternative are unknown, the members of the collection stay.
func TestAnAlternativeTakesThePlaceOfACollectionWithoutAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, s, say := listWorld(t, "a:l#alt=b:l")
		defer o.close()
		defer o.cache.Unwatch(s)
		o.setPolicy("a", Policy{NotFound: true})
		o.say(cache.Change{Name: long("b:l"), Resource: collection(long("b:l"), locatorEntry(t, long("c/x")), locatorEntry(t, long("c/y")))})
		for _, name := range []string{"c/x", "c/y"} {
			o.say(cache.Change{Name: long(name), Resource: cache.NewResource(cache.Spec{Name: long(name), TypeURL: clusterType, Value: clusterNamed(t, long(name), "")})})
		}
		say("c/x")
		gaps := o.watchGaps(cache.Key{Scope: cache.Scope{Derived: "view/0"}, TypeURL: clusterType, Name: cache.Wildcard})
		defer o.cache.Unwatch(gaps)
		o.say(cache.Change{Name: long("a:l"), Gone: true})
		o.settle()
		if got, want := s.set.Len(), 2; got != want {
			t.Errorf("%d members, want %d", got, want)
		}
		if len(gaps.gone) > 0 {
			t.Errorf("%v were gone for a while", gaps.gone)
		}
	})
}
