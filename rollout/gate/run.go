package gate

import (
	"cmp"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/rollout"
)

// run is the goroutine of a gate: it processes events, and performs what the machine decides.
func (g *gate) run() {
	defer close(g.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-g.inbox.Awake():
		case <-timer.C:
		case <-g.stop:
			g.closeTopics()
			return
		}
		next, after := g.step()
		for _, f := range after {
			f()
		}
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// step processes all events and everything that is due. It returns the time until something else is due, 0 if nothing
// is, and the functions to call without the lock.
func (g *gate) step() (next time.Duration, after []func()) {
	defer g.lock()()
	g.taken = g.inbox.TakeAgain(g.taken)
	for _, e := range g.taken {
		after = g.process(e, after)
	}
	if g.reports {
		g.reports = false
		g.ask()
	}
	now := g.now()
	g.machine.Tick(now)
	after = g.perform(after)
	g.hold()
	if at := g.machine.Next(now); at > 0 {
		return time.Duration(max(at-g.now(), 1)), after
	}
	return 0, after
}

// process processes one event. The caller holds mu.
func (g *gate) process(e event, after []func()) []func() {
	now, m := g.now(), g.machine
	if e.showing != 0 && e.showing != e.member.slot.showing.Load() && e.kind != joined {
		return after // the event belongs to an earlier showing
	}
	switch e.kind {
	case joined:
		g.joined(e.member, e.showing)
	case left, died:
		g.left(e.member, e.kind == died)
	case settled:
		if e.member.hasSettled = true; e.member.slot.all(func(m *Member) bool { return m.hasSettled }) {
			m.Settled(now, e.member.slot.id)
		}
	case withdrawn:
		m.Withdraw(now, e.member.slot.id)
	case sent:
		e.member.answer = wasSent
		m.Sent(now, e.member.slot.id)
	case untouched:
		if e.number == e.member.slot.asked.Load() {
			g.answered(e.member, e.kind)
		}
	case acked:
		g.answered(e.member, e.kind)
	case rejected:
		if g.replaced(e.detail.hashes) {
			return after
		}
		m.Rejected(now, e.member.slot.id, e.detail.words, e.detail.by)
		g.noteRejected(e.detail.hashes)
	case moved:
		e.member.answer = noAnswer
		e.member.filled.Store(e.number)
		if e.member.waits.Swap(false) {
			after = append(after, e.member.client.Wake)
		}
	case started:
		g.fill(e.detail.topic)
	case stopped:
		g.empty(e.detail.topic)
	case acceptedStopped:
		g.topicEnded(e.detail.topic)
	case rejecter:
		g.rejecter = e.detail.rejecter
	case ended:
		g.wakeAll()
	case recohort:
		after = append(after, g.regroup)
	}
	return after
}

// ask makes the streams on the new side report on the changes that have joined and are now in the new topics. The
// caller holds mu.
func (g *gate) ask() {
	for _, s := range g.slots {
		if !s.onNew() {
			continue
		}
		s.asked.Add(1)
		for _, m := range s.streams {
			m.answer = noAnswer
			m.client.Wake()
		}
	}
}

// answered records that one of a client's streams has ACKed the new state, or gets nothing of it. The client has
// answered when all of its streams have.
func (g *gate) answered(m *Member, how eventKind) {
	m.answer = wasUntouched
	if how == acked {
		m.answer = hasAcked
	}
	switch s := m.slot; {
	case !s.all(func(m *Member) bool { return m.answer == hasAcked || m.answer == wasUntouched }):
	case s.all(func(m *Member) bool { return m.answer == wasUntouched }):
		g.machine.Untouched(g.now(), s.id)
	default:
		g.machine.Acked(g.now(), s.id)
	}
}

// all reports whether all streams of a client satisfy is.
func (s *slot) all(is func(*Member) bool) bool {
	for _, m := range s.streams {
		if !is(m) {
			return false
		}
	}
	return true
}

// joined adds a stream, and reports the client to the machine if the stream is its first. showing is the stream's
// showing at its start.
func (g *gate) joined(m *Member, showing uint64) {
	s := m.slot
	s.streams = append(s.streams, m)
	if len(s.streams) > 1 {
		return
	}
	g.slots[s.id] = s
	if showing == 0 || showing != s.showing.Load() {
		showing = 0
		s.showing.Store(0)
	}
	who := cmp.Or(m.client.Who, m.client.Node)
	s.cohort = g.cohorts.join(m.client.Cohort, who)
	g.machine.Joined(g.now(), rollout.Client{
		ID: s.id, Cohort: s.cohort, Who: m.client.Who, Eligible: m.client.Eligible, OnNew: showing != 0,
	})
}

// left removes a stream, and reports the client's departure to the machine if the stream was its last.
func (g *gate) left(m *Member, ended bool) {
	s := m.slot
	if at := slices.Index(s.streams, m); at >= 0 {
		s.streams = slices.Delete(s.streams, at, at+1)
	}
	if len(s.streams) > 0 {
		return
	}
	g.cohorts.leave(s.cohort)
	if ended {
		g.machine.Died(g.now(), s.id)
	} else {
		g.machine.Left(g.now(), s.id)
	}
	if !s.onNew() {
		delete(g.slots, s.id)
	}
}

// perform performs what the machine has decided. The caller holds mu.
func (g *gate) perform(after []func()) []func() {
	for decisions := g.machine.Decisions(); len(decisions) > 0; decisions = g.machine.Decisions() {
		for _, d := range decisions {
			switch d.Kind {
			case rollout.ShowNew:
				g.showings++
				after = g.show(d.Client, g.showings, after)
			case rollout.ShowAccepted:
				after = g.show(d.Client, 0, after)
			case rollout.GoBack:
				g.hideAll()
				g.log.Warn("a change was taken back", "clients", g.wentBack, "event", "rollout")
				g.wentBack = 0
				after = g.tidyAbsent(after)
			case rollout.Accept:
				g.counts.Accepted.Add(1)
				g.log.Info("a change was accepted, and goes to all clients", "changes", len(g.pending.changes), "event", "rollout")
				g.accept(g.all)
				g.all = false
				g.hideAll()
				g.wentBack = 0
				after = g.tidyAbsent(after)
			case rollout.SendNACK:
				g.counts.Refused.Add(1)
				g.log.Warn("a change was refused", "reason", d.Reason, "event", "rollout")
				after = g.rejectAll(d.Reason, after)
			case rollout.PassOver:
				g.log.Warn("rejections from an identity or address that alone stopped several rollouts no longer count while other clients accept", "who", d.Client)
			}
		}
		g.goOn()
		g.machine.Tick(g.now())
	}
	return after
}

// onNew counts the clients on the new side.
func (g *gate) onNew() (n int) {
	for _, s := range g.slots {
		if s.onNew() && len(s.streams) > 0 {
			n++
		}
	}
	return n
}

func (g *gate) show(id string, showing uint64, after []func()) []func() {
	s := g.slots[id]
	if s == nil {
		return after
	}
	s.showing.Store(showing)
	for _, m := range s.streams {
		after = append(after, m.client.Wake)
	}
	return after
}

// hideAll moves all clients back to the accepted topics. From now on, no client is sent anything from new topics. The
// caller holds mu.
func (g *gate) hideAll() {
	clients := 0
	for _, s := range g.slots {
		if !s.onNew() {
			continue
		}
		s.showing.Store(0)
		for _, m := range s.streams {
			m.client.Wake()
		}
		clients += min(len(s.streams), 1)
	}
	g.wentBack += clients
}

// tidyAbsent forgets clients that have no streams. The caller holds mu.
func (g *gate) tidyAbsent(after []func()) []func() {
	var gone []string
	for id, s := range g.slots {
		if len(s.streams) == 0 {
			gone = append(gone, id)
		}
	}
	for _, id := range gone {
		delete(g.slots, id)
	}
	if len(gone) > 0 {
		after = append(after, g.controller.tidyAll(g))
	}
	return after
}

// rejectAll sends the control plane a NACK for each type that has pending changes.
func (g *gate) rejectAll(words string, after []func()) []func() {
	t := g.rejecter
	if t == nil {
		return after
	}
	for typeURL := range g.pending.types {
		version := g.accepted[typeURL]
		after = append(after, func() { t.Reject(typeURL, version, words) })
	}
	return after
}

// fill begins to feed a topic of the new side.
func (g *gate) fill(k cache.Key) {
	if g.topics[k] != nil {
		return
	}
	t := &newTopic{}
	g.topics[k] = t
	accepted := k
	accepted.Scope = g.scope
	u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	if newest := g.newest[k.TypeURL]; newest != nil && g.later.types[k.TypeURL] == 0 {
		u.Origin = newest.ofNew()
	}
	if k.IsSet() {
		if set, ok := g.newSet(accepted, g.cache.WatchSet(accepted, t)); ok {
			u.Sets = append(u.Sets, set)
		}
	} else {
		entry, _ := g.cache.Watch(accepted, t)
		if c, ok := g.newEntry(accepted, entry); ok {
			u.Changes = append(u.Changes, c)
		}
	}
	if len(u.Changes)+len(u.Sets) > 0 {
		g.cache.Apply(u)
	}
}

// newEntry returns the state that an entry has on the new side, if there is one.
func (g *gate) newEntry(k cache.Key, e *cache.Entry) (cache.Change, bool) {
	i := item{typeURL: k.TypeURL, name: k.Name}
	if c := g.pending.changes[i]; c != nil && g.pending.shown(i.typeURL, c) {
		change := c.Change
		change.Origin = mirrorsOf(change.Origin).ofNew()
		return change, true
	}
	if c, ok := g.pending.versionOnly[i]; ok {
		return c, true
	}
	st := e.Snapshot()
	c := cache.Change{Name: k.Name, Resource: st.Resource, Err: st.Err, Partial: st.Partial, Stale: st.Stale, Origin: mirrorsOf(st.Origin).ofNew()}
	switch st.Status {
	case cache.Requested:
		return c, false
	case cache.Absent:
		c.Gone = true
	case cache.Present, cache.Failed:
	}
	return c, true
}

// newSet returns the state that a set has on the new side, if there is one.
func (g *gate) newSet(k cache.Key, s *cache.Set) (u cache.SetUpdate, ok bool) {
	status, err := s.Status()
	switch status {
	case cache.Requested, cache.Absent:
		return u, false
	case cache.Failed:
		return cache.SetUpdate{Name: k.Name, Err: err}, true
	case cache.Present:
	}
	u = cache.SetUpdate{Name: k.Name, Extent: cache.Whole, Partial: s.Partial(), Stale: s.Stale()}
	if s.Incomplete() {
		u.Extent = cache.Begins
	}
	if g.pending.nStays == 0 && g.pending.nWaits == 0 && g.later.types[k.TypeURL] == 0 {
		u.Origin = mirrorsOf(s.Origin()).ofNew()
	}
	changes := g.pending.sets[topicName{k.TypeURL, k.Name}]
	g.cache.Contents(k, func(key string, r *cache.Resource) {
		if c := changes[key]; c != nil && g.pending.shown(k.TypeURL, c) {
			r = c.Resource
		}
		if r != nil {
			u.Changes = append(u.Changes, cache.Change{Name: key, Resource: r})
		}
	})
	for name, c := range changes {
		// A removal is named, since in an incomplete first answer what is missing may still come.
		if (c.removal() || !c.had) && g.pending.shown(k.TypeURL, c) {
			u.Changes = append(u.Changes, cache.Change{Name: name, Resource: c.Resource, Gone: c.removal()})
		}
	}
	return u, true
}

// maxHeld bounds the topics that all gates hold.
const maxHeld = 1024

// hold keeps accepted topics with pending changes from ending when their last client leaves. Otherwise the next
// update would be a first answer, and so accepted even if it was refused before. The caller holds mu.
func (g *gate) hold() {
	touched := g.pending.touched
	g.pending.touched = touched[:0]
	for _, of := range touched {
		k := cache.Key{Scope: g.scope, TypeURL: of.typeURL, Name: of.name}
		t := g.held[k]
		switch has := g.pending.has(of); {
		case has && t == nil:
			if g.controller.held.Add(1) > maxHeld {
				g.controller.held.Add(-1)
				continue
			}
			t = &newTopic{}
			g.held[k] = t
			if k.IsSet() {
				g.cache.WatchSet(k, t)
			} else {
				g.cache.Watch(k, t)
			}
		case !has && t != nil:
			g.release(k, t)
		}
	}
}

// release ends the hold on a topic. The caller holds mu.
func (g *gate) release(k cache.Key, t *newTopic) {
	delete(g.held, k)
	g.controller.held.Add(-1)
	g.cache.Unwatch(t)
}

// empty ends the feeding of a topic of the new side.
func (g *gate) empty(k cache.Key) {
	if t := g.topics[k]; t != nil {
		delete(g.topics, k)
		g.cache.Unwatch(t)
	}
	g.controller.mu.Lock()
	defer g.controller.mu.Unlock()
	g.controller.release(g)
}

// closeTopics ends the feeding of all topics.
func (g *gate) closeTopics() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, t := range g.topics {
		delete(g.topics, k)
		g.cache.Unwatch(t)
	}
	for k, t := range g.held {
		g.release(k, t)
	}
}
