package prefetch

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/inbox"
)

// Prefetcher watches the topics that clients will request next. New makes one, Close ends it.
type Prefetcher struct {
	topics   *cache.Cache
	inbox    *inbox.Inbox[event]
	settings atomic.Pointer[Settings]
	stop     chan struct{}
	done     chan struct{}
	counts   counts

	mu        sync.Mutex
	audiences map[any]*Audience // by their classes

	// Only the goroutine uses these:

	taken  []event
	unread []*node // whose references are to be followed
	leases cache.Expiries[*node]
	ahead  map[cache.Scope]int // counts the nodes that are ahead
	known  known
}

// Settings may change while the Prefetcher runs.
type Settings struct {
	// Lease is how long a topic stays watched that no client requests.
	Lease time.Duration
	// Most bounds the topics that are ahead of the clients.
	Most int
}

// event is an input of the goroutine: a stream begins or ceases to watch a topic; a topic has changed, or has its
// first client; or the last stream of an audience is gone.
type event struct {
	kind     eventKind
	audience *Audience
	key      cache.Key
	node     *node
}

type eventKind uint8

const (
	want eventKind = iota
	unwant
	changed
	adopted
	left
)

// New makes a Prefetcher without audiences.
func New(topics *cache.Cache, s Settings) *Prefetcher {
	p := newPrefetcher(topics, s)
	go p.run()
	return p
}

func newPrefetcher(topics *cache.Cache, s Settings) *Prefetcher {
	p := &Prefetcher{
		topics: topics, inbox: inbox.New[event](), stop: make(chan struct{}), done: make(chan struct{}),
		audiences: map[any]*Audience{}, ahead: map[cache.Scope]int{}, known: newKnown(),
	}
	p.Configure(s)
	return p
}

// Configure changes the settings for later prefetches.
func (p *Prefetcher) Configure(s Settings) { p.settings.Store(&s) }

// Close ends all watches. Join and Leave may still be called, without effect.
func (p *Prefetcher) Close() {
	close(p.stop)
	<-p.done
}

// Wake implements cache.Waker.
func (p *Prefetcher) Wake() { p.inbox.Wake() }

func (p *Prefetcher) run() {
	defer close(p.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-p.inbox.Awake():
		case <-timer.C:
		case <-p.stop:
			p.removeAll()
			return
		}
		p.step(time.Now())
		if next, ok := p.leases.Next(); ok {
			timer.Reset(max(time.Until(next), 0))
		}
	}
}

// perStep is how many nodes are read before events are processed again.
const perStep = 16

// step processes all events, and follows the references of some resources.
func (p *Prefetcher) step(now time.Time) {
	p.taken = p.inbox.TakeAgain(p.taken)
	for _, e := range p.taken {
		p.process(e, now)
	}
	for range min(perStep, len(p.unread)) {
		n := p.unread[0]
		p.unread[0] = nil
		p.unread = p.unread[1:]
		if n.unread = false; !n.gone {
			p.read(n, now)
		}
	}
	for _, n := range p.leases.Due(now) {
		p.counts.released.Add(1)
		p.remove(n)
	}
	if len(p.unread) > 0 {
		p.inbox.Wake()
	} else {
		p.unread = nil
	}
}

func (p *Prefetcher) process(e event, now time.Time) {
	switch e.kind {
	case want:
		p.want(e.audience, e.key, now)
	case unwant:
		p.unwant(e.audience.nodes[e.key])
	case changed:
		if e.node.marked.Store(false); !e.node.gone {
			p.toRead(e.node)
		}
	case adopted:
		p.requested(e.node)
	case left:
		if e.audience.streams.Load() == 0 {
			for _, n := range e.audience.nodes {
				p.remove(n)
			}
		}
	}
}

// want notes that a stream watches a topic.
func (p *Prefetcher) want(a *Audience, k cache.Key, now time.Time) {
	n := a.nodes[k]
	if n == nil {
		n = &node{audience: a, key: k}
		a.nodes[k] = n
	}
	if n.wanted++; n.wanted > 1 {
		p.readAgain(n, now)
		return
	}
	if n.isAhead() {
		p.counts.requested.Add(1)
		p.endLease(n)
	}
	n.level = 0
	p.watch(n, a.names.Side(k))
	p.toReadAgain(n)
}

// unwant notes that a stream does not watch a topic any more.
func (p *Prefetcher) unwant(n *node) {
	if n == nil || n.wanted == 0 {
		return
	}
	if n.wanted--; n.wanted == 0 {
		p.remove(n)
	}
}

// requested notes that a client of any audience has requested a topic that is ahead. If the topic's type has no
// references to follow, the node ends.
func (p *Prefetcher) requested(n *node) {
	if !n.gone && n.isAhead() && !Follows(n.key.TypeURL) {
		p.counts.requested.Add(1)
		p.remove(n)
	}
}

// removeAll ends all watches.
func (p *Prefetcher) removeAll() {
	p.mu.Lock()
	audiences := p.audiences
	p.audiences = map[any]*Audience{}
	p.mu.Unlock()
	for _, a := range audiences {
		for _, n := range a.nodes {
			p.remove(n)
		}
	}
}
