package failover

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/inbox"
)

// Group feeds the topics of one scope from the servers of its authority: it is their
// [cache.Source]. It sends all subscriptions to every server that it tries.
// Only the updates of one server, the active one, go to the sink.
type Group struct {
	// Read only.
	scope        cache.Scope
	open         Opener
	names        []string
	sink         Sink
	reachability *Reachability
	log          *slog.Logger
	stop         chan struct{}
	done         chan struct{} // closed when the goroutine has ended

	inbox *inbox.Inbox[note] // the calls that are not processed yet

	// mu is held while the sink stores an update, so that no update of a replaced
	// server follows one of its successor. Feeds call the group with their own locks
	// held, so mu comes after these and before the cache's. Under mu the group calls
	// only methods of feeds that take a note and return.
	mu       sync.Mutex
	machine  *Machine
	children []*child // by priority; nil if not open
	closing  []*child
	wanted   wantedTopics
	ttls     ttls
	wakeAt   time.Time    // when the goroutine wakes next, zero for never
	failure  *cache.Error // of all topics, while no server is reachable; nil otherwise
	closed   bool
}

// Opener begins to feed a scope from a server. It must not block. The feed reports
// events to the child, which is also its sink.
type Opener func(server int, child *Child) ServerSource

// Child connects a server's feed to its [Group]: it takes the feed's events, and is
// the feed's sink.
type Child struct {
	group *Group
	self  *child
}

// child is an open server of a group. Group.mu guards it, except for the fields that
// never change.
type child struct {
	Child
	server int
	feed   ServerSource
	active bool
	// outdated: the sink lacks a resource that the server sent, or with which the feed
	// resumed. The feed must resend everything if the server becomes active.
	outdated bool
	closed   bool
}

// note is one call of Start, Refresh, Resume, Adopt or Stop.
type note struct {
	key                          cache.Key
	refresh, resume, adopt, stop bool
}

// NewGroup begins to feed a scope. names are the addresses of the servers, by
// priority, for logs and errors. The group opens no server before a topic is wanted.
// Close stops it.
func NewGroup(scope cache.Scope, names []string, open Opener, o Options, sink Sink, reach *Reachability, log *slog.Logger) *Group {
	g := &Group{
		scope: scope, open: open, names: names, sink: sink, reachability: reach,
		log:     log.With("authority", scope.Authority, "partition", scope.Partition),
		stop:    make(chan struct{}),
		done:    make(chan struct{}),
		inbox:   inbox.New[note](),
		machine: NewMachine(names, o), children: make([]*child, len(names)),
		wanted: wantedTopics{},
	}
	go g.run()
	return g
}

// Start implements cache.Source. It neither blocks nor calls the cache.
func (g *Group) Start(k cache.Key) { g.inbox.Put(note{key: k}) }

// Refresh implements cache.Source. It neither blocks nor calls the cache.
func (g *Group) Refresh(k cache.Key) { g.inbox.Put(note{key: k, refresh: true}) }

// Resume implements cache.Resumer. It neither blocks nor calls the cache.
func (g *Group) Resume(k cache.Key) { g.inbox.Put(note{key: k, resume: true}) }

// Adopt implements cache.Adopter. It neither blocks nor calls the cache.
func (g *Group) Adopt(k cache.Key) { g.inbox.Put(note{key: k, adopt: true}) }

// Stop implements cache.Source. It neither blocks nor calls the cache.
func (g *Group) Stop(k cache.Key) { g.inbox.Put(note{key: k, stop: true}) }

// run is the goroutine: it processes notes, and what is due at a time.
func (g *Group) run() {
	defer close(g.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-g.inbox.Awake():
		case <-timer.C:
		case <-g.stop:
			return
		}
		if next := g.step(); next > 0 {
			timer.Reset(next)
		}
	}
}

// step processes all notes and everything that is due. It returns the time until
// something else is due, 0 if nothing is.
func (g *Group) step() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.processNotes(now)
	g.machine.Tick(now)
	g.act()
	if gone := g.ttls.expire(now); len(gone) > 0 {
		g.sink.Apply(gone...)
	}
	if g.wakeAt = g.ttls.earlier(g.machine.Next(now)); !g.wakeAt.IsZero() {
		return max(g.wakeAt.Sub(now), 1)
	}
	return 0
}

// trackTTLs records the TTLs of updates that the sink has stored. The caller holds
// mu.
func (g *Group) trackTTLs(updates []cache.Update, by *child) {
	for i := range updates {
		g.ttls.record(&updates[i], by, g.wanted.contains, time.Now())
	}
	if at := g.ttls.earlier(time.Time{}); !at.IsZero() && (g.wakeAt.IsZero() || at.Before(g.wakeAt)) {
		g.inbox.Wake()
	}
}

