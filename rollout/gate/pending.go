package gate

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/xdstype"
)

// item identifies the unit of acceptance: an entry, or a member of a set.
type item struct {
	typeURL string
	set     string // the key of its set, "" for an entry
	name    string // as in cache.Change
}

// topicName identifies a topic of a scope.
type topicName struct{ typeURL, name string }

func (i item) topic(scope cache.Scope) cache.Key {
	name := i.name
	if i.set != "" {
		name = i.set
	}
	return cache.Key{Scope: scope, TypeURL: i.typeURL, Name: name}
}

// change is an item's newest change from the source that is not accepted.
type change struct {
	cache.Change
	had bool // there is an accepted resource
	// waits is why a person must approve the change, "" if no approval is needed.
	waits string
	// refusal has the changes that were set apart together with this one. It is nil if the change was not set apart.
	refusal *refusal
}

func (c *change) removal() bool { return c.Resource == nil }

// shown reports whether the change is in the new topics.
func (c *change) shown() bool { return !c.removal() && c.waits == "" }

// pending has the changes that are not accepted.
type pending struct {
	changes map[item]*change
	// sets has the changes of members, by set.
	sets map[topicName]map[string]*change
	// touched are the topics that have gained their first pending change or lost their last one.
	touched []topicName
	// released are the items that no longer wait, because another item of their refusal has changed.
	released []item
	// versionOnly has items whose content is accepted, but whose version from the source belongs to a state that is
	// not.
	versionOnly map[item]cache.Change
	// types counts the changes of each type.
	types map[string]int
	// shown and removals are the digests of the changes that are shown, and of the removals.
	shown, removals           digests
	nShown, nRemovals, nWaits int
	index                     *shownIndex
}

// shownIndex answers streams' queries about the changes that are shown. Its methods may be called concurrently.
type shownIndex struct {
	mu     sync.Mutex // comes last
	of     map[uint64]int
	topics map[string]map[string]int // by type and name
}

func newShownIndex() *shownIndex {
	return &shownIndex{of: map[uint64]int{}, topics: map[string]map[string]int{}}
}

// add adds by to the counts of a change's content and topic.
func (n *shownIndex) add(i item, hash uint64, by int) {
	name := i.name
	if i.set != "" {
		name = i.set
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of[hash] += by; n.of[hash] == 0 {
		delete(n.of, hash)
	}
	of := n.topics[i.typeURL]
	if of == nil {
		of = map[string]int{}
		n.topics[i.typeURL] = of
	}
	if of[name] += by; of[name] > 0 {
		return
	}
	if delete(of, name); len(of) == 0 {
		delete(n.topics, i.typeURL)
	}
}

func (n *shownIndex) has(hash uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.of[hash] > 0
}

// maxDiffering is the largest number of differing topics that are returned by name.
const maxDiffering = 64

// differing returns the names of a type's topics that differ on the new side. all is true if there are too many to
// name.
func (n *shownIndex) differing(typeURL string) (names []string, all bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := n.topics[typeURL]
	if len(of) > maxDiffering {
		return nil, true
	}
	for name := range of {
		names = append(names, name)
	}
	return names, false
}

func newPending() pending {
	return pending{changes: map[item]*change{}, sets: map[topicName]map[string]*change{}, shown: digests{of: map[uint64]int{}}, removals: digests{of: map[uint64]int{}}, versionOnly: map[item]cache.Change{}, types: map[string]int{}, index: newShownIndex()}
}

// put records the newest change of an item.
func (p *pending) put(i item, c *change) {
	p.drop(i)
	delete(p.versionOnly, i)
	p.changes[i] = c
	p.count(i, c, 1)
	if i.set == "" {
		p.touched = append(p.touched, topicName{i.typeURL, i.name})
		return
	}
	of := topicName{i.typeURL, i.set}
	if p.sets[of] == nil {
		p.sets[of] = map[string]*change{}
		p.touched = append(p.touched, of)
	}
	p.sets[of][i.name] = c
}

// drop forgets a change.
func (p *pending) drop(i item) {
	c := p.changes[i]
	if c == nil {
		return
	}
	p.count(i, c, -1)
	delete(p.changes, i)
	if i.set == "" {
		p.touched = append(p.touched, topicName{i.typeURL, i.name})
	} else if of := (topicName{i.typeURL, i.set}); len(p.sets[of]) > 1 {
		delete(p.sets[of], i.name)
	} else {
		delete(p.sets, of)
		p.touched = append(p.touched, of)
	}
	if c.refusal != nil {
		p.release(c.refusal)
	}
}

// release ends the wait of all items of a refusal, one of which has changed. They are rolled out again.
func (p *pending) release(r *refusal) {
	for _, i := range r.items {
		if c := p.changes[i]; c != nil && c.refusal == r {
			p.update(i, func(c *change) { c.waits, c.refusal = "", nil })
			p.released = append(p.released, i)
		}
	}
}

// takeReleased returns and clears the released items.
func (p *pending) takeReleased() []item {
	released := p.released
	p.released = nil
	return released
}

// has reports whether a topic has pending changes.
func (p *pending) has(t topicName) bool {
	return p.changes[item{typeURL: t.typeURL, name: t.name}] != nil || p.sets[t] != nil
}

// update modifies a change in place.
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
		p.shown.add(digest(i, c), n)
		p.index.add(i, c.Resource.Hash(), n)
	case c.waits != "":
		p.nWaits += n
	case c.removal():
		p.nRemovals += n
		p.removals.add(digest(i, c), n)
	}
}

