package downstream

import (
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/internal/wire"
)

// The memory that clients take. Each of the other limits allows what a good client may need, so all of them together
// allow more than the process may have. If the process needs a large part of its memory, whatever it needs it for, new
// names of the clients that take the most are refused; if it needs even more, their streams end. A client takes memory
// for its names, its Nodes and its load reports; requests that are being received are in arriving.go. So the process stays
// away from where Go does nothing but collect garbage.

// Memory is that of the process.
type Memory interface {
	// Needed returns how much the process needs, without what Go can free, as of the last garbage collection; the
	// number of that collection; and how much the process may have, 0 if that is not known.
	Needed() (needed, collection, limit uint64)
}

// A name costs about this much: an entry in the cache, a subscription, and what the sources and indexes know of it.
// It is a few times in memory itself.
const (
	costOfName     = 600
	costOfNameByte = 3
)

func costOf(names, bytes int) int { return names*costOfName + bytes*costOfNameByte }

// A Node costs about this much in memory: its text, and a message or string for each value.
const (
	costOfNodeValue = 32
	costOfNodeByte  = 1
)

func costOfNode(c wire.RequestCost) int { return c.NodeValues*costOfNodeValue + c.Node*costOfNodeByte }

const (
	// collectEvery is how often garbage is collected at most to find out how much memory is needed.
	collectEvery = time.Second
	// endEvery is how often a stream is ended at most. Its memory has to become free first.
	endEvery = time.Second
	// leastShare is the part of the memory that a stream has to take, at least, to be one that takes much.
	leastShare = 1. / 1000
)

// pressure knows how much memory is needed.
type pressure struct {
	memory Memory // nil without limits
	// inWork is the cost of the names in requests that are processed now.
	inWork atomic.Int64
	// ended is when the last stream was ended, in nanoseconds since 1970.
	ended atomic.Int64

	mu         sync.Mutex
	collection uint64
	counted    int64 // Server.cost after that collection

	collecting sync.Mutex
	collected  time.Time
}

// part returns which part of its memory the process needs, and how much it may have. counted is Server.cost: what has
// come since the last garbage collection is added.
func (p *pressure) part(counted int64) (part, limit float64) {
	needed, collection, most := p.memory.Needed()
	if most == 0 {
		return 0, 0
	}
	p.mu.Lock()
	if p.collection != collection {
		p.collection, p.counted = collection, counted
	}
	since := max(0, counted-p.counted)
	p.mu.Unlock()
	return (float64(needed) + float64(since+p.inWork.Load())) / float64(most), float64(most)
}

// collect collects the garbage, unless that was done lately.
func (p *pressure) collect() {
	p.collecting.Lock()
	defer p.collecting.Unlock()
	if time.Since(p.collected) >= collectEvery {
		runtime.GC()
		p.collected = time.Now()
	}
}

// reserve makes room for the names of a request until release, before anything of the request is processed. If there is
// none, it returns the excess, or has the request's names refused. The caller holds mu.
func reserve[R request, S typeSession](st *stream, f form[R, S], sess S, req R, list *nameList) (cost int64, e *excess) {
	p := &st.server.pressure
	if p.memory == nil || st.uses == nil || st.limits.MemoryNames == 0 {
		return 0, nil
	}
	names, bytes := 0, 0
	for name := range f.names(req) {
		names++
		bytes += len(name)
	}
	if names == 0 {
		if req.GetNode() == nil || st.nodeCost == 0 {
			return 0, nil
		}
		return 0, st.relieve()
	}
	cost = int64(costOf(names, bytes))
	p.inWork.Add(cost)
	if part, _ := p.part(st.server.cost()); part <= st.limits.MemoryNames {
		return cost, nil
	}
	// Not all of them need be new.
	added := max(0, f.subscribed(sess, req, 0)-sess.Subscribed())
	if list != nil && st.uses.shares(list) {
		added = 0
	}
	exact := cost * int64(min(added, names)) / int64(names)
	p.inWork.Add(exact - cost)
	if cost = exact; cost == 0 {
		return 0, nil
	}
	p.collect()
	part, limit := p.part(st.server.cost())
	large, over := st.takesMuch(cost, limit*leastShare), part > st.limits.MemoryStreams
	switch {
	case part <= st.limits.MemoryNames:
	case large && over:
		return cost, needs(limitMemoryStreams, part, st.limits.MemoryStreams)
	case large:
		st.seldomUsed().noRoom = needs(limitMemoryNames, part, st.limits.MemoryNames).refusal()
	case over:
		st.server.endLargest(part, st.limits.MemoryStreams, limit*leastShare)
	}
	return cost, nil
}

// relieve is reserve for a request with a Node and no names: it ends the stream, or that of the client that takes the
// most, if that is necessary. The caller holds mu.
func (st *stream) relieve() *excess {
	part, least := st.server.scarce(st.limits.MemoryStreams)
	switch {
	case part == 0:
	case st.takesMuch(0, least):
		return needs(limitMemoryStreams, part, st.limits.MemoryStreams)
	default:
		st.server.endLargest(part, st.limits.MemoryStreams, least)
	}
	return nil
}

