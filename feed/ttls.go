package feed

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// TTLs across servers: a resource that no server renews expires, even if its server
// was replaced. xDS: "TTL".

// ttls are the TTLs of resources in the cache. Feed.mu guards them.
type ttls struct {
	servers  map[cache.Key]map[string]*Link // by topic and name: the server that sent it last
	expiries cache.Expiries[ttlKey]
	// activeSince is when the active server became active.
	activeSince time.Time
}

// ttlKey is an entry, by its own name, or a member of a set.
type ttlKey struct {
	topic cache.Key
	name  string
}

// recheckInterval is the delay before a resource of the active server is checked again:
// its own source is about to expire it.
const recheckInterval = time.Second

// completeAfter bounds the time in which the first answer of a newly active server to a
// wildcard or glob becomes complete: the answer may have several responses, and none
// says that it is the last.
const completeAfter = 8 * time.Second

// record records the TTLs of an update, for topics that are wanted.
func (l *ttls) record(u *cache.Update, expires map[string]time.Time, by *Link, wanted func(cache.Key) bool, now time.Time) {
	topic := func(name string) cache.Key {
		return cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: name}
	}
	for i := range u.Changes {
		if k := topic(u.Changes[i].Name); l.matters(&u.Changes[i], k) && wanted(k) {
			l.set(k, &u.Changes[i], expires, by, now)
		}
	}
	for i := range u.Sets {
		set := &u.Sets[i]
		k := topic(set.Name)
		if set.Err != nil || !wanted(k) {
			continue
		}
		for j := range set.Changes {
			l.set(k, &set.Changes[j], expires, by, now)
		}
	}
}

// matters reports whether a change of an entry may start or end a TTL. Few entries have one.
func (l *ttls) matters(c *cache.Change, k cache.Key) bool {
	return c.Resource != nil && c.Resource.TTL() > 0 || l.servers[k] != nil
}

func (l *ttls) set(topic cache.Key, c *cache.Change, ends map[string]time.Time, by *Link, now time.Time) {
	switch {
	case c.Resource != nil && c.Resource.TTL() > 0:
		at, ok := ends[c.Name]
		if !ok {
			at = now.Add(c.Resource.TTL())
		}
		if l.servers == nil {
			l.servers = map[cache.Key]map[string]*Link{}
		}
		if l.servers[topic] == nil {
			l.servers[topic] = map[string]*Link{}
		}
		l.servers[topic][c.Name] = by
		l.expiries.Set(ttlKey{topic, c.Name}, at)
	case c.HasState():
		l.remove(ttlKey{topic, c.Name})
	}
}

func (l *ttls) remove(of ttlKey) {
	l.expiries.End(of)
	if delete(l.servers[of.topic], of.name); len(l.servers[of.topic]) == 0 {
		delete(l.servers, of.topic)
	}
}

// forget removes the TTLs of a topic.
func (l *ttls) forget(topic cache.Key) {
	for name := range l.servers[topic] {
		l.expiries.End(ttlKey{topic, name})
	}
	delete(l.servers, topic)
}

// expire returns the removals of resources that were not renewed in time. It leaves
// resources of the active server to that server's source, which knows more.
func (l *ttls) expire(now time.Time) (gone []cache.Update) {
	for _, of := range l.expiries.Due(now) {
		if by := l.servers[of.topic][of.name]; by.active {
			l.expiries.Set(of, now.Add(recheckInterval))
			continue
		}
		if until := l.activeSince.Add(completeAfter); of.topic.IsSet() && now.Before(until) {
			l.expiries.Set(of, until)
			continue
		}
		l.remove(of)
		u := cache.Update{Scope: of.topic.Scope, TypeURL: of.topic.TypeURL}
		change := []cache.Change{{Name: of.name, Gone: true}}
		if of.topic.IsSet() {
			u.Sets = []cache.SetUpdate{{Name: of.topic.Name, Changes: change}}
		} else {
			u.Changes = change
		}
		gone = append(gone, u)
	}
	cache.InOrder(gone)
	return gone
}

// earlier returns the earlier of the next expiry and another time; zero is never.
func (l *ttls) earlier(than time.Time) time.Time {
	if at, ok := l.expiries.Next(); ok && (than.IsZero() || at.Before(than)) {
		return at
	}
	return than
}