// digests is a set of digests. Its sum depends on its members only.
type digests struct {
	of  map[uint64]int // the number of changes with each digest
	sum uint64
}

func (d *digests) add(digest uint64, n int) {
	was := d.of[digest]
	switch is := was + n; {
	case is == 0:
		delete(d.of, digest)
		d.sum -= digest
	default:
		d.of[digest] = is
		if was == 0 {
			d.sum += digest
		}
	}
}

var seed = maphash.MakeSeed()

// digest returns a digest of a change that is the same in all topics. A control plane sends a resource twice if some
// clients subscribe by name and others by wildcard.
func digest(i item, c *change) uint64 {
	type content struct {
		typeURL, name string
		hash          uint64
		removal       bool
	}
	of := content{typeURL: i.typeURL, name: i.name, removal: c.removal()}
	if c.Resource != nil {
		of.hash = c.Resource.Hash()
	}
	return maphash.Comparable(seed, of)
}

// content returns a digest of the changes to be rolled out, "" if there are none. hidden: the new topics have none of
// them.
func (p *pending) content() (content string, hidden bool) {
	removals := p.removals
	if p.nWaits > 0 {
		removals = digests{} // removals wait, too
	}
	if len(p.shown.of)+len(removals.of) == 0 {
		return "", false
	}
	return fmt.Sprintf("%d+%d/%x-%x", len(p.shown.of), len(removals.of), p.shown.sum, removals.sum), p.nShown == 0
}

// take removes the changes that satisfy which, for acceptance, and returns them by type in the order in which clients
// need the types.
func (p *pending) take(which func(item, *change) bool) (updates []update) {
	byType := map[string]*update{}
	for i, c := range p.changes {
		if !which(i, c) {
			continue
		}
		of := byType[i.typeURL]
		if of == nil {
			of = &update{typeURL: i.typeURL}
			byType[i.typeURL] = of
		}
		of.items = append(of.items, taken{i, c})
	}
	types := slices.SortedFunc(maps.Keys(byType), func(a, b string) int {
		return cmp.Or(cmp.Compare(xdstype.Of(a).Order, xdstype.Of(b).Order), strings.Compare(a, b))
	})
	for _, t := range types {
		updates = append(updates, *byType[t])
	}
	for _, u := range updates {
		for _, t := range u.items {
			p.drop(t.item)
		}
	}
	return updates
}

// update has changes of one type that are accepted together.
type update struct {
	typeURL string
	items   []taken
}

type taken struct {
	item
	change *change
}

// forget removes the pending changes of a topic.
func (p *pending) forget(k cache.Key) {
	if !k.IsSet() {
		i := item{typeURL: k.TypeURL, name: k.Name}
		p.drop(i)
		delete(p.versionOnly, i)
		return
	}
	for name := range p.sets[topicName{k.TypeURL, k.Name}] {
		p.drop(item{k.TypeURL, k.Name, name})
	}
}
