package feed

import (
	"iter"

	"github.com/xds-relay/xds-relay/cache"
)

// wantedTopics are the topics to feed, and whether each has an answer.
type wantedTopics map[typeInScope]*topicsOfType

// typeInScope is one type in one scope, to which an update belongs.
type typeInScope struct {
	scope   cache.Scope
	typeURL string
}

// topicsOfType are the wanted topics of one type.
type topicsOfType struct {
	answered map[string]bool // by Key.Name
	room     cache.Room      // of answered
	missing  int             // without an answer
	// resumed are the topics whose resource a client holds from an earlier stream.
	resumed map[string]struct{}
}

func (w wantedTopics) add(k cache.Key) {
	t := w[typeInScope{k.Scope, k.TypeURL}]
	if t == nil {
		t = &topicsOfType{answered: map[string]bool{}}
		w[typeInScope{k.Scope, k.TypeURL}] = t
	}
	if _, there := t.answered[k.Name]; !there {
		t.answered[k.Name] = false
		t.missing++
	}
}

// isAnswered reports whether a topic has an answer.
func (w wantedTopics) isAnswered(k cache.Key) bool {
	t := w[typeInScope{k.Scope, k.TypeURL}]
	return t != nil && t.answered[k.Name]
}

// resume records that a client holds the resource of a topic from an earlier stream.
func (w wantedTopics) resume(k cache.Key) {
	if !w.contains(k) {
		return
	}
	t := w[typeInScope{k.Scope, k.TypeURL}]
	if t.resumed == nil {
		t.resumed = map[string]struct{}{}
	}
	t.resumed[k.Name] = struct{}{}
}

// resumed reports whether a client holds the resource of a topic from an earlier stream.
func (w wantedTopics) resumed(k cache.Key) bool {
	t := w[typeInScope{k.Scope, k.TypeURL}]
	if t == nil {
		return false
	}
	_, is := t.resumed[k.Name]
	return is
}

func (w wantedTopics) remove(k cache.Key) {
	t := w[typeInScope{k.Scope, k.TypeURL}]
	if t == nil {
		return
	}
	if answered, there := t.answered[k.Name]; there && !answered {
		t.missing--
	}
	t.answered = cache.Without(t.answered, &t.room, k.Name)
	delete(t.resumed, k.Name)
	if len(t.answered) == 0 {
		delete(w, typeInScope{k.Scope, k.TypeURL})
	}
}

// recordAnswers records the answers in updates: resources, nonexistent resources, and names
// that the server did not answer in time. It reports whether one of the topics had no answer before.
func (w wantedTopics) recordAnswers(updates []cache.Update) (news bool) {
	for i := range updates {
		news = w.recordAnswersOf(&updates[i]) || news
	}
	return news
}

func (w wantedTopics) recordAnswersOf(u *cache.Update) (news bool) {
	t := w[typeInScope{u.Scope, u.TypeURL}]
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
		if c.HasState() || c.Err.Unanswered {
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

// contains reports whether a topic is wanted.
func (w wantedTopics) contains(k cache.Key) bool {
	t := w[typeInScope{k.Scope, k.TypeURL}]
	if t == nil {
		return false
	}
	_, there := t.answered[k.Name]
	return there
}

// missing reports whether a topic has no answer.
func (w wantedTopics) missing() bool {
	for _, t := range w {
		if t.missing > 0 {
			return true
		}
	}
	return false
}

// all iterates over the topics.
func (w wantedTopics) all() iter.Seq[cache.Key] { return w.filtered(func(bool) bool { return true }) }

// unanswered iterates over the topics without an answer.
func (w wantedTopics) unanswered() iter.Seq[cache.Key] {
	return w.filtered(func(answered bool) bool { return !answered })
}

func (w wantedTopics) filtered(fits func(answered bool) bool) iter.Seq[cache.Key] {
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
