package gate

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/xdstype"
)

// item identifies what can be accepted by itself: an entry, or a member of a set.
type item struct {
	typeURL string
	set     string // the key of its set, "" for an entry
	name    string // as in cache.Change
}

func (i item) topic(scope cache.Scope) cache.Key {
	name := i.name
	if i.set != "" {
		name = i.set
	}
	return cache.Key{Scope: scope, TypeURL: i.typeURL, Name: name}
}

// change is what the source says of an item, and what is not accepted.
type change struct {
	cache.Change
	had bool // there is an accepted resource
	// version is the source's version of the change, empty for none.
	version string
	// waits is why a person must approve it, "" if that is not so.
	waits string
	// later: it came while the rollout was frozen, and is not in the new topics.
	later bool
}

func (c *change) removal() bool { return c.Resource == nil }

// shown reports whether the change is in the new topics.
func (c *change) shown() bool { return !c.removal() && c.waits == "" && !c.later }

// pending is what is not accepted.
type pending struct {
	changes map[item]*change
	// versionOnly has items whose content is accepted, and whose version in the source's words is
	// that of a state that is not.
	versionOnly map[item]cache.Change
	// types counts the changes of each type.
	types map[string]int
	// Sums over the digests of the changes that are shown, and of the removals.
	sum, removalSum           uint64
	nShown, nRemovals, nWaits int
	news                      *news
}

// news has how many changes that are shown have a content, by its hash.
type news struct {
	mu sync.Mutex // comes last
	of map[uint64]int
}

func (n *news) add(hash uint64, by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of[hash] += by; n.of[hash] == 0 {
		delete(n.of, hash)
	}
}

func (n *news) has(hash uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.of[hash] > 0
}

func newPending() pending {
	return pending{changes: map[item]*change{}, versionOnly: map[item]cache.Change{}, types: map[string]int{}, news: &news{of: map[uint64]int{}}}
}

// put notes the newest change of an item.
func (p *pending) put(i item, c *change) {
	p.drop(i)
	delete(p.versionOnly, i)
	p.changes[i] = c
	p.count(i, c, 1)
}

// drop forgets a change.
func (p *pending) drop(i item) {
	if c := p.changes[i]; c != nil {
		p.count(i, c, -1)
		delete(p.changes, i)
	}
}

// update changes a change in place.
func (p *pending) update(i item, f func(*change)) {
	c := p.changes[i]
	p.count(i, c, -1)
	f(c)
	p.count(i, c, 1)
}

func (p *pending) count(i item, c *change, n int) {
	if p.types[i.typeURL] += n; p.types[i.typeURL] == 0 {
		delete(p.types, i.typeURL)
	}
	switch {
	case c.shown():
		p.nShown += n
		p.sum += uint64(n) * digest(i, c)
		p.news.add(c.Resource.Hash(), n)
	case c.waits != "":
		p.nWaits += n
	case c.removal() && !c.later:
		p.nRemovals += n
		p.removalSum += uint64(n) * digest(i, c)
	}
}

var seed = maphash.MakeSeed()

func digest(i item, c *change) uint64 {
	type content struct {
		item
		hash    uint64
		removal bool
	}
	of := content{item: i, removal: c.removal()}
	if c.Resource != nil {
		of.hash = c.Resource.Hash()
	}
	return maphash.Comparable(seed, of)
}

// content is a digest of what is to be rolled out, "" if nothing is. hidden says that the new
// topics do not have it.
func (p *pending) content() (content string, hidden bool) {
	removals, sum := p.nRemovals, p.removalSum
	if p.nWaits > 0 {
		removals, sum = 0, 0 // they wait, too
	}
	if p.nShown+removals == 0 {
		return "", false
	}
	return fmt.Sprintf("%d+%d/%x-%x", p.nShown, removals, p.sum, sum), p.nShown == 0
}

// take takes out what is to be accepted, everything if all. It returns the additions and changes by
// type in the order in which clients need them, and then the removals in reverse.
func (p *pending) take(all bool) (updates []update) {
	byType := map[string]*[2]update{}
	for i, c := range p.changes {
		if !all && (c.waits != "" || c.later || c.removal() && p.nWaits > 0) {
			continue
		}
		of := byType[i.typeURL]
		if of == nil {
			of = &[2]update{{typeURL: i.typeURL}, {typeURL: i.typeURL, removals: true}}
			byType[i.typeURL] = of
		}
		which := 0
		if c.removal() {
			which = 1
		}
		of[which].items = append(of[which].items, taken{i, c})
	}
	types := slices.SortedFunc(maps.Keys(byType), func(a, b string) int {
		if x, y := xdstype.Of(a).Order, xdstype.Of(b).Order; x != y {
			return int(x) - int(y)
		}
		return strings.Compare(a, b)
	})
	for _, t := range types {
		updates = append(updates, byType[t][0])
	}
	for _, t := range slices.Backward(types) {
		updates = append(updates, byType[t][1])
	}
	for _, u := range updates {
		for _, t := range u.items {
			p.drop(t.item)
		}
	}
	return updates
}

// update is what is accepted at once.
type update struct {
	typeURL  string
	removals bool
	items    []taken
}

type taken struct {
	item
	change *change
}

// forget forgets what is pending of a topic.
func (p *pending) forget(k cache.Key) {
	if !k.IsSet() {
		i := item{typeURL: k.TypeURL, name: k.Name}
		p.drop(i)
		delete(p.versionOnly, i)
		return
	}
	if p.types[k.TypeURL] == 0 {
		return
	}
	for i := range p.changes {
		if of := i.topic(k.Scope); of == k {
			p.drop(i)
		}
	}
}
