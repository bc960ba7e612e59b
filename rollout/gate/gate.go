package gate

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/inbox"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/rollout"
)

// Below takes what is accepted: the feed of the scope. Its lock comes before that of a gate, and is held during all other
// methods.
type Below interface {
	sync.Locker
	// Accept gives updates of one scope to the accepted topics.
	Accept(updates []cache.Update)
	// Accepted calls yield with the resources of a topic without an answer that were accepted before the relay was
	// started. It returns false if there are none.
	Accepted(k cache.Key, yield func(key string, r *cache.Resource)) bool
}

// Options are the settings of the gates of one authority.
type Options struct {
	rollout.Options
	// RollsOut reports whether changes of a type are rolled out. Types identifies this function: equal Types mean
	// equal results.
	RollsOut func(typeURL string) bool
	Types    string
	// Cohort is the expression that assigns clients to cohorts.
	Cohort string
	// Grow is the growth, as a factor of the accepted resource's size, from which on a person has to approve a
	// resource.
	Grow float64
}

// gate is the gate of one scope.
type gate struct {
	// Read only.
	scope      cache.Scope
	controller *Controller
	cache      *cache.Cache
	log        *slog.Logger
	began      time.Time
	stop       chan struct{}
	done       chan struct{}
	inbox      *inbox.Inbox[event]

	// opts are the current settings. mu is held while they change.
	opts atomic.Pointer[Options]

	// ended: the scope has no rollouts any longer, and its clients leave.
	ended atomic.Bool

	// Guarded by Controller.mu.
	uses      int // counts open sources, new topics, and clients
	sources   int
	clients   map[string]*nodeClients
	connected map[connected]*slot // only slots that have members

	// accepts receives accepted updates. It is nil before the first update. mu is held while it changes.
	accepts atomic.Pointer[Below]

	// typed are the settings whose Types the source was opened with. mu is held while they change.
	typed atomic.Pointer[Options]

	// splits, toAccepted and toNew are the buffers of apply, for reuse. mu is held.
	splits            []splitting
	toAccepted, toNew []cache.Update

	// taken is the buffer of the events that the gate's goroutine processed last, for reuse.
	taken []event

	mu       sync.Mutex
	machine  *rollout.Machine
	pending  pending
	later    later
	rejecter Rejecter // nil if there is no control plane to send a NACK to
	topics   map[cache.Key]*newTopic
	// held are the accepted topics that have pending changes.
	held map[cache.Key]*newTopic
	sets map[cache.Key]*setState
	// newest has the source's newest version of each type. accepted has the last version of each type that was
	// accepted completely.
	newest   map[string]*mirrors
	accepted map[string]string
	slots    map[string]*slot // by the machine's client ids
	cohorts  cohorts
	// showings counts how often the gate showed a client the new state.
	showings uint64
	// rejected are the hashes of the new resources in the responses that clients rejected in the current rollout.
	// unclear: the list is incomplete.
	rejected []uint64
	unclear  bool
	// reports: a change has joined the rollout, and the clients on the new side have to report on it.
	reports bool
	// wentBack is the number of clients that were on the new side when the decision to move all back was made.
	wentBack int
	// all: the next acceptance includes everything, because a person approved it.
	all    bool
	counts *Counts
	// shown is the content that the machine knows.
	shown string
}

// Rejecter sends a NACK to a control plane because its state of a type was refused. version is the last version that
// was accepted. Reject does not block for long.
type Rejecter interface {
	Reject(typeURL, version, words string)
}

// newTopic is a topic of the new side. Its watch keeps the accepted topic subscribed upstream.
type newTopic struct{ cache.SetWatch }

// Changed implements cache.Watcher.
func (*newTopic) Changed() cache.Waker { return nil }

// setState describes a set's answer that is not complete yet.
type setState struct {
	// first: it is the set's first answer, so its members are accepted.
	first bool
	// at is when the last part of the answer arrived.
	at time.Time
}

