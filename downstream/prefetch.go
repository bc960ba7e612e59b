package downstream

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// Prefetching: the streams of a listener report what they watch to the Prefetcher, which finds out what their clients
// will request next. Streams of listeners that do not prefetch pay nothing for this.

// streamPrefetch is a stream's part in prefetching. stream.mu guards it. The keys are those that names resolve to.
type streamPrefetch struct {
	audience PrefetchAudience
	wants    map[cache.Key]int
	groups   map[*watchGroup]struct{}
	covers   []cache.Key
	onNew    []cache.Scope
}

// maxCovers bounds streamPrefetch.covers.
const maxCovers = 16

// prefetchKey returns the topic that a subscription had before it followed a redirect. It returns false for topics that
// are derived in other ways.
func prefetchKey(k cache.Key) (cache.Key, bool) {
	switch k.Scope.Derived {
	case "":
	case cache.Resolved:
		if strings.Contains(k.Name, "#") {
			return k, false
		}
	default:
		return k, false
	}
	k.Scope = k.Scope.Accepted()
	return k, true
}

// startPrefetch has the stream take part if its listener prefetches, and reports what the stream watches already. The
// caller holds mu.
func (st *stream) startPrefetch() {
	p := st.server.options.Prefetcher
	if _, once := st.grpc.(noStream); once || p == nil || st.gate == nil || !st.gate.door.newest.Load().prefetch {
		return
	}
	st.prefetch = &streamPrefetch{wants: map[cache.Key]int{}, groups: map[*watchGroup]struct{}{}}
	for _, s := range st.sessions {
		for k := range s.Watched() {
			st.noteWant(k)
		}
		if g, ok := s.Group().(*watchGroup); ok {
			st.prefetch.groups[g] = struct{}{}
		}
	}
	st.joinAudience()
}

// restartPrefetch has the stream take part according to its listener's and its client's current settings. The caller holds
// mu.
func (st *stream) restartPrefetch() {
	switch on := st.gate != nil && st.gate.door.newest.Load().prefetch; {
	case st.prefetch == nil && on:
		st.startPrefetch()
	case st.prefetch != nil && !on:
		st.endPrefetch()
	case st.prefetch != nil:
		st.joinAudience()
	}
}

// joinAudience moves the stream to the audience that it belongs to now.
func (st *stream) joinAudience() {
	p := st.prefetch
	before := p.audience
	p.onNew = p.onNew[:0:0]
	for _, t := range st.trials.each() {
		if t.onNew() {
			p.onNew = append(p.onNew, t.scope)
		}
	}
	p.audience = st.server.options.Prefetcher.Join(st.names, p.covers, p.onNew)
	if p.audience != before {
		p.each(p.audience.Want, p.audience)
		if before != nil {
			p.each(before.Unwant, before)
		}
	}
	if before != nil {
		before.Leave()
	}
}

// each calls do for each wanted topic, and moves the groups to an audience, or away.
func (p *streamPrefetch) each(do func(cache.Key), of PrefetchAudience) {
	for k := range p.wants {
		do(k)
	}
	for g := range p.groups {
		if of == p.audience {
			g.want(of)
		} else {
			g.unwant(of)
		}
	}
}

// endPrefetch ends the stream's part. The caller holds mu.
func (st *stream) endPrefetch() {
	p := st.prefetch
	if p == nil {
		return
	}
	st.prefetch = nil
	of := p.audience
	p.audience = nil
	p.each(of.Unwant, of)
	of.Leave()
}

// noteSides moves the stream to another audience if the stream is on another side of a rollout. The caller holds mu.
func (st *stream) noteSides() {
	if st.prefetch == nil {
		return
	}
	i := 0
	for _, t := range st.trials.each() {
		if !t.onNew() {
			continue
		}
		if i == len(st.prefetch.onNew) || st.prefetch.onNew[i] != t.scope {
			st.joinAudience()
			return
		}
		i++
	}
	if i < len(st.prefetch.onNew) {
		st.joinAudience()
	}
}