// scarce returns which part of its memory the process needs, if that is more than most, and from what on something is
// much of it. Otherwise it returns 0.
func (s *Server) scarce(most float64) (part, least float64) {
	p := &s.pressure
	if p.memory == nil || most == 0 {
		return 0, 0
	}
	if part, _ := p.part(s.cost()); part <= most {
		return 0, 0
	}
	p.collect()
	part, limit := p.part(s.cost())
	if part <= most {
		return 0, 0
	}
	return part, limit * leastShare
}

// cost returns that of the names, Nodes and load reports of all clients.
func (s *Server) cost() int64 {
	_, loads := s.heldLoads(nil)
	return s.identities.cost.Load() + loads
}

// heldLoads returns what the load reports of an identity, and of all, take.
func (s *Server) heldLoads(of *identityUse) (own, all int64) {
	if s.options.Loads == nil {
		return 0, 0
	}
	var account any
	if of != nil {
		account = of.key
	}
	return s.options.Loads.Held(account)
}

// held returns what the identity takes for its names, Nodes and load reports.
func (s *Server) held(of *identityUse) int64 {
	loads, _ := s.heldLoads(of)
	return of.cost() + loads
}

// countNode counts the client's Node, unless that was done.
func (st *stream) countNode(cost int) {
	if cost == 0 {
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.nodeCost == 0 {
		st.nodeCost = int32(cost)
		st.uses.countNode(cost)
	}
}

// release ends a reserve: the names are counted.
func (st *stream) release(cost int64) {
	if cost != 0 {
		st.server.pressure.inWork.Add(-cost)
	}
	if st.seldom != nil {
		st.seldom.noRoom = nil
	}
}

// needs returns the excess of the memory.
func needs(l limit, part, most float64) *excess {
	const percent = 100
	return &excess{limit: l, got: int(part * percent), most: int(most * percent), what: "%d percent of the memory needed, and this client takes more than others", unit: " percent"}
}

// takesMuch reports whether the stream, with so much more, takes at least least, at least as much as the streams of its
// identity do on average, and the identity as much as the identities do. The caller holds mu.
func (st *stream) takesMuch(more int64, least float64) bool {
	is := st.cost() + more
	if float64(is) < least {
		return false
	}
	of := &st.server.identities
	of.mu.Lock()
	streams, identities := int64(st.uses.streams), int64(len(of.open))
	of.mu.Unlock()
	return is*streams >= st.uses.cost()+more && (st.server.held(st.uses)+more)*identities >= st.server.cost()+more
}

// cost returns that of the stream's names and Node, except those that it shares with others. The caller holds mu.
func (st *stream) cost() (cost int64) {
	cost = int64(st.nodeCost)
	for _, c := range st.counted {
		cost += int64(c.cost())
	}
	return cost
}

// endLargest ends the stream that takes the most, at least least, of the identity that takes the most. If its load
// reports take the most, the streams with them end.
func (s *Server) endLargest(part, most, least float64) {
	now := time.Now().UnixNano()
	if last := s.pressure.ended.Load(); now-last < int64(endEvery) || !s.pressure.ended.CompareAndSwap(last, now) {
		return
	}
	go func() { // streams have locks
		of := s.largestIdentity()
		if of == nil {
			return
		}
		s.mu.Lock()
		all := s.streams.all()
		s.mu.Unlock()
		var largest *stream
		for _, st := range all {
			if _, once := st.grpc.(noStream); once || st.uses != of {
				continue
			}
			st.mu.Lock()
			if cost := float64(st.cost()); cost >= least && !st.closed {
				largest, least = st, cost
			}
			st.mu.Unlock()
		}
		e := needs(limitMemoryStreams, part, most)
		if loads, _ := s.heldLoads(of); float64(loads) >= least {
			for _, c := range s.loadCalls.of(of) {
				finish(c.grpc.Context(), c.refuse(e))
			}
		} else if largest != nil {
			largest.byRelay.Store(true)
			finish(largest.grpc.Context(), largest.refuse(e))
		}
	}()
}

// largestIdentity returns the identity that takes the most, nil if there is none.
func (s *Server) largestIdentity() (largest *identityUse) {
	i := &s.identities
	i.mu.Lock()
	open := slices.Collect(maps.Values(i.open))
	i.mu.Unlock()
	var most int64
	for _, u := range open {
		if held := s.held(u); largest == nil || held > most {
			largest, most = u, held
		}
	}
	return largest
}

// noRoomError is why names are refused for the memory, nil if they are not. The caller holds mu.
func (st *stream) noRoomError() error {
	if st.seldom == nil {
		return nil
	}
	return st.seldom.noRoom
}
