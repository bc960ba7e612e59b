package feed

import "github.com/xds-relay/xds-relay/cache"

// wanted are the topics of the scope that several servers feed.
type wanted struct {
	topics  map[topicName]wantedTopic
	room    cache.Room // of topics
	missing int        // topics without an answer
}

// topicName identifies a topic of the scope.
type topicName struct{ typeURL, name string }

func nameOf(k cache.Key) topicName { return topicName{k.TypeURL, k.Name} }

// wantedTopic says whether a topic has an answer, and whether a client holds its resource from an earlier stream.
type wantedTopic struct{ answered, resumed bool }

func (w *wanted) add(k cache.Key) {
	if _, there := w.topics[nameOf(k)]; there {
		return
	}
	if w.topics == nil {
		w.topics = map[topicName]wantedTopic{}
	}
	w.topics[nameOf(k)] = wantedTopic{}
	w.missing++
}

// resume records that a client holds the resource of a topic from an earlier stream.
func (w *wanted) resume(k cache.Key) {
	if t, there := w.topics[nameOf(k)]; there {
		t.resumed = true
		w.topics[nameOf(k)] = t
	}
}

func (w *wanted) remove(k cache.Key) {
	t, there := w.topics[nameOf(k)]
	if !there {
		return
	}
	if !t.answered {
		w.missing--
	}
	w.topics = cache.Without(w.topics, &w.room, nameOf(k))
}

// recordAnswers records the answers in updates: resources, nonexistent resources, and names
// that the server did not answer in time. It reports whether one of the topics had no answer before.
func (w *wanted) recordAnswers(updates []cache.Update) (news bool) {
	if w.missing == 0 {
		return false
	}
	before := w.missing
	for i := range updates {
		u := &updates[i]
		for _, c := range u.Changes {
			if c.HasState() || c.Err.Unanswered {
				w.recordAnswer(topicName{u.TypeURL, c.Name})
			}
		}
		for _, s := range u.Sets {
			if s.Err == nil {
				w.recordAnswer(topicName{u.TypeURL, s.Name})
			}
		}
	}
	return w.missing < before
}

func (w *wanted) recordAnswer(n topicName) {
	if t, there := w.topics[n]; there && !t.answered {
		t.answered = true
		w.topics[n] = t
		w.missing--
	}
}

// contains reports whether a topic is wanted.
func (w *wanted) contains(k cache.Key) bool {
	_, there := w.topics[nameOf(k)]
	return there
}
