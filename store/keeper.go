package store

import (
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/inbox"
)

// Keeper stands between the servers of one scope and the cache. It notes in the store what the cache accepts. After a
// wait, it also answers from the store the topics that the servers have not answered.
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
	stop  chan struct{}
	done  chan struct{}

	inbox *inbox.Inbox[keeperNote] // calls of Start and Stop that are not processed yet

	// mu is held while the cache applies an update, so that stored state never overwrites a server's update. It comes
	// after the locks of the servers' streams, and before the cache's.
	mu     sync.Mutex
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
	Apply(...cache.Update)
	Compare(*cache.Update) cache.Comparison
	Len(cache.Key) int
}

// KeeperOptions are a Keeper's settings.
type KeeperOptions struct {
	// Started is when the relay was started. Wait returns how long a topic waits for a server's answer. Call
	// Keeper.Wake when it changes.
	Started time.Time
	Wait    func() time.Duration
}

// topic is a topic without an answer from a server.
type topic struct {
	key   cache.Key
	since time.Time
	// looked: entry or set is the state of the store after this number of commits. Both are nil if the store had
	// nothing.
	looked  bool
	commits uint64
	entry   *Record
	set     *Set
	// members are the keys of the members that were served from the store.
	members map[string]struct{}
	// reported has the changes that servers sent for names that may be members of the set.
	reported map[string]reported
	err      *cache.Error // the error that is held back
	// served: the cache has the stored state. over: the topic has an answer, or will get none from this keeper.
	served, over bool
}

// reported is a server's change of a name.
type reported struct {
	change cache.Change
	server string
}

// keeperNote is a call of Start or Stop.
type keeperNote struct {
	key  cache.Key
	stop bool
}

// NewKeeper starts a keeper for a scope. Close ends it.
func NewKeeper(s *Store, scope cache.Scope, c Cache, o KeeperOptions) *Keeper {
	k := &Keeper{
		store: s, scope: scope, cache: c, opts: o, stop: make(chan struct{}), done: make(chan struct{}),
		inbox: inbox.New[keeperNote](), topics: map[cache.Key]*topic{},
	}
	go k.run()
	return k
}

// Start reports that a topic has begun. It is called before the servers are asked for the topic, and does not block.
func (k *Keeper) Start(key cache.Key) { k.inbox.Put(keeperNote{key: key}) }

// Stop reports that a topic has ended. It does not block.
func (k *Keeper) Stop(key cache.Key) { k.inbox.Put(keeperNote{key: key, stop: true}) }

// Wake makes the keeper check again which topics have waited long enough.
func (k *Keeper) Wake() { k.inbox.Wake() }

// Close ends the keeper, and waits for its goroutine.
func (k *Keeper) Close() {
	close(k.stop)
	<-k.done
}

// Stale returns how many topics are served from the store.
func (k *Keeper) Stale() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stale
}

// Apply passes updates from the servers to the cache, and notes them in the store. It leaves out the errors of stored
// topics.
func (k *Keeper) Apply(updates ...cache.Update) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.takeNotes()
	k.fresh = make([]fresh, len(updates))
	if len(k.topics) > 0 {
		var stored []cache.Update
		for i := range updates {
			updates[i] = k.answer(i, updates[i], &stored)
		}
		k.apply(stored)
	}
	changed := make([]cache.Comparison, len(updates))
	for i := range updates {
		changed[i] = k.cache.Compare(&updates[i])
	}
	k.cache.Apply(updates...)
	for i := range updates {
		k.note(&updates[i], &changed[i], &k.fresh[i])
		updates[i].Receipt.Event("noted for the store", nil)
	}
}