func newGate(scope cache.Scope, o *Options, c *Controller, frozen bool) *gate {
	settings := o.Options
	settings.Frozen = settings.Frozen || frozen
	g := &gate{
		scope: scope, controller: c, cache: c.cache, log: c.log.With("authority", scope.Authority, "partition", scope.Partition),
		began: time.Now(), stop: make(chan struct{}), done: make(chan struct{}), inbox: inbox.New[event](),
		clients: map[string]*nodeClients{}, connected: map[connected]*slot{}, machine: rollout.NewMachine(settings), pending: newPending(), later: newLater(),
		topics: map[cache.Key]*newTopic{}, held: map[cache.Key]*newTopic{}, sets: map[cache.Key]*setState{}, newest: map[string]*mirrors{}, accepted: map[string]string{},
		slots: map[string]*slot{}, cohorts: newCohorts(), counts: c.countsOf(c.label(scope.Authority)),
	}
	g.opts.Store(o)
	g.typed.Store(o)
	go g.run()
	return g
}

// lock locks the gate, for code that may accept changes. The feed that these go to is locked first.
func (g *gate) lock() (unlock func()) {
	for {
		below := g.accepts.Load()
		if below != nil {
			(*below).Lock()
		}
		g.mu.Lock()
		unlock := func() {
			g.mu.Unlock()
			if below != nil {
				(*below).Unlock()
			}
		}
		if g.accepts.Load() == below {
			return unlock
		}
		unlock() // the scope has another feed by now
	}
}

// now is the machine's time.
func (g *gate) now() rollout.Time { return rollout.Time(time.Since(g.began)) + 1 }

