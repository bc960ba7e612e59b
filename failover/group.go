package failover

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// Group feeds the topics of one scope from the servers of its authority: it is their
// [cache.Feeder]. Of all that is wanted every server that is tried is asked; what one
// of them says comes to the sink, and what the others say does not.
type Group struct {
	// Read only.
	scope cache.Scope
	open  Opener
	names []string
	sink  Sink
	reach *Reach
	log   *slog.Logger
	stop  chan struct{}
	done  chan struct{} // closed when the goroutine has ended
	wake  chan struct{} // there are notes

	// inbox is what the cache has noted. It comes last in the order of locks.
	inbox struct {
		sync.Mutex
		notes []note
	}

	// mu is held while the sink takes an update, so that no server's word comes after
	// that of one that has taken its place. Servers call with their own locks held,
	// so it comes after these and before the cache's; under it feeds are only told
	// what they note.
	mu       sync.Mutex
	machine  *Machine
	children []*child // by priority; nil if not open
	closing  []*child
	wants    wants
	lives    lives
	wakeAt   time.Time    // when the goroutine looks next, zero for never
	failure  *cache.Error // why nothing can be had, if nothing can
	closed   bool
}

// Opener begins to feed a scope from a server. It must not block. The feed tells the
// child what has become of the server, and the sink, which is the child too, what the
// server says.
type Opener func(server int, child *Child) Feed

// note is one call of Start, Refresh or Stop.
type note struct {
	key         cache.Key
	again, stop bool
}

// NewGroup begins to feed a scope. names are the servers', by priority, for people.
// Nothing is opened before something is wanted. Close ends it.
func NewGroup(scope cache.Scope, names []string, open Opener, o Options, sink Sink, reach *Reach, log *slog.Logger) *Group {
	g := &Group{
		scope: scope, open: open, names: names, sink: sink, reach: reach,
		log:     log.With("authority", scope.Authority, "partition", scope.Partition),
		stop:    make(chan struct{}),
		done:    make(chan struct{}),
		wake:    make(chan struct{}, 1),
		machine: NewMachine(names, o), children: make([]*child, len(names)),
		wants: wants{},
	}
	go g.run()
	return g
}

// Start begins to feed a topic. It neither blocks nor calls the cache.
func (g *Group) Start(k cache.Key) { g.note(note{key: k}) }

// Refresh asks anew for a topic that is fed. It neither blocks nor calls the cache.
func (g *Group) Refresh(k cache.Key) { g.note(note{key: k, again: true}) }

// Stop ends the feeding of a topic. It neither blocks nor calls the cache.
func (g *Group) Stop(k cache.Key) { g.note(note{key: k, stop: true}) }

func (g *Group) note(n note) {
	g.inbox.Lock()
	g.inbox.notes = append(g.inbox.notes, n)
	g.inbox.Unlock()
	g.rouse()
}

// run passes on what the cache has noted, and what time brings.
func (g *Group) run() {
	defer close(g.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-g.wake:
		case <-timer.C:
		case <-g.stop:
			return
		}
		if next := g.step(); next > 0 {
			timer.Reset(next)
		}
	}
}

// step takes the notes, and returns in what time something comes about by itself, 0
// if nothing does.
func (g *Group) step() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.takeNotes(now)
	g.machine.Tick(now)
	g.act()
	for _, u := range g.lives.expire(now) {
		g.sink.Apply(u)
	}
	if g.wakeAt = g.lives.sooner(g.machine.Next(now)); !g.wakeAt.IsZero() {
		return max(g.wakeAt.Sub(now), 1)
	}
	return 0
}

// live notes what was told that has a time to live. The caller holds mu.
func (g *Group) live(u *cache.Update, by *child) {
	g.lives.note(u, by, g.wants.has, time.Now())
	if at := g.lives.sooner(time.Time{}); !at.IsZero() && (g.wakeAt.IsZero() || at.Before(g.wakeAt)) {
		g.rouse()
	}
}

// rouse has the goroutine look.
func (g *Group) rouse() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// takeNotes passes on what the cache has noted. The caller holds mu.
func (g *Group) takeNotes(now time.Time) {
	g.inbox.Lock()
	notes := g.inbox.notes
	g.inbox.notes = nil
	g.inbox.Unlock()
	if g.closed || len(notes) == 0 {
		return
	}
	for _, n := range notes {
		switch {
		case n.stop:
			g.wants.stop(n.key)
			g.lives.stop(n.key)
		case !n.again:
			g.wants.start(n.key)
		}
		for _, c := range g.children {
			switch {
			case c == nil:
			case n.stop:
				c.feed.Stop(n.key)
			case n.again:
				c.feed.Refresh(n.key)
			default:
				c.feed.Start(n.key)
			}
		}
		if g.failure != nil && !n.stop {
			g.fail(n.key)
		}
	}
	g.machine.Missing(now, g.wants.missing())
	g.act()
}

