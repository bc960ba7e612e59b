package cache

// A topic that was never answered does not linger: when its last watcher leaves, nobody asks the control plane for it
// any more. For such a name may be what the control plane does not like, or what keeps it silent.
//
// It lingers nevertheless as long as the control plane has said nothing at all since the topic was requested, as in an
// outage. The source of a scope ends with its last topic, and with it the backoff of its stream. So a lone client that
// connects again and again would make the relay connect again as often.

// asking returns the state of an entry that is requested now.
func (of *scopeTopics) asking() *State {
	for {
		if s := of.asked.Load(); s != nil {
			return s
		}
		if s := new(State); of.asked.CompareAndSwap(nil, s) {
			return s
		}
	}
}

// answered notes that the control plane has said something.
func (of *scopeTopics) answered() {
	if of.asked.Load() != nil {
		of.asked.Store(nil)
	}
}

// isUnanswered reports that a topic has no answer, although the control plane has said something since it was
// requested, or has not answered it in time. The answers of derived topics follow from their leaves, which have nobody
// else to watch them: these decide.
func (c *Cache) isUnanswered(tp *topic) bool {
	of := tp.table.of
	silent := func(status Status, asked *State, err *Error) bool {
		switch status {
		case Requested:
			return of.scope.Derived != "" || asked != of.asked.Load()
		case Failed:
			return err.Silence() || err.Outage != nil && !err.Unreachable()
		case Present, Absent:
		}
		return false
	}
	if tp.entry != nil {
		st := tp.entry.Snapshot()
		return silent(st.Status, st, st.Err)
	}
	unanswered := false
	c.read(tp.key, func(t *table) {
		if s := t.sets[tp.key.Name]; s != nil && &s.topic == tp {
			status, err := s.Status()
			unanswered = silent(status, s.asked, err)
		}
	})
	return unanswered
}
