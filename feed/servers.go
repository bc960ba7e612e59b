package feed

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/history"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// Source gives the resources of one scope from one server. None of its methods blocks for long, except Drain.
type Source interface {
	cache.Source
	cache.Resumer
	cache.Adopter
	// Resend makes the source deliver everything that it holds, and its errors, once more.
	Resend()
	// Reject answers the newest response of a type with a NACK, and the last version that was accepted. The response was
	// acknowledged when it came. PassOn does the same because clients have rejected the response.
	Reject(typeURL, version, words string)
	PassOn(typeURL string, r session.Rejection)
	Statuses() []upstream.Status
	// Drain waits, for a bounded time, until the server knows that the relay has unsubscribed from everything.
	Drain()
	// Close ends the source without waiting for it. Once Done is closed, it delivers nothing more.
	Close()
	Done() <-chan struct{}
}

// Servers are the servers of a scope.
type Servers struct {
	Scope cache.Scope
	// Names are the addresses, by priority, for logs and errors.
	Names []string
	// Open begins to feed the scope from a server. It must not block.
	Open     func(server int, to *Link) Source
	Failover failover.Options
	// Foreign is called when a server delivers, and reports whether it may give versions that clients have from another
	// server to other contents: see distinguish. nil: none does.
	Foreign func(server int) bool
	// Failed, if not nil, is called when a server has failed, with the reason. Another source takes the place of the
	// servers then: their outages are none of the scope's. It must not block.
	Failed func(reason string)
	// Answered, if not nil, is called before the first delivery of a type on a new stream to the active server. It must
	// not block.
	Answered func(typeURL string)
}

// servers are the open servers of a Feed. If there are several, all subscriptions go to every one that is open, and the
// deliveries of one, the active one, count. Feed.mu guards it.
type servers struct {
	machine *failover.Machine
	open    []*Link // by priority; nil if not open
	closing []Source
	wanted  wanted // only if there are several servers, as are ttls
	ttls    ttls
	failure *cache.Error // of all topics, while no server is reachable; nil otherwise
	// heardChanged, if not nil, is closed when the active server answers, or its stream ends: see Heard.
	heardChanged chan struct{}
}

// Link takes the events of one source: of an open server, or of another source. A link that is closed is not heard any
// more: the successor of a source has another one. Feed.mu guards it, except for the fields that never change.
type Link struct {
	feed   *Feed
	index  int
	source Source // nil if it is not one of the servers
	active bool
	// outdated: the cache lacks a resource that the server sent, or with which the source resumed. The source must
	// deliver everything again if the server becomes active.
	outdated bool
	closed   bool
	// heard: the server has answered on its present stream. open: there is one.
	heard, open bool
}

// openServers prepares for the servers, and opens the only one.
func (f *Feed) openServers() {
	names := f.Servers.Names
	if len(names) == 0 {
		return
	}
	f.machine = failover.NewMachine(names, f.Servers.Failover)
	f.open = make([]*Link, len(names))
	if len(names) > 1 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	f.openServer(0)
	f.open[0].active, f.only = true, f.open[0].source
	f.machine.Missing(now, true)
	f.act()
	f.plan(now)
}

func (f *Feed) openServer(i int) {
	s := &Link{feed: f, index: i}
	f.open[i] = s
	s.source = f.Servers.Open(i, s)
	for n, t := range f.wanted.topics {
		k := f.key(n)
		s.source.Start(k)
		if t.resumed {
			s.source.Resume(k)
		}
	}
}

// event notes what happens to a server's streams. The caller holds mu.
func (f *Feed) event(now time.Time, s *Link, e delivery.Event) {
	switch e.Kind {
	case delivery.TypeOpened, delivery.TypeAnswered, delivery.TypeLost:
		if e.Kind == delivery.TypeAnswered && s.active && f.Servers.Answered != nil {
			f.Servers.Answered(e.TypeURL)
		}
		if !e.NamesStream { // sets are on the first stream
			f.links.Event(s.index, e)
		}
		return
	case delivery.NamesAnswered:
		if s.active {
			f.links.answered(e.TypeURL)
		}
		return
	case delivery.Responded, delivery.Failed:
		select {
		case <-f.answered:
		default:
			close(f.answered)
		}
	case delivery.Delivered, delivery.Opened, delivery.Lost, delivery.Ended:
	}
	f.hear(s, e.Kind)
	if f.Servers.Failed != nil && e.Kind == delivery.Failed {
		f.Servers.Failed(e.Reason)
	}
	f.machine.Event(now, s.index, e)
	f.act()
}

