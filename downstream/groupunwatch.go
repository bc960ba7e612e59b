package downstream

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// The names that a group watches. A client that unsubscribes from one name stays in its group, for the others. When all
// of the group's clients have unsubscribed from a name, the group stops watching it, so that the relay unsubscribes
// upstream. A client that comes later requests all names of the list: then the group watches the name again.
//
// A client that has unsubscribed from all names has left. So each client shares a name that the group watches, and the
// group's scope lasts. On the new side of a rollout, watches last until all clients have left that side.

// watch begins the watch of a name that no client shares yet, unless it is watched already.
func (g *watchGroup) watch(i int, w *cache.Watch) (began bool) {
	w.Group = &g.sides[accepted].audience
	setPlace(w, i)
	key := g.kind.First
	key.Name = g.of.names[i]
	// Names that not every client may be given are individual, and each client requests them.
	entry, _ := g.topics.WatchInGroup(key, w)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.watches[i] != nil {
		return false
	}
	g.watches[i] = w
	st := entry.State()
	g.reset(i, g.look(i, &st))
	g.prefetchName(i, PrefetchAudience.Want)
	return true
}

// watchAgain watches a name for a client that has come after all others had unsubscribed from it.
func (g *watchGroup) watchAgain(i int) {
	if w := new(cache.Watch); !g.watch(i, w) {
		g.topics.Unwatch(w)
	}
}

// unwatched returns the names that the group does not watch. The caller holds mu.
func (g *watchGroup) unwatched() (names []int) {
	if g.gaveUp == nil {
		return nil
	}
	for i, w := range g.watches {
		if w == nil {
			names = append(names, i)
		}
	}
	return names
}

// GiveUp implements session.WatchGroup.
func (g *watchGroup) GiveUp(i uint32) {
	g.mu.Lock()
	if g.gaveUp == nil {
		g.gaveUp = make([]int32, len(g.names))
	}
	g.gaveUp[i]++
	w := g.endUnused(int(i))
	g.mu.Unlock()
	if w != nil {
		g.topics.Unwatch(w)
	}
}

// takeBack forgets what a client that has left had unsubscribed from. It returns the watches of the names from which
// all others have unsubscribed. The caller holds mu.
func (g *watchGroup) takeBack(gaveUp session.NameBits) (ended []*cache.Watch) {
	for i := range g.gaveUp {
		if gaveUp.Has(uint32(i)) { //nolint:gosec // a request has fewer
			g.gaveUp[i]--
		}
		if w := g.endUnused(i); w != nil {
			ended = append(ended, w)
		}
	}
	return ended
}

// endUnused returns the watch of a name that has to end because all clients have unsubscribed from the name, nil if
// there is none. The caller holds mu.
func (g *watchGroup) endUnused(i int) (ended *cache.Watch) {
	clients := len(g.sides[accepted].members) + len(g.sides[rolledOut].members)
	if clients == 0 || int(g.gaveUp[i]) < clients || g.watches[i] == nil {
		return nil
	}
	ended, g.watches[i] = g.watches[i], nil
	g.reset(i, nameState{})
	g.prefetchName(i, PrefetchAudience.Unwant)
	return ended
}

// reset sets the accepted state of a name that no client shares. That is no change for anyone. The caller holds mu.
func (g *watchGroup) reset(i int, state nameState) {
	in := g.sidesOf(i)
	g.set(i, state, in, max(firstChange, g.names[i].seqs[accepted]))
	for s := range in.each() {
		g.sides[s].clearNews()
	}
}
