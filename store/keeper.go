package store

import (
	"iter"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Keeper notes in the store what the cache accepts of one scope. After a wait, it also answers from the store the topics
// that the servers have not answered. It is a value: its caller calls one method at a time, with the time. Only Look,
// which reads the disk, may be called at any time.
//
// A topic waits for a server's answer until Wait has passed since the topic began and since the relay was started. If
// the servers cannot be reached, only the latter counts. Until then, the keeper holds back errors of stored topics,
// so that clients wait too. It does not touch topics that are not stored.
//
// A stored state removes nothing from clients that return (a set is incomplete, see [cache.SetUpdate]), and the
// keeper does not serve an empty set.
type Keeper struct {
	// Read only.
	store *Store
	scope cache.Scope
	cache Cache
	opts  KeeperOptions

	topics map[cache.Key]*topic
	queue  []*topic // topics that are not served, in the order in which they began
	// unreachable: an error reported that the servers are unreachable, and no answer has arrived since.
	unreachable bool
	stale       int     // topics that are served from the store
	sets        int     // the number of sets among the topics
	fresh       []fresh // of the updates that are being applied
}

// fresh are the first answers in an update, by index, for topics that are not served from the store. The cache may
// have had the same state before from a source without this store, so the store may lack it.
type fresh struct{ entries, sets []int }

// Cache has the methods of the cache that a Keeper needs: see [cache.Cache].
type Cache interface {
	Before(u *cache.Update, removals bool) cache.Before
	Len(cache.Key) int
}

// KeeperOptions are a Keeper's settings.
type KeeperOptions struct {
	// Started is when the relay was started. Wait returns how long a topic waits for a server's answer.
	Started time.Time
	Wait    func() time.Duration
}

// topic is a topic without an answer from a server.
type topic struct {
	key   cache.Key
	since time.Time
	// found: the store was read. entry or set is what it had, both are nil if it had nothing.
	found bool
	entry *Record
	set   *Set
	// members are the keys of the members that were served from the store.
	members map[string]struct{}
	// reported has the changes that servers sent for names that may be members of the set.
	reported map[string]reported
	// served: the cache has the stored state. over: the topic has an answer, or will get none from this keeper.
	served, over bool
}

// reported is a server's change of a name.
type reported struct {
	change cache.Change
	server string
}

// NewKeeper returns a keeper for a scope.
func NewKeeper(s *Store, scope cache.Scope, c Cache, o KeeperOptions) *Keeper {
	return &Keeper{store: s, scope: scope, cache: c, opts: o, topics: map[cache.Key]*topic{}}
}

// Start reports that a topic has begun, before the servers are asked for it.
func (k *Keeper) Start(now time.Time, key cache.Key) {
	k.Stop(key)
	t := &topic{key: key, since: now}
	k.topics[key] = t
	k.queue = append(k.queue, t)
	if key.IsSet() {
		k.sets++
	}
}

// Stale returns how many topics are served from the store.
func (k *Keeper) Stale() int { return k.stale }

// Judge leaves the errors of stored topics out of updates from the servers. It returns the stored state that the cache must
// have before it gets the updates.
func (k *Keeper) Judge(updates []cache.Update) (stored []cache.Update) {
	k.fresh = k.fresh[:0]
	for i := range updates {
		k.fresh = append(k.fresh, fresh{})
		if len(k.topics) > 0 {
			updates[i] = k.answer(i, updates[i], &stored)
		}
	}
	return inOrder(stored)
}

// Note notes updates in the store, which have passed Judge and which the cache has by now. before is what the cache had
// before it got them.
func (k *Keeper) Note(updates []cache.Update, before []cache.Before) {
	for i := range updates {
		k.note(&updates[i], &before[i], &k.fresh[i])
		updates[i].Receipt.Event("noted for the store", nil)
	}
}

// note notes in the store an update's changes and first answers.
func (k *Keeper) note(u *cache.Update, before *cache.Before, fresh *fresh) {
	entries := fresh.entries
	for i := range u.Changes {
		if before.Changes(i, &u.Changes[i]) {
			entries = append(entries, i)
		}
	}
	if len(entries)+len(u.Sets) == 0 {
		return
	}
	key := func(name string) cache.Key { return cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: name} }
	after := make([]int, len(u.Sets))
	for i := range u.Sets {
		after[i] = k.cache.Len(key(u.Sets[i].Name))
	}
	k.store.Note(u.Server, func(n *Notes) {
		for _, i := range entries {
			n.Entry(key(u.Changes[i].Name), u.Changes[i].Resource)
		}
		for _, i := range fresh.sets {
			if before.Sets[i].Present {
				n.Contents(key(u.Sets[i].Name))
			}
		}
		for i := range u.Sets {
			is, set := &before.Sets[i], &u.Sets[i]
			if !is.Known || set.Err != nil {
				continue
			}
			expected, changed := is.Len, !is.Present
			for j := range set.Changes {
				c := &set.Changes[j]
				if !is.Changes(j, c) {
					continue
				}
				switch changed = true; {
				case c.Resource == nil && is.Present:
					expected--
				case c.Resource != nil && is.Member(j) == nil:
					expected++
				}
				n.Member(key(set.Name), c.Name, c.Resource)
			}
			whole := set.Extent == cache.Whole
			others := set.Extent == cache.Ends || whole && !is.Present || after[i] != expected
			if changed || others {
				n.Whole(key(set.Name), others)
			}
		}
	})
}

