package failover

import (
	"iter"

	"github.com/xds-relay/xds-relay/cache"
)

// wants are the topics that are wanted, and whether there is an answer.
type wants map[table]*topics

// table is one type in one scope: what an update is about.
type table struct {
	scope   cache.Scope
	typeURL string
}

// topics are those of one type.
type topics struct {
	answered map[string]bool // by Key.Name
	room     cache.Room      // of answered
	missing  int             // that are not
}

func (w wants) start(k cache.Key) {
	t := w[table{k.Scope, k.TypeURL}]
	if t == nil {
		t = &topics{answered: map[string]bool{}}
		w[table{k.Scope, k.TypeURL}] = t
	}
	if _, there := t.answered[k.Name]; !there {
		t.answered[k.Name] = false
		t.missing++
	}
}

func (w wants) stop(k cache.Key) {
	t := w[table{k.Scope, k.TypeURL}]
	if t == nil {
		return
	}
	if answered, there := t.answered[k.Name]; there && !answered {
		t.missing--
	}
	t.answered = cache.Without(t.answered, &t.room, k.Name)
	if len(t.answered) == 0 {
		delete(w, table{k.Scope, k.TypeURL})
	}
}

// answered takes an update: what has come is known, and what does not exist too, also
// if the server says so by its silence. It says whether that was new of something.
func (w wants) answered(u cache.Update) (news bool) {
	t := w[table{u.Scope, u.TypeURL}]
	if t == nil || t.missing == 0 {
		return false
	}
	note := func(name string) {
		if answered, there := t.answered[name]; there && !answered {
			t.answered[name] = true
			t.missing--
			news = true
		}
	}
	for _, c := range u.Changes {
		if c.Resource != nil || c.Err == nil || c.Gone || c.Err.Silent {
			note(c.Name)
		}
	}
	for _, s := range u.Sets {
		if s.Err == nil {
			note(s.Name)
		}
	}
	return news
}

// has says whether a topic is wanted.
func (w wants) has(k cache.Key) bool {
	t := w[table{k.Scope, k.TypeURL}]
	if t == nil {
		return false
	}
	_, there := t.answered[k.Name]
	return there
}

// missing says whether there is something without an answer.
func (w wants) missing() bool {
	for _, t := range w {
		if t.missing > 0 {
			return true
		}
	}
	return false
}

// all yields the topics.
func (w wants) all() iter.Seq[cache.Key] { return w.those(func(bool) bool { return true }) }

// unanswered yields those without an answer.
func (w wants) unanswered() iter.Seq[cache.Key] {
	return w.those(func(answered bool) bool { return !answered })
}

func (w wants) those(fits func(answered bool) bool) iter.Seq[cache.Key] {
	return func(yield func(cache.Key) bool) {
		for at, t := range w {
			for name, answered := range t.answered {
				if fits(answered) && !yield(cache.Key{Scope: at.scope, TypeURL: at.typeURL, Name: name}) {
					return
				}
			}
		}
	}
}
