package store

import "github.com/xds-relay/xds-relay/cache"

// What a server says of members of a set that is served from the store, before it has answered for
// the whole set.

// serveBeneath adds to stored what is stored of a set, if the first answer of a server is not complete
// yet: what may still follow in it is not missing meanwhile. So nobody is told of less than there was, or
// of nothing, by the first part. What is in that part is not served as it was before. The caller holds mu.
func (k *Keeper) serveBeneath(u *cache.Update, is *cache.SetUpdate, stored *cache.Update) {
	if is.Err != nil || !is.Full || !is.Incomplete {
		return
	}
	key := cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: is.Name}
	t := k.topics[key]
	if t == nil || t.served || !k.stored(t) {
		return
	}
	// Once it is served, it is nothing new to the cache any more: so it is stored here.
	k.store.Note(u.Server, func(n *Notes) {
		for i := range is.Changes {
			if c := &is.Changes[i]; c.Resource != nil || c.Gone {
				t.say(c, u.Server)
				n.Member(key, c.Name, c.Resource)
			}
		}
	})
	k.serve(t, stored)
}

// say notes what a server says of a member. The caller holds mu.
func (t *topic) say(c *cache.Change, server string) (as cache.Change) {
	if t.said == nil {
		t.said = map[string]said{}
	}
	as = cache.Change{Name: c.Name, Resource: c.Resource, Gone: c.Gone, Stale: true}
	t.said[c.Name] = said{as, server}
	return as
}

// tellSet has a set that is served from the store, or will be, take what an update says of the name
// of one of its members. The caller holds mu.
func (k *Keeper) tellSet(u *cache.Update, c *cache.Change, stored *cache.Update) {
	if k.sets == 0 || c.Resource == nil && !c.Gone {
		return
	}
	t := k.topics[setOf(cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: c.Name})]
	if t == nil {
		return
	}
	change := t.say(c, u.Server)
	if _, is := t.members[c.Name]; is {
		stored.Sets = append(stored.Sets, cache.SetUpdate{Name: t.key.Name, Changes: []cache.Change{change}, Stale: true})
	}
}
