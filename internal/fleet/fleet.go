package fleet

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Options are the settings of a Fleet.
type Options struct {
	// Name is the fleet's name.
	Name string
	// Instance is different for each relay, and the same for all Fleets of one: see IsSelf.
	Instance string
	// Self is the address under which this relay is a member, as far as it is known.
	Self string
	// Dial returns the connection to a member, which connects when it is first used. It is called again as long as it
	// fails, and it may take a while.
	Dial func(address string) (Conn, error)
	// Changed is called whenever Route may return something else than before: for these scopes, or for any if there are
	// none. It must not block.
	Changed func(scopes ...cache.Scope)
	Log     *slog.Logger
}

// Fleet decides from which member each scope comes. It is safe for concurrent use.
type Fleet struct {
	options Options
	self    uint64 // the hash of Self
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	// settled is closed once it is known of each member of the first list whether it is there.
	settled     chan struct{}
	settledOnce sync.Once

	mu     sync.Mutex
	closed bool
	// listed is the list of members, in the order of its source, nil as long as there is none. problem is why it cannot
	// be read now.
	listed   []string
	problem  string
	isMember bool // Self is in the list
	peers    map[string]*Peer
	scopes   map[cache.Scope]*scopeState
	refused  map[refusal]int // scopes, for lines that are about to come
	// listedAs is the address of the list that is this relay's, if Self is not in it.
	listedAs string
	// follow ends the following of the present list.
	follow context.CancelFunc
}

// scopeState is what makes a scope come from another member than the scores say. It is kept while it does.
type scopeState struct {
	served map[string]int // streams of peers, by the address of the peer
	until  time.Time      // when the scope may come from a peer again, after the last of them has ended
	// avoids are the members that have refused the scope.
	avoids map[string]avoidance
	// takeover is nil unless the relay gets the state of the scope from a member before it uses the authority's servers.
	takeover *takeover
}

const (
	// servesFor is how long a relay goes on to use the authority's servers for a scope after the last peer has left.
	// Peers that come and go do not make the scope move each time.
	servesFor = 10 * time.Second
	// closesAfter is how long the connection to a member that has gone stays open: its scopes move first.
	closesAfter = 5 * time.Second
)