// note notes in the store an update's changes and first answers.
func (k *Keeper) note(u *cache.Update, changed *cache.Comparison, fresh *fresh) {
	if len(changed.Entries)+len(changed.Sets)+len(fresh.entries) == 0 {
		return
	}
	key := func(name string) cache.Key { return cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: name} }
	after := make([]int, len(u.Sets))
	for i := range u.Sets {
		after[i] = k.cache.Len(key(u.Sets[i].Name))
	}
	k.store.Note(u.Server, func(n *Notes) {
		for _, i := range changed.Entries {
			n.Entry(key(u.Changes[i].Name), u.Changes[i].Resource)
		}
		for _, i := range fresh.entries {
			n.Entry(key(u.Changes[i].Name), u.Changes[i].Resource)
		}
		for _, i := range fresh.sets {
			if changed.Sets[i].Present {
				n.Contents(key(u.Sets[i].Name))
			}
		}
		for i := range changed.Sets {
			is, set := &changed.Sets[i], &u.Sets[i]
			if !is.Known || set.Err != nil {
				continue
			}
			expected := is.Len + is.Added
			for _, j := range is.Changes {
				c := &set.Changes[j]
				if c.Resource == nil && is.Present {
					expected--
				}
				n.Member(key(set.Name), c.Name, c.Resource)
			}
			whole := set.Extent == cache.Whole
			others := set.Extent == cache.Ends || whole && !is.Present || after[i] != expected
			if len(is.Changes) > 0 || !is.Present || others {
				n.Whole(key(set.Name), others)
			}
		}
	})
}

// Recall returns the upstream.Options.Recall function for one server. others: versions of other servers mean the
// same.
func (k *Keeper) Recall(server string, others bool) func(cache.Key, func(string, *cache.Resource)) {
	return func(key cache.Key, yield func(string, *cache.Resource)) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.takeNotes()
		t := k.topics[key]
		if t == nil {
			return
		}
		k.look(t)
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
}

// Stored iterates over the store's members of a set, while no server has answered for the set and it is not served
// from the store.
func (k *Keeper) Stored(key cache.Key, yield func(key string, r *cache.Resource)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.takeNotes()
	t := k.topics[key]
	if t == nil || t.served || !key.IsSet() {
		return
	}
	k.look(t)
	if t.set == nil {
		return
	}
	for m := range t.all() {
		yield(m.change.Name, m.change.Resource)
	}
}

