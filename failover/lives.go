package failover

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Times to live, beyond the server that gave them: what nobody renews goes, also if the
// one that said it is not listened to any more. xDS: "TTL".

// lives are what clients were told that has a time to live.
type lives struct {
	of   map[cache.Key]map[string]*child // by topic and name: who told it last
	ends cache.Expiries[life]
	// since is when the active server became so.
	since time.Time
}

// life is an entry, by its own name, or a member of a set.
type life struct {
	topic cache.Key
	name  string
}

// overdue is how long after its time something is looked at again that the active server is
// about to end itself.
const overdue = time.Second

// answering is how long a server that has become active may take until what it has said of a
// set is told: its first answer may come in several responses, of which only time shows the
// last.
const answering = 2 * time.Second

// note takes what a server has said of topics that are wanted.
func (l *lives) note(u *cache.Update, by *child, wanted func(cache.Key) bool, now time.Time) {
	topic := func(name string) cache.Key {
		return cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: name}
	}
	for i := range u.Changes {
		if k := topic(u.Changes[i].Name); l.concerns(&u.Changes[i], k) && wanted(k) {
			l.take(k, &u.Changes[i], u.Ends, by, now)
		}
	}
	for i := range u.Sets {
		set := &u.Sets[i]
		k := topic(set.Name)
		if set.Err != nil || !wanted(k) {
			continue
		}
		if set.Full {
			l.stop(k)
		}
		for j := range set.Changes {
			l.take(k, &set.Changes[j], u.Ends, by, now)
		}
	}
}

// concerns says whether a change of an entry has to be looked at: few have a TTL.
func (l *lives) concerns(c *cache.Change, k cache.Key) bool {
	return c.Resource != nil && c.Resource.TTL() > 0 || l.of[k] != nil
}

func (l *lives) take(topic cache.Key, c *cache.Change, ends map[string]time.Time, by *child, now time.Time) {
	switch {
	case c.Resource != nil && c.Resource.TTL() > 0:
		at, ok := ends[c.Name]
		if !ok {
			at = now.Add(c.Resource.TTL())
		}
		if l.of == nil {
			l.of = map[cache.Key]map[string]*child{}
		}
		if l.of[topic] == nil {
			l.of[topic] = map[string]*child{}
		}
		l.of[topic][c.Name] = by
		l.ends.Set(life{topic, c.Name}, at)
	case c.Resource != nil || c.Err == nil || c.Gone:
		l.end(life{topic, c.Name})
	}
}

func (l *lives) end(of life) {
	l.ends.End(of)
	if delete(l.of[of.topic], of.name); len(l.of[of.topic]) == 0 {
		delete(l.of, of.topic)
	}
}

// stop forgets a topic.
func (l *lives) stop(topic cache.Key) {
	for name := range l.of[topic] {
		l.ends.End(life{topic, name})
	}
	delete(l.of, topic)
}

// expire returns what is gone because nobody has renewed it. What the active server has
// told is ended by that, which knows more.
func (l *lives) expire(now time.Time) (gone []cache.Update) {
	for _, of := range l.ends.Due(now) {
		if by := l.of[of.topic][of.name]; by.active {
			l.ends.Set(of, now.Add(overdue))
			continue
		}
		if until := l.since.Add(answering); of.topic.IsSet() && now.Before(until) {
			l.ends.Set(of, until)
			continue
		}
		l.end(of)
		u := cache.Update{Scope: of.topic.Scope, TypeURL: of.topic.TypeURL}
		change := []cache.Change{{Name: of.name, Gone: true}}
		if of.topic.IsSet() {
			u.Sets = []cache.SetUpdate{{Name: of.topic.Name, Changes: change}}
		} else {
			u.Changes = change
		}
		gone = append(gone, u)
	}
	return gone
}

// sooner is the earlier of what ends next and of another time, zero for never.
func (l *lives) sooner(than time.Time) time.Time {
	if at, ok := l.ends.Next(); ok && (than.IsZero() || at.Before(than)) {
		return at
	}
	return than
}