// hear notes what happens to a stream to a server. The caller holds mu.
func (f *Feed) hear(s *Link, k delivery.Kind) {
	switch k {
	case delivery.Opened:
		s.open = true
		return
	case delivery.Responded:
		s.open, s.heard = true, true
	case delivery.Lost, delivery.Failed:
		s.open, s.heard = false, false
	default:
		return
	}
	if f.heardChanged != nil {
		close(f.heardChanged)
		f.heardChanged = nil
	}
}

// Heard reports whether the active server has answered on its present stream, and whether it has a stream at all. changed
// is closed when either may have changed.
func (f *Feed) Heard() (heard, open bool, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.servers.open {
		if s != nil && s.active {
			heard, open = s.heard, s.open
		}
	}
	if f.heardChanged == nil {
		f.heardChanged = make(chan struct{})
	}
	return heard, open, f.heardChanged
}

// pick returns the updates of a server that count: those of the active one. While that is not up, its errors do not: the
// Feed itself reports an error once all servers have failed. The caller holds mu.
func (f *Feed) pick(s *Link, updates []cache.Update, cause delivery.Cause) []cache.Update {
	switch {
	case !s.active:
		s.outdated = true
		return nil
	case f.Servers.Failed != nil && cause == delivery.Outage:
		return nil
	case len(f.open) > 1 && !f.machine.Up(s.index):
		return withoutErrors(updates)
	}
	return updates
}

// record records what updates say that several servers have to know. It reports whether topics have their first answers.
// The caller holds mu.
func (f *Feed) record(now time.Time, s *Link, updates []cache.Update, expires map[string]time.Time) (news bool) {
	if len(f.open) < 2 {
		return false
	}
	for i := range updates {
		f.ttls.record(&updates[i], expires, s, f.wanted.contains, now)
	}
	return f.wanted.recordAnswers(updates)
}

// withoutErrors returns the updates without their changes that are only errors.
func withoutErrors(updates []cache.Update) (rest []cache.Update) {
	for _, u := range updates {
		changes, sets := u.Changes, u.Sets
		u.Changes, u.Sets = nil, nil
		for _, c := range changes {
			if c.HasState() {
				u.Changes = append(u.Changes, c)
			}
		}
		for _, s := range sets {
			if s.Err == nil {
				u.Sets = append(u.Sets, s)
			}
		}
		if len(u.Changes)+len(u.Sets) > 0 {
			rest = append(rest, u)
		}
	}
	return rest
}

// tick does what is due by time alone. The caller holds mu.
func (f *Feed) tick(now time.Time) {
	if f.machine == nil {
		return
	}
	f.machine.Tick(now)
	f.act()
	if gone := f.ttls.expire(now); len(gone) > 0 {
		f.pass(now, delivery.Expired, gone)
	}
}

// nextTick returns when tick must be called, zero for never. The caller holds mu.
func (f *Feed) nextTick(now time.Time) time.Time {
	if f.machine == nil {
		return time.Time{}
	}
	return f.ttls.earlier(f.machine.Next(now))
}

// pass gives updates that no server has sent to the stages after failover. The caller holds mu.
func (f *Feed) pass(now time.Time, cause delivery.Cause, updates []cache.Update) {
	if !f.muted {
		f.stage(history.Cause(cause.String()), f.judge(now, updates))
	}
}

// act performs the machine's actions, and updates the reachability. The caller holds mu.
func (f *Feed) act() {
	for actions := f.machine.Actions(); len(actions) > 0; actions = f.machine.Actions() {
		if len(f.open) < 2 {
			continue // there is nothing to choose
		}
		for _, a := range actions {
			f.perform(a)
		}
	}
	since, down := f.machine.Unreachable()
	switch {
	case f.failure == nil:
	case !down:
		f.failure.Outage.End()
		f.failure = nil
	case f.failure.Outage == nil && f.machine.AllFailed():
		// A server that was slow before has failed too.
		failure := *f.failure
		failure.Outage = new(cache.Outage)
		f.reportAllFailed(&failure)
	}
	f.reachable(since, down)
}

// reachable notes whether the scope's servers can be reached. The caller holds mu.
func (f *Feed) reachable(since time.Time, down bool) {
	if f.Servers.Failed == nil {
		f.Reachability.set(f.Servers.Scope, since, down)
	}
}

func (f *Feed) perform(a failover.Action) {
	switch a.Kind {
	case failover.Open:
		f.openServer(a.Server)
	case failover.Close:
		f.closeServer(a.Server)
	case failover.Replace:
		f.closeServer(a.Server)
		f.openServer(a.Server)
	case failover.Switch:
		f.switchTo(a)
	case failover.Fail:
		failure := &cache.Error{
			Code:    codes.Unavailable,
			Message: fmt.Sprintf("no control plane of %s can be reached: %s", f.Servers.Scope, a.Reason),
		}
		if f.machine.AllFailed() {
			failure.Outage = new(cache.Outage)
		}
		f.reportAllFailed(failure)
	}
}

