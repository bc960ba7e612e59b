package downstream

import (
	"bytes"
	"slices"
	"sync"
	"unicode/utf8"
	"weak"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/recent"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// Lists of names in requests. Clients that are configured alike send the same list, often all at once. From the second
// such client on, the relay finds the list by its bytes and does not decode the names again. Clients to whom the list
// means the same become a group (namegroup.go).

// nameLists are the lists that clients have sent recently. The zero value is ready.
type nameLists struct {
	mu sync.Mutex
	// known has each list by a hash of its bytes. The pointer is nil for a list that was sent once. A list exists while
	// a group or a request has it.
	known map[uint64]weak.Pointer[nameList]
	news  recent.Keeper
}

// mostLists bounds what is remembered. When it is exceeded, the memory is cleared.
const mostLists = 1 << 10

// leastShared is the least number of names in a shared list.
const leastShared = 2

// find returns the list with these fields, nil if no other client has sent it.
func (l *nameLists) find(fields []byte, num protowire.Number, known *knownNames) *nameList {
	hash := xxhash.Sum64(fields)
	l.mu.Lock()
	before, again := l.known[hash]
	if !again {
		if l.known == nil || len(l.known) == mostLists {
			l.known = map[uint64]weak.Pointer[nameList]{}
		}
		l.known[hash] = weak.Pointer[nameList]{}
	}
	l.mu.Unlock()
	if !again {
		return nil
	}
	if list := before.Value(); list != nil {
		if bytes.Equal(list.fields, fields) {
			return list
		}
		return nil
	}
	list := newNameList(fields, num, known, &l.news)
	if list == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.known[hash].Value(); other != nil && bytes.Equal(other.fields, fields) {
		return other
	}
	l.known[hash] = weak.Make(list)
	return list
}

// newNameList returns nil if the fields are no list of names.
func newNameList(fields []byte, num protowire.Number, known *knownNames, news *recent.Keeper) *nameList {
	l := &nameList{fields: slices.Clone(fields), news: news}
	texts := known.texts()
	for rest := l.fields; len(rest) > 0; {
		got, name, n := wire.NextBytes(rest)
		if n == 0 || got != num || !utf8.Valid(name) {
			return nil
		}
		l.names = append(l.names, texts.text(name))
		rest = rest[n:]
	}
	l.index = sync.OnceValue(func() map[string]uint32 {
		index := make(map[string]uint32, len(l.names))
		for i, name := range l.names {
			index[name] = uint32(i) //nolint:gosec // a request has fewer
		}
		return index
	})
	return l
}

// maxMeant bounds what a list remembers. When it is exceeded, the memory is cleared.
const maxMeant = 1 << 8

// All implements session.NameList.
func (l *nameList) All() []string { return l.names }

// Place implements session.NameList.
func (l *nameList) Place(name string) (i uint32, ok bool) {
	i, ok = l.index()[name]
	return i, ok
}

func newWatchGroup(l *nameList, kind session.GroupKind, client session.Meaning, topics *cache.Cache) *watchGroup {
	watches := make([]cache.Watch, len(l.names))
	g := &watchGroup{of: l, kind: kind, topics: topics, watches: make([]*cache.Watch, len(l.names)), names: make([]groupName, len(l.names)), seq: firstChange, logged: firstChange + 1}
	for s := range g.sides {
		g.sides[s].newest.Store(firstChange)
	}
	g.sides[accepted].audience = cache.WatchGroup{Owner: g, IgnoreHeartbeats: true, Changed: g.changed}
	g.sides[rolledOut].audience = cache.WatchGroup{Owner: g, IgnoreHeartbeats: true, Changed: g.changedNew}
	for i := range l.names {
		g.watch(i, &watches[i])
		client.Begun()
	}
	g.first = watches[0].Entry()
	return g
}

// Group implements session.NameList.
func (l *nameList) Group(kind session.GroupKind, client session.Meaning, topics *cache.Cache) session.WatchGroup {
	if !l.Means(kind.First, client) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.groups {
		if g.kind == kind {
			g.clients++
			return g
		}
	}
	g := newWatchGroup(l, kind, client, topics)
	g.clients = 1
	l.groups = append(l.groups, g)
	return g
}

// Means implements session.NameList. It decides about the names without the lock.
func (l *nameList) Means(first cache.Key, client session.Meaning) bool {
	if !first.Scope.OldStyle {
		return client.Means(l.names, first) && l.isUnique()
	}
	to := meantFor{client.Configuration(), client.Class(), first}
	toAll := meantFor{configuration: to.configuration, first: first}
	l.mu.Lock()
	means, known := l.meant[to]
	// Old-style names that mean the same to two clients in one case do so in all cases.
	same := l.meant[toAll]
	l.mu.Unlock()
	switch {
	case known:
		return means
	case same:
		means = client.MayHaveAll(l.names, first)
	default:
		means = client.Means(l.names, first) && l.isUnique()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.meant == nil || len(l.meant) == maxMeant {
		l.meant = map[meantFor]bool{}
	}
	if l.meant[to] = means; means {
		l.meant[toAll] = true
	}
	return means
}

// isUnique reports that no name is in the list twice.
func (l *nameList) isUnique() bool { return len(l.index()) == len(l.names) }

// left notes that a client has left a group, and reports whether it was the last.
func (l *nameList) left(g *watchGroup) (last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.clients--; g.clients > 0 {
		return false
	}
	l.groups = slices.DeleteFunc(l.groups, func(o *watchGroup) bool { return o == g })
	return true
}
