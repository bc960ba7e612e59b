package gate

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
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

// shown reports whether the change is in the new topics: a resource unless a person must approve it, and a removal of
// a type to which no others refer. Envoy applies the removals of a response first, so that a new Listener can take the
// address of an old one. Other removed resources stay: what refers to them may not have changed yet.
func (p *pending) shown(typeURL string, c *change) bool {
	if c.removal() {
		return !xdstype.Of(typeURL).Referenced && p.waits[typeURL] == 0
	}
	return c.waits == ""
}

// showsRemovals reports whether removals of a type are in the new topics.
func (p *pending) showsRemovals(typeURL string) bool {
	return p.removals[typeURL] > 0 && p.waits[typeURL] == 0 && !xdstype.Of(typeURL).Referenced
}

// removalWaits reports whether removals of a type wait for a person, because another resource does: it may refer to the
// removed resource, or take its place.
func (p *pending) removalWaits(typeURL string) bool {
	if xdstype.Of(typeURL).Referenced {
		return p.nWaits > 0
	}
	return p.waits[typeURL] > 0
}

// pending has the changes that are not accepted.
type pending struct {
	changes map[item]*change
	// sets has the changes of members, by set.
	sets map[topicName]map[string]*change
	// touched are the topics that have gained their first pending change or lost their last one.
	touched []topicName
	// released are the items that may differ in the new topics because another item has changed: their refusal ends, or
	// their removal waits or no longer does.
	released []item
	// versionOnly has items whose content is accepted, but whose version from the source belongs to a state that is
	// not.
	versionOnly map[item]cache.Change
	// types counts the changes of each type, waits those that wait for a person, and removals the removals.
	types, waits, removals map[string]int
	// shows has the digests of the changes that are shown, and stays of the removals that are not, even if none waits.
	shows, stays digests
	// nShown counts the resources that are shown, nStays the removals that are not.
	nShown, nStays, nWaits int
	index                  *shownIndex
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
	n.addTopic(i, by)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of[hash] += by; n.of[hash] == 0 {
		delete(n.of, hash)
	}
}

// addTopic adds by to the count of a change's topic.
func (n *shownIndex) addTopic(i item, by int) {
	name := i.name
	if i.set != "" {
		name = i.set
	}
	n.mu.Lock()
	defer n.mu.Unlock()
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
	return pending{changes: map[item]*change{}, sets: map[topicName]map[string]*change{}, shows: digests{of: map[uint64]int{}}, stays: digests{of: map[uint64]int{}}, versionOnly: map[item]cache.Change{}, types: map[string]int{}, waits: map[string]int{}, removals: map[string]int{}, index: newShownIndex()}
}

// put records the newest change of an item.
func (p *pending) put(i item, c *change) {
	delete(p.versionOnly, i)
	before := p.changes[i]
	if before != nil && before.refusal != nil {
		p.drop(i)
		before = nil
	}
	p.changes[i] = c
	p.count(i, c, 1)
	if before != nil {
		p.count(i, before, -1) // last, so that no count is 0 in between
	}
	if i.set == "" {
		p.touched = append(p.touched, topicName{i.typeURL, i.name})
		return
	}
	of := topicName{i.typeURL, i.set}
	if p.sets[of] == nil {
		p.sets[of] = map[string]*change{}
	}
	if p.sets[of][i.name] = c; len(p.sets[of]) == 1 {
		p.touched = append(p.touched, of)
	}
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
	add(p.types, i.typeURL, n)
	switch {
	case c.waits != "":
		p.countWaiting(i.typeURL, n)
	case c.removal():
		add(p.removals, i.typeURL, n)
		p.countRemoval(i, c, n)
	default:
		p.nShown += n
		p.shows.add(digest(i, c), n)
		p.index.add(i, c.Resource.Hash(), n)
	}
}

// add adds n to the count of a type.
func add(counts map[string]int, typeURL string, n int) {
	if counts[typeURL] += n; counts[typeURL] == 0 {
		delete(counts, typeURL)
	}
}

// countWaiting counts changes of a type that wait for a person. Removals that are shown wait with the first one.
func (p *pending) countWaiting(typeURL string, n int) {
	was := p.waits[typeURL]
	var removals []item
	if (was == 0) != (was+n == 0) && p.removals[typeURL] > 0 && !xdstype.Of(typeURL).Referenced {
		for i, c := range p.changes {
			if i.typeURL == typeURL && c.removal() {
				removals = append(removals, i)
			}
		}
	}
	for _, i := range removals {
		p.countRemoval(i, p.changes[i], -1)
	}
	p.nWaits += n
	add(p.waits, typeURL, n)
	for _, i := range removals {
		p.countRemoval(i, p.changes[i], 1)
	}
	p.released = append(p.released, removals...)
}

func (p *pending) countRemoval(i item, c *change, n int) {
	if p.shown(i.typeURL, c) {
		p.shows.add(digest(i, c), n)
		p.index.addTopic(i, n)
		return
	}
	p.nStays += n
	if xdstype.Of(i.typeURL).Referenced {
		p.stays.add(digest(i, c), n)
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

// content returns a digest of the changes to be rolled out, "" if there are none. hidden: they are removals only, which
// no client can accept or reject.
func (p *pending) content() (content string, hidden bool) {
	stays := p.stays
	if p.nWaits > 0 {
		stays = digests{} // these removals wait, too
	}
	if len(p.shows.of)+len(stays.of) == 0 {
		return "", false
	}
	var digest [32]byte
	for i, n := range [...]uint64{uint64(len(p.shows.of)), uint64(len(stays.of)), p.shows.sum, stays.sum} {
		binary.LittleEndian.PutUint64(digest[8*i:], n)
	}
	return string(digest[:]), p.nShown == 0
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