// reportAllFailed gives an error to all topics without an answer. The caller holds mu.
func (f *Feed) reportAllFailed(failure *cache.Error) {
	f.failure = failure
	var unanswered []cache.Key
	for n, t := range f.wanted.topics {
		if !t.answered {
			unanswered = append(unanswered, f.key(n))
		}
	}
	f.reportFailure(unanswered)
}

// key returns the key of a topic of the scope.
func (f *Feed) key(n topicName) cache.Key {
	return cache.Key{Scope: f.Servers.Scope, TypeURL: n.typeURL, Name: n.name}
}

// reportFailure gives the error of all servers to topics. The caller holds mu.
func (f *Feed) reportFailure(topics []cache.Key) {
	byType := map[string]int{} // indices in updates
	var updates []cache.Update
	for _, k := range topics {
		at, there := byType[k.TypeURL]
		if !there {
			at = len(updates)
			byType[k.TypeURL] = at
			updates = append(updates, cache.Update{Scope: k.Scope, TypeURL: k.TypeURL})
		}
		if u := &updates[at]; k.IsSet() {
			u.Sets = append(u.Sets, cache.SetUpdate{Name: k.Name, Err: f.failure})
		} else {
			u.Changes = append(u.Changes, cache.Change{Name: k.Name, Err: f.failure})
		}
	}
	if len(updates) > 0 {
		cache.InOrder(updates)
		f.pass(time.Now(), delivery.Outage, updates)
	}
}

// switchTo makes a server the active one. The caller holds mu.
func (f *Feed) switchTo(a failover.Action) {
	before := "none"
	first := true
	for _, s := range f.open {
		if s != nil && s.active {
			s.active, before, first = false, f.Servers.Names[s.index], false
		}
	}
	s := f.open[a.Server]
	s.active = true
	f.ttls.activeSince = time.Now()
	if s.outdated {
		s.outdated = false
		s.source.Resend()
	}
	if first && a.Server == 0 {
		return // the first server answered first: the normal start
	}
	if n := f.Servers.Failover.Switches; n != nil {
		n.Add(1)
	}
	f.Log.Info("switched to another control plane", "authority", f.Servers.Scope.Authority, "partition", f.Servers.Scope.Partition,
		"server", f.Servers.Names[a.Server], "instead_of", before, "reason", a.Reason, "event", "failover")
}

func (f *Feed) closeServer(i int) {
	s := f.open[i]
	f.open[i] = nil
	s.closed, s.active = true, false
	f.links.close(i)
	s.source.Close()
	f.closing = append(slices.DeleteFunc(f.closing, func(s Source) bool {
		select {
		case <-s.Done():
			return true
		default:
			return false
		}
	}), s.source)
}

// closeServers closes all servers, and iterates over the sources that may still be closing. The caller holds mu.
func (f *Feed) closeServers(yield func(Source) bool) {
	for i, s := range f.open {
		if s != nil {
			f.closeServer(i)
		}
	}
	if f.machine != nil {
		f.reachable(time.Time{}, false)
	}
	for _, s := range f.closing {
		if !yield(s) {
			return
		}
	}
}

// Drain waits, for a bounded time, until the servers know that the relay has unsubscribed from everything. It is called
// between the last Stop and Close.
func (f *Feed) Drain() {
	f.step()
	var wg sync.WaitGroup
	for _, s := range f.Sources() {
		wg.Go(s.Source.Drain)
	}
	wg.Wait()
}

// OpenSource is the source of an open server.
type OpenSource struct {
	Server int
	// Active: the deliveries of this server count.
	Active bool
	Source Source
}

// Sources returns the sources of the open servers, by priority. The caller must not hold locks of the cache.
func (f *Feed) Sources() (sources []OpenSource) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, s := range f.open {
		if s != nil {
			sources = append(sources, OpenSource{Server: i, Active: s.active, Source: s.source})
		}
	}
	return sources
}

// Reject sends the active server a NACK, because its state of a type was refused: see gate.Rejecter.
func (f *Feed) Reject(typeURL, version, words string) {
	for _, s := range f.Sources() {
		if s.Active {
			s.Source.Reject(typeURL, version, words)
		}
	}
}

// PassOn sends the active server a NACK, because clients have rejected its newest response of a type.
func (f *Feed) PassOn(typeURL string, r session.Rejection) {
	for _, s := range f.Sources() {
		if s.Active {
			s.Source.PassOn(typeURL, r)
		}
	}
}

// Seed iterates over the resources with which the source may resume: see upstream.Options.Seed.
func (s *Link) Seed(k cache.Key, yield func(string, *cache.Resource)) {
	s.feed.mu.Lock()
	s.outdated = s.outdated || !s.active
	s.feed.mu.Unlock()
	s.feed.Contents(k, yield)
}