// wants records that the stream watches a topic.
func (st *stream) wants(k cache.Key) {
	if st.prefetch == nil {
		return
	}
	if covered := len(st.prefetch.covers); st.noteWant(k) {
		k, _ := prefetchKey(k)
		st.prefetch.audience.Want(k)
		if len(st.prefetch.covers) != covered {
			st.joinAudience()
		}
	}
}

// noteWant is wants without the audience. It returns false if the audience need not know.
func (st *stream) noteWant(k cache.Key) bool {
	p := st.prefetch
	k, ok := prefetchKey(k)
	if !ok || !k.IsSet() && !st.server.options.Prefetcher.Follows(k.TypeURL) {
		return false
	}
	if p.wants[k]++; p.wants[k] > 1 {
		return false
	}
	if k.IsSet() && len(p.covers) < maxCovers {
		p.covers = append(slices.Clip(p.covers), k)
		slices.SortFunc(p.covers, func(a, b cache.Key) int {
			return cmp.Or(cmp.Compare(a.TypeURL, b.TypeURL), cmp.Compare(a.Name, b.Name))
		})
	}
	return true
}

// wantsNoMore records that the stream no longer watches a topic.
func (st *stream) wantsNoMore(k cache.Key) {
	p := st.prefetch
	if p == nil {
		return
	}
	k, ok := prefetchKey(k)
	if !ok || p.wants[k] == 0 {
		return
	}
	if p.wants[k]--; p.wants[k] > 0 {
		return
	}
	delete(p.wants, k)
	p.audience.Unwant(k)
	if i := slices.Index(p.covers, k); i >= 0 && !st.closed {
		p.covers = slices.Delete(slices.Clone(p.covers), i, i+1)
		st.joinAudience()
	}
}

// joinPrefetch records that the client of a member watches what the group watches.
func (g *watchGroup) joinPrefetch(m *session.Member) {
	st, ok := m.Host.(*stream)
	if !ok || st.prefetch == nil || !st.server.options.Prefetcher.Follows(g.kind.First.TypeURL) {
		return
	}
	st.prefetch.groups[g] = struct{}{}
	g.want(st.prefetch.audience)
}

// leavePrefetch undoes joinPrefetch.
func (g *watchGroup) leavePrefetch(m *session.Member) {
	st, ok := m.Host.(*stream)
	if !ok || st.prefetch == nil {
		return
	}
	if _, is := st.prefetch.groups[g]; is {
		delete(st.prefetch.groups, g)
		g.unwant(st.prefetch.audience)
	}
}

// wantAgainAfter is how long further clients of a group are not reported to an audience.
const wantAgainAfter = 5 * time.Second

// want records that one more client of an audience watches the group's names. The audience counts all of these clients
// as one, but from time to time it has to know that there are more.
func (g *watchGroup) want(a PrefetchAudience) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.audiences[a]
	if of == nil {
		of = &groupAudience{}
		if g.audiences == nil {
			g.audiences = map[PrefetchAudience]*groupAudience{}
		}
		g.audiences[a] = of
	}
	of.clients++
	again := of.clients > 1
	if again && of.wanted.ago() < wantAgainAfter {
		return
	}
	of.wanted = now()
	g.eachPrefetched(a.Want)
	if again {
		g.eachPrefetched(a.Unwant)
	}
}

// unwant undoes a want.
func (g *watchGroup) unwant(a PrefetchAudience) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.audiences[a]
	if of.clients--; of.clients == 0 {
		delete(g.audiences, a)
		g.eachPrefetched(a.Unwant)
	}
}

func (g *watchGroup) eachPrefetched(do func(cache.Key)) {
	k, ok := prefetchKey(g.kind.First)
	if !ok {
		return
	}
	for i, w := range g.watches {
		if k.Name = g.of.names[i]; w != nil {
			do(k)
		}
	}
}

// prefetchName reports to the audiences that the group begins to watch a name, or stops watching it. The caller holds mu.
func (g *watchGroup) prefetchName(i int, do func(PrefetchAudience, cache.Key)) {
	k, ok := prefetchKey(g.kind.First)
	k.Name = g.of.names[i]
	for a := range g.audiences {
		if ok {
			do(a, k)
		}
	}
}