// Accepted calls yield with the stored resources of a topic that no server has answered and that is not served from
// the store: the resource of a name, or the members of a completely stored set. It returns false if there are none.
func (k *Keeper) Accepted(key cache.Key, yield func(key string, r *cache.Resource)) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.takeNotes()
	t := k.topics[key]
	if t == nil || t.served || !k.stored(t) {
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

// takeNotes processes the calls of Start and Stop. The caller holds mu.
func (k *Keeper) takeNotes() {
	notes := k.inbox.Take()
	if len(notes) == 0 {
		return
	}
	now := time.Now()
	for _, n := range notes {
		k.end(n.key)
		if !n.stop {
			t := &topic{key: n.key, since: now}
			k.topics[n.key] = t
			k.queue = append(k.queue, t)
			if n.key.IsSet() {
				k.sets++
			}
		}
	}
}

// end removes a topic that has an answer or has ended. The caller holds mu.
func (k *Keeper) end(key cache.Key) {
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

// look looks a topic up in the store. The caller holds mu.
func (k *Keeper) look(t *topic) {
	if t.looked {
		return
	}
	t.looked, t.commits = true, k.store.Commits()
	if t.key.IsSet() {
		t.set = k.store.Set(t.key)
	} else {
		t.entry = k.store.Entry(t.key)
	}
}

// lookAgain is look, unless nothing has been written since. A server may have sent a newer state of a name or member
// before the topic began. The caller holds mu.
func (k *Keeper) lookAgain(t *topic) {
	before := t.set
	t.looked = t.looked && t.commits == k.store.Commits()
	k.look(t)
	if before != nil && before != t.set {
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
// The caller holds mu.
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

// stored reports whether a topic can be served from the store. The caller holds mu.
func (k *Keeper) stored(t *topic) bool {
	k.look(t)
	return t.entry != nil && t.entry.Resource != nil || t.set != nil && t.set.Whole() && len(t.set.Members) > 0
}

// answer processes the answers of the update with an index for topics without an answer. It returns the update without
// the errors that are held back, and adds stored state to be served to stored. The caller holds mu.
func (k *Keeper) answer(at int, u cache.Update, all *[]cache.Update) cache.Update {
	now := time.Now()
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
		if k.passes(now, key, err) {
			if waits && !c.Held && (c.Resource != nil || c.Gone || c.Err == nil) {
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
		if k.passes(now, key, sets[i].Err) {
			if waits && sets[i].Err == nil {
				k.fresh[at].sets = append(k.fresh[at].sets, len(u.Sets))
			}
			u.Sets = append(u.Sets, sets[i])
		}
	}
	*all = append(*all, stored)
	return u
}

// waits reports whether a topic has no answer and is not served from the store. The caller holds mu.
func (k *Keeper) waits(key cache.Key) bool {
	t := k.topics[key]
	return t != nil && !t.served
}

// passes reports whether the cache gets a server's answer for a topic. If not, the topic is served from the store.
// The caller holds mu.
func (k *Keeper) passes(now time.Time, key cache.Key, err *cache.Error) bool {
	switch {
	case err == nil:
		k.unreachable = false
	case err.Outage != nil && !k.unreachable:
		k.unreachable = true
		k.inbox.Wake() // topics that wait for an answer no longer have to
	}
	t := k.topics[key]
	switch {
	case t == nil:
		return true
	case err == nil || err.Refused || !err.Transient() || !k.stored(t):
		k.end(key)
		return true
	case t.served:
		return false
	}
	t.err = err
	if !now.Before(k.due(t)) {
		k.inbox.Wake()
	}
	return false
}

// due returns when a topic is to be served from the store. The caller holds mu.
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

// serve adds a topic's stored state to an update. The caller holds mu.
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

// apply applies the stored state of some topics, that of all types at once.
func (k *Keeper) apply(updates []cache.Update) {
	updates = slices.DeleteFunc(updates, func(u cache.Update) bool { return len(u.Changes)+len(u.Sets) == 0 })
	cache.InOrder(updates)
	k.cache.Apply(updates...)
}

// run is the keeper's goroutine: it serves topics once they have waited long enough.
func (k *Keeper) run() {
	defer close(k.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-k.inbox.Awake():
		case <-timer.C:
		case <-k.stop:
			return
		}
		for {
			k.store.Flush(flushMost)
			next, more := k.step()
			if !more {
				if next > 0 {
					timer.Reset(next)
				}
				break
			}
			select {
			case <-k.stop:
				return
			default:
			}
		}
	}
}

// flushMost bounds how long a topic waits for a slow disk before it is served.
const flushMost = time.Second

// atOnce is how many topics are served before other goroutines can take the lock.
const atOnce = 1000

// step serves some of the topics that are due. It returns the time until the next is, 0 for none,
// and whether more are due now.
func (k *Keeper) step() (next time.Duration, more bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.takeNotes()
	now := time.Now()
	updates := map[string]*cache.Update{}
	for n := 0; len(k.queue) > 0 && n < atOnce; n++ {
		t := k.queue[0]
		if at := k.due(t); !t.over && !t.served && at.After(now) {
			next = at.Sub(now)
			break
		}
		k.queue[0] = nil
		k.queue = k.queue[1:]
		if t.over || t.served {
			continue
		}
		u := updates[t.key.TypeURL]
		if u == nil {
			u = &cache.Update{Scope: k.scope, TypeURL: t.key.TypeURL}
			updates[t.key.TypeURL] = u
		}
		if k.lookAgain(t); k.stored(t) {
			k.serve(t, u)
		} // without stored state, no error was held back
	}
	var due []cache.Update
	for _, u := range updates {
		due = append(due, *u)
	}
	k.apply(due)
	return next, next == 0 && len(k.queue) > 0
}