// Recall yields the stored resources of a topic that came from a server. others: also those of others, whose versions mean
// the same.
func (k *Keeper) Recall(key cache.Key, server string, others bool, yield func(string, *cache.Resource)) {
	t := k.topics[key]
	if t == nil {
		return
	}
	if r := t.entry; r != nil && (others || r.Server == server) {
		yield(key.Name, r.Resource)
	}
	if t.set == nil {
		return
	}
	for m := range t.all() {
		if others || m.server == server {
			yield(m.change.Name, m.change.Resource)
		}
	}
}

// Stored iterates over the store's members of a set, while no server has answered for the set and it is not served
// from the store.
func (k *Keeper) Stored(key cache.Key, yield func(key string, r *cache.Resource)) {
	t := k.topics[key]
	if t == nil || t.served || t.set == nil {
		return
	}
	for m := range t.all() {
		yield(m.change.Name, m.change.Resource)
	}
}

// Accepted calls yield with the stored resources of a topic that no server has answered and that is not served from
// the store: the resource of a name, or the members of a completely stored set. It returns false if there are none.
func (k *Keeper) Accepted(key cache.Key, yield func(key string, r *cache.Resource)) bool {
	t := k.topics[key]
	if t == nil || t.served || !t.stored() {
		return false
	}
	if t.entry != nil {
		yield(key.Name, t.entry.Resource)
		return true
	}
	for _, r := range t.set.Members {
		if r.Resource != nil {
			yield(r.Member, r.Resource)
		}
	}
	return true
}

// Stop reports that a topic has an answer, or has ended.
func (k *Keeper) Stop(key cache.Key) {
	t := k.topics[key]
	if t == nil {
		return
	}
	delete(k.topics, key)
	t.over = true
	if key.IsSet() {
		k.sets--
	}
	if t.served {
		k.stale--
	}
}

// Stored is what the store has of a topic: entry or set, both nil if it has nothing.
type Stored struct {
	key   cache.Key
	entry *Record
	set   *Set
}

// Look reads what is stored of a topic from the disk.
func (k *Keeper) Look(key cache.Key) Stored {
	s := Stored{key: key}
	if key.IsSet() {
		s.set = k.store.Set(key)
	} else {
		s.entry = k.store.Entry(key)
	}
	return s
}

// Found takes what Look has read. A server may have sent a newer state of a name or member before.
func (k *Keeper) Found(s *Stored) {
	t := k.topics[s.key]
	if t == nil || t.served {
		return
	}
	before := t.set
	t.found = true
	if t.entry, t.set = s.entry, s.set; before != nil {
		t.keepReturned(before)
	}
}

// keepReturned adds members that the store has lost since, although a server has them: the server removed them and
// then added them again. The store applied the second change to the name only.
func (t *topic) keepReturned(before *Set) {
	has := make(map[string]struct{}, len(t.set.Members))
	for _, r := range t.set.Members {
		has[r.Member] = struct{}{}
	}
	for _, r := range before.Members {
		if _, is := has[r.Member]; !is && t.reported[r.Member].change.Resource != nil {
			t.set.Members = append(t.set.Members, r)
		}
	}
}

// all iterates over the members of a stored set, in the state that a server has sent since, or else the stored one.
func (t *topic) all() iter.Seq[reported] {
	return func(yield func(reported) bool) {
		for _, r := range t.set.Members {
			m, newer := t.reported[r.Member]
			if !newer {
				m = reported{cache.Change{Name: r.Member, Resource: r.Resource, Stale: true}, r.Server}
			}
			if m.change.Resource != nil && !yield(m) {
				return
			}
		}
	}
}

// stored reports whether a topic can be served from the store.
func (t *topic) stored() bool {
	return t.entry != nil && t.entry.Resource != nil || t.set != nil && t.set.Whole() && len(t.set.Members) > 0
}

