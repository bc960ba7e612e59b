package gate

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/inbox"
	"github.com/xds-relay/xds-relay/propagation"
	"github.com/xds-relay/xds-relay/rollout"
)

// Sink takes updates: a keeper, or the cache.
type Sink interface{ Apply(cache.Update) }

// memory is a Sink that knows what was accepted before the relay was started: a keeper. Accepted yields
// that of a topic without an answer so far; it returns false if there is nothing.
type memory interface {
	Accepted(k cache.Key, yield func(key string, r *cache.Resource)) bool
}

// Options are the settings of the gates of one authority.
type Options struct {
	rollout.Options
	// RollsOut reports whether changes of a type are rolled out. Types tells it from others.
	RollsOut func(typeURL string) bool
	Types    string
	// Cohort says by which expression clients have their cohorts.
	Cohort string
	// Grow is how many times larger than the accepted one a resource may be.
	Grow float64
}

// gate is that of one scope.
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

	// opts are the settings. They change with mu held.
	opts atomic.Pointer[Options]

	// ended: the scope has no rollouts any more, and its clients leave.
	ended atomic.Bool

	// Guarded by Controller.mu.
	uses      int // sources that are open, new topics, and clients
	sources   int
	clients   map[string]*nodeClients
	connected map[connected]*slot // that have members

	// typed are settings with the types that are rolled out of what the source gives. They change with mu held.
	typed atomic.Pointer[Options]

	// taken are the events that the goroutine of the gate has processed last, for their room.
	taken []event

	mu      sync.Mutex
	machine *rollout.Machine
	pending pending
	later   later
	// accepts is where what is accepted goes, nil before the first update.
	accepts  Sink
	rejecter Rejecter // nil if there is no control plane that a NACK could go to
	topics   map[cache.Key]*newTopic
	// held are the accepted topics of which something is pending.
	held map[cache.Key]*newTopic
	sets map[cache.Key]*setState
	// newest is the source's newest version by type, and accepted the last one of which everything
	// was accepted.
	newest   map[string]*mirrors
	accepted map[string]string
	slots    map[string]*slot // by the machine's names for them
	cohorts  cohorts
	// showings counts how often a client was shown the new state.
	showings uint64
	// rejected are the hashes of what was new in the responses that clients have rejected in the rollout under
	// way. unclear says that they are not all that was.
	rejected []uint64
	unclear  bool
	// asks: something has joined the rollout, of which the first clients have to say what they make.
	asks bool
	// wentBack is how many clients were on the new side when it was decided that all go back.
	wentBack int
	// all: what is accepted next is everything, as a person said so.
	all    bool
	counts *Counts
	// shown is which content the machine knows.
	shown string
}

// Rejecter sends a NACK to a control plane, as its state of a type was refused. version is the last one that
// was accepted. It does not block for long.
type Rejecter interface {
	Reject(typeURL, version, words string)
}

// newTopic is a topic of the new side. Its watch keeps the accepted topic fed.
type newTopic struct{ cache.SetWatch }

// Changed implements cache.Watcher.
func (*newTopic) Changed() cache.Waker { return nil }

// setState is what a gate knows of a set's answer that is not complete.
type setState struct {
	// first: it is the first answer, so that what comes in it is accepted.
	first bool
	// at is when the last part of the answer came.
	at time.Time
	// seen are the members of the answer so far; nil if there were none before it.
	seen map[string]struct{}
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

// now is the machine's time.
func (g *gate) now() rollout.Time { return rollout.Time(time.Since(g.began)) + 1 }

// apply passes an update of the source on. of are the settings by which the source was opened: by the types
// in them.
func (g *gate) apply(below Sink, of *Options, u cache.Update) {
	if !of.RollsOut(u.TypeURL) && g.typed.Load().Types == of.Types {
		below.Apply(u)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.retype(of)
	if !of.RollsOut(u.TypeURL) {
		below.Apply(u)
		return
	}
	g.accepts = below
	s := splitting{gate: g, in: &u, toAccepted: u, toNew: u}
	s.split()
	if len(s.toAccepted.Changes)+len(s.toAccepted.Sets) > 0 {
		below.Apply(s.toAccepted)
	}
	joined := g.pending.takeReleased()
	if s.anew {
		joined = append(joined, g.takeLater()...)
	}
	u.Receipt.Event("rollout", func() []attribute.KeyValue {
		return []attribute.KeyValue{attribute.Int("xds.rollout.pending", len(g.pending.changes)), attribute.Int("xds.rollout.later", len(g.later.changes))}
	})
	// Who is not to be on the new side any more goes back before there is something else.
	apart := g.changed(s.anew)
	s.leaveOut(apart)
	g.renew(append(joined, apart...))
	s.toNew.Scope.New = true
	if len(g.topics) > 0 && len(s.toNew.Changes)+len(s.toNew.Sets) > 0 {
		g.cache.Apply(s.toNew)
	}
}

// changed reports to the machine what is pending. What changes after the first step does not join, unless
// another rollout is to begin. It returns the items that may differ in the new topics. The caller holds mu.
func (g *gate) changed(anew bool) (items []item) {
	if g.machine.Began() && !anew {
		return nil
	}
	content, hidden := g.pending.content()
	if g.machine.Phase() == rollout.Rolling {
		g.asks = true // also for the same resource on another topic
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
	if g.machine.Phase() != rollout.Rolling || anew {
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

// accept gives what is pending to the accepted topics: all of it, or what need not wait for a person. The
// caller holds mu.
func (g *gate) accept(all bool) {
	if g.accepts == nil {
		return
	}
	g.acceptOnly(func(_ item, c *change) bool { return all || c.waits == "" && !(c.removal() && g.pending.nWaits > 0) })
	for t, m := range g.newest {
		if g.whole(t) {
			g.accepted[t] = m.latest
		}
	}
	g.shown, _ = g.pending.content()
	g.machine.Changed(g.now(), g.shown, g.shown != "" && g.pending.nShown == 0)
}

// acceptOnly gives some of what is pending to the accepted topics. The caller holds mu.
func (g *gate) acceptOnly(which func(item, *change) bool) {
	for _, of := range g.pending.take(which) {
		if len(of.items) > 0 {
			g.applyAccepted(&of)
		}
	}
}

// whole reports whether all that the control plane says of a type is accepted.
func (g *gate) whole(typeURL string) bool {
	return g.pending.types[typeURL] == 0 && g.later.types[typeURL] == 0
}

// applyAccepted accepts some changes of one type. The caller holds mu.
func (g *gate) applyAccepted(of *update) {
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
			c.Origin = nil // the version stands for more
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
	g.accepts.Apply(u)
	if len(g.topics) > 0 {
		g.cache.Apply(inNew(u))
	}
}

// inNew returns what is accepted as the new topics have it.
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

// topicEnded forgets what is pending of an accepted topic that has ended. The caller holds mu.
func (g *gate) topicEnded(k cache.Key) {
	g.pending.forget(k)
	g.later.forget(k)
	delete(g.sets, k)
	g.renew(append(g.pending.takeReleased(), g.changed(false)...))
}