// New returns a Fleet without members.
func New(o Options) *Fleet {
	f := &Fleet{
		options: o, self: hashOf(o.Self), settled: make(chan struct{}),
		peers: map[string]*Peer{}, scopes: map[cache.Scope]*scopeState{},
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// Follow has the Fleet have these members from now on.
func (f *Fleet) Follow(members Members) {
	ctx, cancel := context.WithCancel(f.ctx)
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		cancel()
		return
	}
	if f.follow != nil {
		f.follow()
	}
	f.follow = cancel
	f.mu.Unlock()
	f.running.Go(func() {
		members.Follow(ctx, func(addresses []string, err error) {
			if err == nil {
				f.set(ctx, addresses)
			} else {
				f.unlisted(ctx, err)
			}
		})
	})
}

// Close ends the Fleet and its connections.
func (f *Fleet) Close() {
	f.mu.Lock()
	f.closed = true
	f.cancel() // with mu: no member is added afterwards, and no connection
	peers := f.peers
	f.peers = map[string]*Peer{}
	f.mu.Unlock()
	for _, p := range peers {
		p.close()
	}
	f.running.Wait()
}

// unlisted notes that the list of members cannot be read, unless ctx has ended.
func (f *Fleet) unlisted(ctx context.Context, why error) {
	f.mu.Lock()
	first := f.problem == "" && ctx.Err() == nil
	if ctx.Err() == nil {
		f.problem = why.Error()
	}
	listed := f.listed != nil
	f.mu.Unlock()
	switch {
	case !first:
	case listed:
		f.options.Log.Warn("members of the fleet cannot be looked up: the fleet stays as it is", "fleet", f.options.Name, "reason", why)
	default:
		f.options.Log.Warn("members of the fleet cannot be looked up: the relay works alone until then", "fleet", f.options.Name, "reason", why)
	}
}

// set changes the list of members, unless ctx has ended.
func (f *Fleet) set(ctx context.Context, addresses []string) {
	f.mu.Lock()
	if ctx.Err() != nil {
		f.mu.Unlock()
		return
	}
	if f.problem != "" {
		f.problem = ""
		f.options.Log.Info("members of the fleet can be looked up again", "fleet", f.options.Name, "members", len(addresses))
	}
	if f.listed != nil && slices.Equal(f.listed, addresses) {
		f.mu.Unlock()
		return
	}
	f.listed = append([]string{}, addresses...)
	f.isMember = slices.Contains(addresses, f.options.Self)
	for address, p := range f.peers {
		if !slices.Contains(addresses, address) {
			delete(f.peers, address)
			f.dismiss(p)
		}
	}
	var known []<-chan struct{}
	for _, address := range addresses {
		if address == f.options.Self {
			continue
		}
		if f.peers[address] == nil {
			f.add(address)
		}
		known = append(known, f.peers[address].known)
	}
	members := len(f.peers)
	f.mu.Unlock()
	f.settledOnce.Do(func() { f.running.Go(func() { f.settle(known) }) })
	f.options.Log.Info("the fleet has changed", "fleet", f.options.Name, "peers", members, "event", "fleet")
	f.change()
}

// settle closes settled once all channels are closed.
func (f *Fleet) settle(known []<-chan struct{}) {
	defer close(f.settled)
	for _, k := range known {
		select {
		case <-k:
		case <-f.ctx.Done():
			return
		}
	}
}

// peers counts the Peers of the process.
var peers atomic.Uint64

// add adds a member. The caller holds mu.
func (f *Fleet) add(address string) {
	ctx, cancel := context.WithCancel(f.ctx)
	p := &Peer{Address: address, ID: peers.Add(1), fleet: f, hash: hashOf(address), cancel: cancel, known: make(chan struct{})}
	f.peers[address] = p
	f.running.Go(func() { p.run(ctx) })
}

// dismiss ends the following of a member that has gone from the list. The caller holds mu.
func (f *Fleet) dismiss(p *Peer) {
	p.cancel()
	f.running.Go(func() {
		select {
		case <-time.After(closesAfter):
		case <-f.ctx.Done():
		}
		p.close()
	})
}

// Settled is closed once it is known of each member of the first list whether it is there.
func (f *Fleet) Settled() <-chan struct{} { return f.settled }

// Status is what a Fleet knows of its members.
type Status struct {
	Name string
	// Alone: no list of members has been read yet.
	Alone bool
	// Problem is why the list cannot be read now, "" if it can.
	Problem string
	// Members are in the order of their addresses.
	Members []Member
}

// Member is a member in a Status.
type Member struct {
	Address string
	// Self: it is this relay.
	Self bool
	// Up: it answers. Reason is why it does not, "" if that is not known yet.
	Up     bool
	Reason string
	// Conn is the connection to it, nil if there is none.
	Conn Conn
}

// Status returns what the Fleet knows of its members.
func (f *Fleet) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Status{Name: f.options.Name, Alone: f.listed == nil, Problem: f.problem}
	for _, address := range f.listed {
		m := Member{Address: address, Self: address == f.options.Self, Up: true}
		if p := f.peers[address]; !m.Self && p != nil {
			m.Self, m.Up, m.Reason, m.Conn = p.isSelf, p.up, p.reason, p.Conn
		} else if !m.Self {
			m.Up = false // the Fleet is closed
		}
		s.Members = append(s.Members, m)
	}
	slices.SortFunc(s.Members, func(a, b Member) int { return strings.Compare(a.Address, b.Address) })
	return s
}

// Route returns the member from which a scope comes, nil for the authority's servers. state reports whether only the
// present state of the scope comes from there, for a moment: see [Fleet.TakeOver].
func (f *Fleet) Route(scope cache.Scope) (from *Peer, state bool) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.scopes[scope]; s != nil && s.takeover != nil && s.takeover.giver.gives(now) {
		return s.takeover.giver, true
	}
	return f.owner(scope, now), false
}

// owner returns the member from which a scope comes for good, nil for the authority's servers. The caller holds mu.
func (f *Fleet) owner(scope cache.Scope, now time.Time) (from *Peer) {
	state := f.scopes[scope]
	if state != nil && (len(state.served) > 0 || now.Before(state.until)) {
		return nil
	}
	hash, highest := scopeHash(scope), uint64(0)
	if f.isMember {
		highest = score(f.self, hash)
	}
	for _, p := range f.peers {
		if s := score(p.hash, hash); s > highest && p.gives(now) && !state.avoidsMember(p, now) {
			highest, from = s, p
		}
	}
	if from != nil && from.isSelf {
		return nil
	}
	return from
}