// answer processes the answers of the update with an index for topics without an answer. It returns the update without
// the errors that are held back, and adds stored state to be served to stored.
func (k *Keeper) answer(at int, u cache.Update, all *[]cache.Update) cache.Update {
	changes, sets := u.Changes, u.Sets
	u.Changes, u.Sets = changes[:0:0], sets[:0:0]
	stored := cache.Update{Scope: u.Scope, TypeURL: u.TypeURL}
	for i := range changes {
		c := &changes[i]
		var err *cache.Error
		if c.Resource == nil && !c.Gone {
			err = c.Err
		}
		key := cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: c.Name}
		waits := k.waits(key)
		if k.passes(key, err) {
			if waits && c.HasState() {
				k.fresh[at].entries = append(k.fresh[at].entries, len(u.Changes))
			}
			u.Changes = append(u.Changes, *c)
			k.applyToSet(&u, c, &stored)
		}
	}
	for i := range sets {
		k.serveBeneath(&u, &sets[i], &stored)
		key := cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: sets[i].Name}
		waits := k.waits(key)
		if k.passes(key, sets[i].Err) {
			if waits && sets[i].Err == nil {
				k.fresh[at].sets = append(k.fresh[at].sets, len(u.Sets))
			}
			u.Sets = append(u.Sets, sets[i])
		}
	}
	*all = append(*all, stored)
	return u
}

// waits reports whether a topic has no answer and is not served from the store.
func (k *Keeper) waits(key cache.Key) bool {
	t := k.topics[key]
	return t != nil && !t.served
}

// passes reports whether the cache gets a server's answer for a topic. If not, the topic is served from the store.
func (k *Keeper) passes(key cache.Key, err *cache.Error) bool {
	switch {
	case err == nil:
		k.unreachable = false
	case err.Outage != nil && !k.unreachable:
		k.unreachable = true // topics that wait for an answer no longer have to
	}
	t := k.topics[key]
	switch {
	case t == nil:
		return true
	case err == nil || err.Refused || !err.Transient() || t.found && !t.stored():
		k.Stop(key)
		return true
	case !t.found:
		return true // the disk is slow: clients have the error until it answers
	case t.served:
		return false
	}
	return false
}

// due returns when a topic is to be served from the store.
func (k *Keeper) due(t *topic) time.Time {
	wait := k.opts.Wait()
	at, least := t.since, k.opts.Started.Add(wait)
	if !k.unreachable {
		at = at.Add(wait)
	}
	if at.Before(least) {
		return least
	}
	return at
}

// serve adds a topic's stored state to an update.
func (k *Keeper) serve(t *topic, u *cache.Update) {
	t.served = true
	k.stale++
	if t.entry != nil {
		u.Changes = append(u.Changes, cache.Change{Name: t.key.Name, Resource: t.entry.Resource, Stale: true})
		return
	}
	set := cache.SetUpdate{Name: t.key.Name, Extent: cache.Begins, Stale: true, Changes: make([]cache.Change, 0, len(t.set.Members))}
	t.members = make(map[string]struct{}, len(t.set.Members))
	for _, r := range t.set.Members {
		t.members[r.Member] = struct{}{}
	}
	for m := range t.all() {
		set.Changes = append(set.Changes, m.change)
	}
	u.Sets = append(u.Sets, set)
}

// inOrder sorts the stored state of some topics, and leaves out empty updates.
func inOrder(updates []cache.Update) []cache.Update {
	updates = slices.DeleteFunc(updates, func(u cache.Update) bool { return len(u.Changes)+len(u.Sets) == 0 })
	cache.InOrder(updates)
	return updates
}

// Next returns when a topic has waited long enough to be served, zero if none waits.
func (k *Keeper) Next() time.Time {
	for len(k.queue) > 0 {
		if t := k.queue[0]; !t.over && !t.served {
			return k.due(t)
		}
		k.queue[0] = nil
		k.queue = k.queue[1:]
	}
	return time.Time{}
}

// Due returns topics that have waited long enough, each once. They must be looked up once more, and served.
func (k *Keeper) Due(now time.Time, most int) (keys []cache.Key) {
	for len(keys) < most {
		at := k.Next()
		if at.IsZero() || at.After(now) {
			break
		}
		keys = append(keys, k.queue[0].key)
		k.queue[0] = nil
		k.queue = k.queue[1:]
	}
	return keys
}

// Serve returns the stored state of topics that are due, as far as there is one. Without stored state, no error was held
// back.
func (k *Keeper) Serve(found []Stored) []cache.Update {
	var updates []cache.Update
	byType := map[string]int{} // indices in updates
	for i := range found {
		s := &found[i]
		k.Found(s)
		t := k.topics[s.key]
		if t == nil || t.served || !t.stored() {
			continue
		}
		at, there := byType[s.key.TypeURL]
		if !there {
			at = len(updates)
			byType[s.key.TypeURL] = at
			updates = append(updates, cache.Update{Scope: k.scope, TypeURL: s.key.TypeURL})
		}
		k.serve(t, &updates[at])
	}
	return inOrder(updates)
}
