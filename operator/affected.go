package operator

// The clients that an outage of an authority affects, on the operator's page: those that have subscribed to a
// resource there. Names that a client may not have do not count, because it is not subscribed to them.

import (
	"cmp"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Affected counts the clients of an authority, or of those of its partitions, of which no server can be reached. It
// leaves out clients that use the authority only through a view.
type Affected struct {
	// Clients counts them among the LookedAt streams that were looked at. Streams counts all open streams.
	Clients  int `json:"clients"`
	LookedAt int `json:"looked_at"`
	Streams  int `json:"streams"`
	// Types are their subscriptions by type.
	Types []AffectedType `json:"types"`
}

// AffectedType has the affected clients' subscriptions to one type.
type AffectedType struct {
	Type          string `json:"type"`
	Clients       int    `json:"clients"`
	Subscriptions int    `json:"subscriptions"`
	// Names are some of the names, wildcards and globs.
	Names []string `json:"names"`
	// Kept counts the resources of the type that the relay still serves, and Lacking those that it never got.
	Kept    int64 `json:"kept"`
	Lacking int64 `json:"lacking"`
}

// mostAffectedNames bounds AffectedType.Names.
const mostAffectedNames = 5

// affectedAnswers caches the newest answer for each authority.
type affectedAnswers struct {
	mu sync.Mutex // held while clients are looked at
	by map[string]affectedAnswer
}

type affectedAnswer struct {
	until  time.Time
	answer *Affected
}

// cutOff returns the scopes of which no server can be reached, by the names of their authorities.
func (r *Observer) cutOff() map[string]map[cache.Scope]time.Time {
	router, by := r.now().Router, map[string]map[cache.Scope]time.Time{}
	for scope, since := range r.Reachability.Down() {
		if a, ok := router.Source(scope); ok {
			if by[a.Name] == nil {
				by[a.Name] = map[cache.Scope]time.Time{}
			}
			by[a.Name][scope] = since
		}
	}
	return by
}

// affected returns the clients that an authority's outage affects, nil if it has no outage.
func (r *Observer) affected(authority string) *Affected {
	down := r.cutOff()[authority]
	if down == nil {
		return nil
	}
	s := &r.affectedBy
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	for name, a := range s.by {
		if began.After(a.until) {
			delete(s.by, name)
		}
	}
	if known, is := s.by[authority]; is {
		return known.answer
	}
	a := r.lookAtAffected(down)
	if s.by == nil {
		s.by = map[string]affectedAnswer{}
	}
	s.by[authority] = affectedAnswer{time.Now().Add(lookShare * time.Since(began)), a}
	return a
}

// lookAtAffected looks at clients for a limited time.
func (r *Observer) lookAtAffected(down map[cache.Scope]time.Time) *Affected {
	a := &Affected{Streams: r.Server.Clients(), Types: []AffectedType{}}
	by := map[string]*AffectedType{}
	until := time.Now().Add(holdersTake)
	for c := range r.Server.Inspect(0) {
		if time.Now().After(until) {
			break
		}
		a.LookedAt++
		if !uses(c, down) {
			continue
		}
		a.Clients++
		for _, t := range c.Types {
			of := by[t.TypeURL]
			if of == nil {
				of = &AffectedType{Type: typeWord(t.TypeURL)}
				by[t.TypeURL] = of
			}
			before := of.Subscriptions
			for k := range c.Subscribed(t.TypeURL) {
				if k.Scope = plainScope(k.Scope); !has(down, k.Scope) {
					continue
				}
				of.Subscriptions++
				if name := loglines.ClipTo(k.Name, 200); len(of.Names) < mostAffectedNames && !slices.Contains(of.Names, name) {
					of.Names = append(of.Names, name)
				}
			}
			if of.Subscriptions > before {
				of.Clients++
			}
		}
	}
	r.Cache.EachStates(func(scope cache.Scope, typeURL string, counts *cache.StateCounts) {
		of := by[typeURL]
		if of == nil || !has(down, scope) {
			return
		}
		for state, n := range counts {
			switch cache.CacheState(state) {
			case cache.StateACKed, cache.StateNACKedButCached, cache.StateReceivedErrorButCached:
				of.Kept += n
			case cache.StateRequested, cache.StateNACKed, cache.StateTimeout, cache.StateReceivedError:
				of.Lacking += n
			case cache.StateDoesNotExist, cache.CacheStates:
			}
		}
	})
	for _, of := range by {
		if of.Subscriptions > 0 {
			a.Types = append(a.Types, *of)
		}
	}
	slices.SortFunc(a.Types, func(a, b AffectedType) int {
		return cmp.Or(cmp.Compare(b.Clients, a.Clients), cmp.Compare(a.Type, b.Type))
	})
	return a
}

// plainScope returns the leaf scope of a scope of a rollout or of redirects.
func plainScope(s cache.Scope) cache.Scope {
	s = s.Accepted()
	if s.Derived == cache.Resolved || s.Derived == cache.Passed {
		s.Derived = ""
	}
	return s
}

func has(scopes map[cache.Scope]time.Time, s cache.Scope) bool { _, is := scopes[s]; return is }

// uses reports whether a client uses one of some scopes.
func uses(c *downstream.Inspected, scopes map[cache.Scope]time.Time) bool {
	return slices.ContainsFunc(c.Scopes(), func(s cache.Scope) bool { return has(scopes, plainScope(s)) })
}

// countAffected counts the clients that each outage affects, among those that it can look at in a limited time. all
// says that it looked at all.
func (r *Observer) countAffected(down map[string]map[cache.Scope]time.Time) (by map[string]int, all bool) {
	by = map[string]int{}
	if len(down) == 0 {
		return by, true
	}
	of := map[cache.Scope]string{}
	for authority, scopes := range down {
		for scope := range scopes {
			of[scope] = authority
		}
	}
	until := time.Now().Add(holdersTake)
	for c := range r.Server.Inspect(0) {
		if time.Now().After(until) {
			return by, false
		}
		seen := map[string]bool{}
		for _, scope := range c.Scopes() {
			if authority, is := of[plainScope(scope)]; is && !seen[authority] {
				seen[authority] = true
				by[authority]++
			}
		}
	}
	return by, true
}

// affectedPage returns the page that lists the clients that an authority's outage affects.
func affectedPage(authority string) string {
	return "/ui/clients?" + url.Values{"authority": {authority}, "unreachable": {"true"}}.Encode()
}
