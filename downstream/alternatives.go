package downstream

import (
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
)

// The relay keeps the result of a name with each alternative separately. For a glob, that is all members each time,
// under their own names. A client can cause this by inventing just one of the two URLs. Nobody needs many alternatives
// for one name, or many globs with an alternative, so the relay refuses further ones. TP1: "Alternatives".

// alternatives counts the subscriptions of a client that have an alternative: by the name, or by the entry of a list.
// Subscriptions to globs of one type count together.
type alternatives map[alternativesOf][]alternative

type alternativesOf struct{ typeURL, name string }

type alternative struct {
	key           string // cache.Key.Name
	subscriptions int
}

// primary returns the topic without its alternative; alternatives are counted under that topic. ok is false for a
// topic without an alternative.
func primary(k cache.Key) (of alternativesOf, ok bool) {
	const alt = "alt=" // the first in canonical names
	if k.Scope.Derived == "" || k.Scope.OldStyle {
		return of, false
	}
	name, directives, _ := strings.Cut(k.Name, "#")
	if !strings.HasPrefix(directives, alt) {
		return of, false
	}
	if k.IsSet() {
		return alternativesOf{k.TypeURL, cache.Wildcard}, true
	}
	if _, entry, ok := strings.Cut(directives, ","); ok {
		name += "#" + entry
	}
	return alternativesOf{k.TypeURL, name}, true
}

// over returns the excess if k is one too many.
func (a alternatives) over(k cache.Key) *excess {
	of, ok := primary(k)
	if !ok || a.find(of, k.Name) >= 0 {
		return nil
	}
	what := "%d different alternatives of one name on this stream"
	if k.IsSet() {
		what = "%d globs of one type with an alternative on this stream"
	}
	return over(limitAlternatives, len(a[of])+1, maxAlternatives, what)
}

func (a alternatives) find(of alternativesOf, key string) int {
	return slices.IndexFunc(a[of], func(is alternative) bool { return is.key == key })
}

// count adds n subscriptions, or subtracts them if n is negative, for a topic that has an alternative.
func (a *alternatives) count(k cache.Key, n int) {
	of, ok := primary(k)
	if !ok {
		return
	}
	if *a == nil {
		*a = alternatives{}
	}
	at := a.find(of, k.Name)
	if at < 0 {
		at = len((*a)[of])
		(*a)[of] = append((*a)[of], alternative{key: k.Name})
	}
	all := (*a)[of]
	if all[at].subscriptions += n; all[at].subscriptions > 0 {
		return
	}
	if all = slices.Delete(all, at, at+1); len(all) > 0 {
		(*a)[of] = all
	} else {
		delete(*a, of)
	}
}
