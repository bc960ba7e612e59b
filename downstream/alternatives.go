package downstream

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// What a name comes to with each alternative is kept by itself, and of a glob that is all
// members each time, under its own names: for which it is enough that a client makes up
// either of the two. Nobody needs many alternatives for one name, nor many globs that have
// one, so a client is refused the rest. TP1: "Alternatives".

// alternatives count a client's subscriptions of one type that have an alternative: by the
// name, or entry of a list; and those to globs together.
type alternatives map[string][]alternative

type alternative struct {
	key           string // cache.Key.Name
	subscriptions int
}

// primary returns what a topic is counted under, if it has an alternative: what it is
// without that.
func primary(k cache.Key) (name string, ok bool) {
	const alt = "alt=" // the first in canonical names
	if k.Scope.Derived == "" || k.Scope.OldStyle {
		return "", false
	}
	name, directives, _ := strings.Cut(k.Name, "#")
	if !strings.HasPrefix(directives, alt) {
		return "", false
	}
	if k.IsSet() {
		return cache.Wildcard, true
	}
	if _, entry, ok := strings.Cut(directives, ","); ok {
		name += "#" + entry
	}
	return name, true
}

// over returns the excess if k is one too many.
func (a alternatives) over(k cache.Key) *excess {
	name, ok := primary(k)
	if !ok || a.find(name, k.Name) >= 0 {
		return nil
	}
	what := "%d different alternatives of one name on this stream"
	if k.IsSet() {
		what = "%d globs of one type with an alternative on this stream"
	}
	return over(limitAlternatives, len(a[name])+1, maxAlternatives, what)
}

func (a alternatives) find(name, key string) int {
	return slices.IndexFunc(a[name], func(is alternative) bool { return is.key == key })
}

// countAlternative notes n more subscriptions to a topic. The key is the topic's own, so that its
// name is there once.
func (s *subscriptions) countAlternative(k cache.Key, n int) {
	name, ok := primary(k)
	if !ok {
		return
	}
	if s.alternatives == nil {
		s.alternatives = alternatives{}
	}
	at := s.alternatives.find(name, k.Name)
	if at < 0 {
		at = len(s.alternatives[name])
		s.alternatives[name] = append(s.alternatives[name], alternative{key: k.Name})
	}
	all := s.alternatives[name]
	if all[at].subscriptions += n; all[at].subscriptions > 0 {
		return
	}
	if all = slices.Delete(all, at, at+1); len(all) > 0 {
		s.alternatives[name] = all
	} else {
		delete(s.alternatives, name)
	}
}

// refusal notes that a client goes over a limit for single names, and returns what it is
// told of the name.
func (s *subscriptions) refusal(e *excess) error {
	// One that ends the stream is noted when it does.
	if s.onRefusal != nil && (s.scopes == nil || s.scopes.excess != e) {
		s.onRefusal.refuseName(e)
	}
	return &RefusedError{Refusal: RefusedLimit, Client: &cache.Error{Code: codes.ResourceExhausted, Message: e.Error()}}
}

// refused says that the client was refused a name that it may be given now.
func (s *nameSub) refused() bool {
	r := s.rare()
	return r != nil && r.err != nil && r.err.Code == codes.ResourceExhausted
}