// foundSelf notes that an address of the list is this relay's.
func (f *Fleet) foundSelf(p *Peer) {
	f.mu.Lock()
	p.up, p.isSelf, f.listedAs = true, true, p.Address
	p.isKnown()
	f.mu.Unlock()
	f.options.Log.Info("the relay has found itself among the members of the fleet", "address", p.Address)
	f.change()
}

// gives reports whether scopes may come from the member. The caller holds Fleet.mu.
func (p *Peer) gives(now time.Time) bool {
	return p.up && !now.Before(p.foundAt.Add(p.proves))
}

// Serve notes that the peer with an address gets a scope from this relay, until done is called. The scope does not come
// from a peer then.
func (f *Fleet) Serve(scope cache.Scope, address string) (done func()) {
	f.mu.Lock()
	s := f.stateOf(scope)
	first := len(s.served) == 0 && !time.Now().Before(s.until)
	if s.served == nil {
		s.served = map[string]int{}
	}
	s.served[address]++
	f.mu.Unlock()
	if first {
		f.change(scope)
	}
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if s.served[address]--; s.served[address] == 0 {
			delete(s.served, address)
		}
		if len(s.served) == 0 {
			s.until = time.Now().Add(servesFor)
			time.AfterFunc(servesFor, func() { f.expire(scope) })
		}
	})
}

// Address returns the address of this relay, as its members have it if that is known.
func (f *Fleet) Address() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listedAs != "" && !f.isMember {
		return f.listedAs
	}
	return f.options.Self
}

// stateOf returns the state of a scope. The caller holds mu.
func (f *Fleet) stateOf(scope cache.Scope) *scopeState {
	s := f.scopes[scope]
	if s == nil {
		s = &scopeState{}
		f.scopes[scope] = s
	}
	return s
}

// found notes that a member serves.
func (f *Fleet) found(p *Peer) {
	f.mu.Lock()
	p.up, p.reason, p.foundAt = true, "", time.Now()
	if p.proves > 0 {
		time.AfterFunc(p.proves, func() { f.change() })
	}
	p.isKnown()
	f.mu.Unlock()
	f.options.Log.Info("a member of the fleet is there", "peer", p.Address, "event", "fleet")
	f.change()
}

// lost notes that a member does not serve.
func (f *Fleet) lost(p *Peer, why error) {
	f.mu.Lock()
	wasUp, first := p.up, p.reason == ""
	if p.up = false; wasUp {
		if time.Since(p.foundAt) >= steadyFor {
			p.proves = 0
		}
		p.proves = max(provesFor, min(2*p.proves, provesAtMost))
	}
	p.reason = why.Error()
	p.isKnown()
	gone := f.closed || f.peers[p.Address] != p
	f.mu.Unlock()
	if gone {
		return
	}
	if wasUp || first {
		f.options.Log.Warn("a member of the fleet is not there", "peer", p.Address, "reason", why, "event", "fleet")
	}
	if wasUp {
		f.change()
	}
}

// isKnown notes that the first attempt to reach the member has ended. The caller holds Fleet.mu.
func (p *Peer) isKnown() {
	select {
	case <-p.known:
	default:
		close(p.known)
	}
}

// expire forgets what no longer holds for a scope.
func (f *Fleet) expire(scope cache.Scope) {
	f.mu.Lock()
	f.forget(scope, time.Now())
	f.mu.Unlock()
	f.change(scope)
}

// forget forgets what no longer holds for a scope. The caller holds mu.
func (f *Fleet) forget(scope cache.Scope, now time.Time) {
	s := f.scopes[scope]
	if s == nil {
		return
	}
	maps.DeleteFunc(s.avoids, func(_ string, a avoidance) bool { return a.isOver(now) })
	if len(s.served) == 0 && len(s.avoids) == 0 && s.takeover == nil && !now.Before(s.until) {
		delete(f.scopes, scope)
	}
}

// change calls Changed unless the Fleet is closed.
func (f *Fleet) change(scopes ...cache.Scope) {
	f.mu.Lock()
	closed := f.closed
	f.mu.Unlock()
	if !closed {
		f.options.Changed(scopes...)
	}
}