// processNotes passes the calls of the cache on to the open servers. The caller holds
// mu.
func (g *Group) processNotes(now time.Time) {
	notes := g.inbox.Take()
	if g.closed || len(notes) == 0 {
		return
	}
	for _, n := range notes {
		switch {
		case n.stop:
			g.wanted.remove(n.key)
			g.ttls.forget(n.key)
		case n.resume:
			g.wanted.resume(n.key)
		case !n.refresh && !n.adopt:
			g.wanted.add(n.key)
		}
		for _, c := range g.children {
			switch {
			case c == nil:
			case n.stop:
				c.feed.Stop(n.key)
			case n.refresh:
				c.feed.Refresh(n.key)
			case n.resume:
				cache.Resume(c.feed, n.key)
			case n.adopt:
				cache.Adopt(c.feed, n.key)
			default:
				c.feed.Start(n.key)
			}
		}
		if g.failure != nil && !n.stop && !n.resume {
			g.reportFailure(n.key)
		}
	}
	g.machine.Missing(now, g.wanted.missing())
	g.act()
}

// reportFailure applies the group's error to one topic. The caller holds mu.
func (g *Group) reportFailure(k cache.Key) {
	u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	if k.IsSet() {
		u.Sets = []cache.SetUpdate{{Name: k.Name, Err: g.failure}}
	} else {
		u.Changes = []cache.Change{{Name: k.Name, Err: g.failure}}
	}
	g.sink.Apply(u)
}

// act performs the machine's actions, and updates the reachability. The caller holds
// mu.
func (g *Group) act() {
	if g.closed {
		return
	}
	for actions := g.machine.Actions(); len(actions) > 0; actions = g.machine.Actions() {
		for _, a := range actions {
			g.perform(a)
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
		g.reportAllFailed(&failure)
	}
	g.reachability.set(g.scope, since, down)
}

// reportAllFailed applies an error to all topics without an answer. The caller holds
// mu.
func (g *Group) reportAllFailed(failure *cache.Error) {
	g.failure = failure
	for k := range g.wanted.unanswered() {
		g.reportFailure(k)
	}
}

func (g *Group) perform(a Action) {
	switch a.Kind {
	case Open:
		g.openChild(a.Server)
	case Close:
		g.closeChild(a.Server)
	case Replace:
		g.closeChild(a.Server)
		g.openChild(a.Server)
	case Switch:
		g.switchTo(a)
	case Fail:
		failure := &cache.Error{
			Code:    codes.Unavailable,
			Message: fmt.Sprintf("no control plane of %s can be reached: %s", g.scope, a.Reason),
		}
		if g.machine.AllFailed() {
			failure.Outage = new(cache.Outage)
		}
		g.reportAllFailed(failure)
	}
}

// switchTo makes a server the active one. The caller holds mu.
func (g *Group) switchTo(a Action) {
	before := "none"
	first := true
	for _, c := range g.children {
		if c != nil && c.active {
			c.active, before, first = false, g.names[c.server], false
		}
	}
	c := g.children[a.Server]
	c.active = true
	g.ttls.activeSince = time.Now()
	if c.outdated {
		c.outdated = false
		c.feed.Resend()
	}
	if first && a.Server == 0 {
		return // the first server answered first: the normal start
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
	for k := range g.wanted.all() {
		c.feed.Start(k)
		if g.wanted.resumed(k) {
			cache.Resume(c.feed, k)
		}
	}
}

func (g *Group) closeChild(i int) {
	c := g.children[i]
	g.children[i] = nil
	c.closed, c.active = true, false
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

// Drain waits, for a bounded time, until the servers know that the relay has
// unsubscribed from everything. It is called between the last Stop and Close.
func (g *Group) Drain() {
	g.step()
	g.mu.Lock()
	var feeds []ServerSource
	for _, c := range g.children {
		if c != nil {
			feeds = append(feeds, c.feed)
		}
	}
	g.mu.Unlock()
	var wg sync.WaitGroup
	for _, f := range feeds {
		wg.Go(f.Drain)
	}
	wg.Wait()
}

// Close stops the group and its feeds, and waits for them. It is called once.
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
	g.reachability.set(g.scope, time.Time{}, false)
	g.mu.Unlock()
	for _, c := range closing {
		<-c.feed.Done()
	}
}

// Status is the state of a server of a Group.
type Status struct {
	Server int
	// Active: updates of this server go to the cache.
	Active bool
	Feed   ServerSource
}

// Status returns the open servers, by priority. The caller must not hold locks of the
// cache.
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
