package store

import "github.com/xds-relay/xds-relay/cache"

// This file handles a server's changes to members of a set that is served from the store, while the server has not
// sent the whole set.

// serveBeneath adds a set's stored members to stored, if a server's first answer for the set is not complete yet:
// members may still follow in it. So no client is sent fewer members, or an empty set, because of the first part.
// Members in that part are not served in their stored state.
func (k *Keeper) serveBeneath(u *cache.Update, is *cache.SetUpdate, stored *cache.Update) {
	if is.Err != nil || is.Extent != cache.Begins {
		return
	}
	key := cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: is.Name}
	t := k.topics[key]
	if t == nil || t.served || !t.stored() {
		return
	}
	// After serve, the cache does not report these members as changed. So they are noted here.
	k.store.Note(u.Server, func(n *Notes) {
		for i := range is.Changes {
			if c := &is.Changes[i]; c.Resource != nil || c.Gone {
				t.record(c, u.Server)
				n.Member(key, c.Name, c.Resource)
			}
		}
	})
	k.serve(t, stored)
}

// record remembers a server's change of a member.
func (t *topic) record(c *cache.Change, server string) (as cache.Change) {
	if t.reported == nil {
		t.reported = map[string]reported{}
	}
	as = cache.Change{Name: c.Name, Resource: c.Resource, Gone: c.Gone, Stale: true}
	t.reported[c.Name] = reported{as, server}
	return as
}

// applyToSet applies an update's change of a name to the set that has the name as a member, if that set is served
// from the store or will be.
func (k *Keeper) applyToSet(u *cache.Update, c *cache.Change, stored *cache.Update) {
	if k.sets == 0 || c.Resource == nil && !c.Gone {
		return
	}
	t := k.topics[setOf(cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: c.Name})]
	if t == nil {
		return
	}
	change := t.record(c, u.Server)
	if _, is := t.members[c.Name]; is {
		stored.Sets = append(stored.Sets, cache.SetUpdate{Name: t.key.Name, Changes: []cache.Change{change}, Stale: true})
	}
}