// fail tells one topic that no server can be reached. The caller holds mu.
func (g *Group) fail(k cache.Key) {
	u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	if k.IsSet() {
		u.Sets = []cache.SetUpdate{{Name: k.Name, Err: g.failure}}
	} else {
		u.Changes = []cache.Change{{Name: k.Name, Err: g.failure}}
	}
	g.sink.Apply(u)
}

// act does what the machine has decided. The caller holds mu.
func (g *Group) act() {
	if g.closed {
		return
	}
	for actions := g.machine.Actions(); len(actions) > 0; actions = g.machine.Actions() {
		for _, a := range actions {
			g.do(a)
		}
	}
	since, down := g.machine.Unreachable()
	switch {
	case g.failure == nil:
	case !down:
		g.failure.Outage.End()
		g.failure = nil
	case g.failure.Outage == nil && g.machine.AllFailed():
		// A server that was slow before has failed too.
		failure := *g.failure
		failure.Outage = new(cache.Outage)
		g.failAll(&failure)
	}
	g.reach.set(g.scope, since, down)
}

// failAll tells all that has no answer why. The caller holds mu.
func (g *Group) failAll(failure *cache.Error) {
	g.failure = failure
	for k := range g.wants.unanswered() {
		g.fail(k)
	}
}

func (g *Group) do(a Action) {
	switch a.Kind {
	case Open:
		g.openChild(a.Server)
	case Close:
		g.closeChild(a.Server)
	case Replace:
		g.closeChild(a.Server)
		g.openChild(a.Server)
	case Switch:
		g.switched(a)
	case Fail:
		failure := &cache.Error{
			Code:    codes.Unavailable,
			Message: fmt.Sprintf("no control plane of %s can be reached: %s", g.scope, a.Reason),
		}
		if g.machine.AllFailed() {
			failure.Outage = new(cache.Outage)
		}
		g.failAll(failure)
	}
}

// switched has a server's word count. The caller holds mu.
func (g *Group) switched(a Action) {
	before := "none"
	first := true
	for _, c := range g.children {
		if c != nil && c.active {
			c.active, before, first = false, g.names[c.server], false
		}
	}
	c := g.children[a.Server]
	c.active = true
	g.lives.since = time.Now()
	if c.behind {
		c.behind = false
		c.feed.Restate()
	}
	if first && a.Server == 0 {
		return // nothing has gone wrong
	}
	if n := g.machine.opts.Switches; n != nil {
		n.Add(1)
	}
	g.log.Info("switched to another control plane", "server", g.names[a.Server], "instead_of", before, "reason", a.Reason)
}

func (g *Group) openChild(i int) {
	c := &child{Child: Child{group: g}, server: i}
	c.self = c
	g.children[i] = c
	c.feed = g.open(i, &c.Child)
	for k := range g.wants.all() {
		c.feed.Start(k)
	}
}

func (g *Group) closeChild(i int) {
	c := g.children[i]
	g.children[i] = nil
	c.gone, c.active = true, false
	c.feed.Close()
	closing := g.closing[:0]
	for _, old := range append(g.closing, c) {
		select {
		case <-old.feed.Done():
		default:
			closing = append(closing, old)
		}
	}
	g.closing = closing
}

// Leave waits until the servers know that nothing is wanted any more, but not for
// long. It is for the time between the last Stop and Close.
func (g *Group) Leave() {
	g.step()
	g.mu.Lock()
	var feeds []Feed
	for _, c := range g.children {
		if c != nil {
			feeds = append(feeds, c.feed)
		}
	}
	g.mu.Unlock()
	var wg sync.WaitGroup
	for _, f := range feeds {
		wg.Go(f.Leave)
	}
	wg.Wait()
}

// Close ends the feeding, and waits for that. It is called once.
func (g *Group) Close() {
	close(g.stop)
	<-g.done
	g.mu.Lock()
	for i, c := range g.children {
		if c != nil {
			g.closeChild(i)
		}
	}
	g.closed = true
	closing := g.closing
	g.closing = nil
	g.reach.set(g.scope, time.Time{}, false)
	g.mu.Unlock()
	for _, c := range closing {
		<-c.feed.Done()
	}
}

// Status is how a server of a Group is doing.
type Status struct {
	Server int
	// Active says that its word counts.
	Active bool
	Feed   Feed
}

// Status returns the servers that are open, by priority. It must not be called with
// the cache locked.
func (g *Group) Status() (servers []Status) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, c := range g.children {
		if c != nil {
			servers = append(servers, Status{Server: i, Active: c.active, Feed: c.feed})
		}
	}
	return servers
}