// apply passes on updates from the source. of are the settings that the source was opened with, which determine the
// types that are rolled out. The caller holds the lock of below.
func (g *gate) apply(below Below, of *Options, updates []cache.Update) {
	rolledOut := func(u cache.Update) bool { return of.RollsOut(u.TypeURL) }
	if g.typed.Load().Types == of.Types && !slices.ContainsFunc(updates, rolledOut) {
		below.Accept(updates)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.retype(of)
	if !slices.ContainsFunc(updates, rolledOut) {
		below.Accept(updates)
		return
	}
	if last := g.accepts.Load(); last == nil || *last != below {
		g.accepts.Store(&below)
	}
	splits, toAccepted, toNew := g.splits[:0], g.toAccepted[:0], g.toNew[:0]
	defer func() { // their room is used again
		clear(splits)
		clear(toAccepted)
		clear(toNew)
		g.splits, g.toAccepted, g.toNew = splits, toAccepted, toNew
	}()
	restarts := false
	for i := range updates {
		u := &updates[i]
		if !rolledOut(*u) {
			toAccepted = append(toAccepted, *u)
			continue
		}
		splits = append(splits, splitting{gate: g, in: u, toAccepted: *u, toNew: *u})
		s := &splits[len(splits)-1]
		s.split()
		restarts = restarts || s.restarts
		if len(s.toAccepted.Changes)+len(s.toAccepted.Sets) > 0 {
			toAccepted = append(toAccepted, s.toAccepted)
		}
		u.Receipt.Event("rollout", func() []attribute.KeyValue {
			return []attribute.KeyValue{attribute.Int("xds.rollout.pending", len(g.pending.changes)), attribute.Int("xds.rollout.later", len(g.later.changes))}
		})
	}
	if len(toAccepted) > 0 {
		below.Accept(toAccepted)
	}
	joined := g.pending.takeReleased()
	if restarts {
		joined = append(joined, g.takeLater()...)
	}
	// Clients that must leave the new side leave before its topics change.
	joined = append(joined, g.changed(restarts)...)
	g.renew(joined)
	for i := range splits {
		s := &splits[i]
		if s.leaveOut(joined); len(s.toNew.Changes)+len(s.toNew.Sets) > 0 {
			s.toNew.Scope.New = true
			toNew = append(toNew, s.toNew)
		}
	}
	if len(g.topics) > 0 {
		g.cache.Apply(toNew...)
	}
}

// changed reports the pending content to the machine. A change after the first step does not join, unless restarts:
// another rollout is to begin. It returns the items that may differ in the new topics. The caller holds mu.
func (g *gate) changed(restarts bool) (items []item) {
	if g.machine.Began() && !restarts {
		return nil
	}
	content, hidden := g.pending.content()
	if g.machine.Phase() == rollout.Rolling {
		g.reports = true // also for the same resource on another topic
	}
	if content == g.shown && len(g.rejected) == 0 {
		return nil
	}
	if items = g.setApart(); items != nil {
		content, hidden = g.pending.content()
	}
	if content == g.shown {
		return items
	}
	if g.machine.Phase() != rollout.Rolling || restarts {
		g.rejected, g.unclear = nil, false
	}
	g.shown = content
	g.machine.Changed(g.now(), content, hidden)
	if g.machine.Phase() != rollout.Rolling {
		g.hideAll()
	}
	g.inbox.Wake()
	return items
}

// accept gives pending changes to the accepted topics: all of them, or those that need not wait for a person. The
// caller has called lock, or apply.
func (g *gate) accept(all bool) {
	if g.accepts.Load() == nil {
		return
	}
	g.acceptOnly(func(i item, c *change) bool {
		return all || c.waits == "" && !(c.removal() && g.pending.removalWaits(i.typeURL))
	})
	for t, m := range g.newest {
		if g.whole(t) {
			g.accepted[t] = m.latest
		}
	}
	g.shown, _ = g.pending.content()
	g.machine.Changed(g.now(), g.shown, g.shown != "" && g.pending.nShown == 0)
}

// acceptOnly gives the pending changes that satisfy which to the accepted topics, all at once. The caller holds mu.
func (g *gate) acceptOnly(which func(item, *change) bool) {
	var updates, newer []cache.Update
	for _, of := range g.pending.take(which) {
		u := g.updateOf(&of)
		updates, newer = append(updates, u), append(newer, inNew(u))
	}
	if len(updates) == 0 {
		return
	}
	(*g.accepts.Load()).Accept(updates)
	if len(g.topics) > 0 {
		g.cache.Apply(newer...)
	}
}

// whole reports whether everything that the control plane sent of a type is accepted.
func (g *gate) whole(typeURL string) bool {
	return g.pending.types[typeURL] == 0 && g.later.types[typeURL] == 0
}

// updateOf returns the update of the accepted topics that accepts some changes of one type. The caller holds mu.
func (g *gate) updateOf(of *update) cache.Update {
	whole := g.whole(of.typeURL)
	u := cache.Update{Scope: g.scope, TypeURL: of.typeURL}
	if whole {
		u.Origin = g.newest[of.typeURL].accept()
	}
	sets := map[string]*cache.SetUpdate{}
	for _, t := range of.items {
		c := t.change.Change
		u.Receipt, c.Receipt = propagation.Older(u.Receipt, c.Receipt), nil
		if m := mirrorsOf(c.Origin); whole {
			c.Origin = m.accept()
		} else {
			if c.Origin != nil && c.Resource != nil && t.set == "" {
				versioned := c
				versioned.Origin = m.ofNew()
				g.pending.versionOnly[t.item] = versioned
			}
			c.Origin = nil // the version also covers changes that are not accepted
		}
		if t.set == "" {
			u.Changes = append(u.Changes, c)
			continue
		}
		set := sets[t.set]
		if set == nil {
			set = &cache.SetUpdate{Name: t.set}
			if whole {
				set.Origin = u.Origin
			}
			if _, s := g.cache.Find(cache.Key{Scope: g.scope, TypeURL: of.typeURL, Name: t.set}); s != nil {
				set.Partial, set.Stale = s.Partial(), s.Stale()
			}
			sets[t.set] = set
		}
		set.Changes = append(set.Changes, c)
	}
	if whole {
		for i, c := range g.pending.versionOnly {
			if i.typeURL == of.typeURL {
				c.Origin = mirrorsOf(c.Origin).accept()
				u.Changes = append(u.Changes, c)
				delete(g.pending.versionOnly, i)
			}
		}
	}
	for _, set := range sets {
		u.Sets = append(u.Sets, *set)
	}
	u.Receipt = u.Receipt.AfterRollout()
	return u
}

// inNew returns an accepted update in the form for the new topics.
func inNew(u cache.Update) cache.Update {
	u.Scope.New = true
	u.Origin = mirrorsOf(u.Origin).ofNew()
	u.Changes, u.Sets = slices.Clone(u.Changes), slices.Clone(u.Sets)
	for i := range u.Changes {
		u.Changes[i].Origin = mirrorsOf(u.Changes[i].Origin).ofNew()
	}
	for i := range u.Sets {
		u.Sets[i].Origin = mirrorsOf(u.Sets[i].Origin).ofNew()
	}
	return u
}

// topicEnded forgets the pending changes of an accepted topic that has ended. The caller holds mu.
func (g *gate) topicEnded(k cache.Key) {
	g.pending.forget(k)
	g.later.forget(k)
	delete(g.sets, k)
	g.renew(append(g.pending.takeReleased(), g.changed(false)...))
}
