package downstream

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/identity"
)

// What one identity may cost on all of its connections to all listeners. Limits of a stream and of a connection do not
// bound a client that opens more of them. A client that has proven no identity counts by its address.

// identityKey identifies what limits count: an identity or an address. One of its fields is set.
type identityKey struct {
	proven  string // identity.Identity.Key
	address netip.Prefix
}

func identityKeyOf(ctx context.Context, id *identity.Identity) identityKey {
	if id != nil {
		if key := id.Key(); key != "" {
			return identityKey{proven: key}
		}
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return identityKey{}
	}
	return identityKey{address: groupOf(p.Addr)}
}

// groupOf is addressGroup of the address of a peer.
func groupOf(addr net.Addr) netip.Prefix {
	switch a := addr.(type) {
	case *limitedAddr:
		return a.conn.group()
	case remoteAddr:
		at, _ := netip.ParseAddrPort(string(a)) // zero if it is not an IP address
		return prefixOf(at.Addr())
	default:
		return addressGroup(addr)
	}
}

// identityUse is what the streams of one identity use.
type identityUse struct {
	key     identityKey
	streams int           // guarded by identities.mu
	total   *atomic.Int64 // identities.cost; may be nil

	mu     sync.Mutex
	scopes scopeCounts
	names  identityNames
	nodes  int            // the cost of the Nodes
	types  map[string]int // streams by type URL, of types that the relay does not know
	room   cache.Room     // of types
}

// names are the names of one type on one stream, as they are counted.
type names struct {
	alone, bytes uint32 // how many are not shared, and their length
	shared       session.NameList
}

// cost returns that of the names that are not shared.
func (n *names) cost() int { return costOf(int(n.alone), int(n.bytes)) }

// countedNames are the names of a session that are counted for its client's identity.
type countedNames struct {
	sess typeSession
	names
}

func namesOf(sess typeSession) names {
	return names{alone: uint32(sess.SubscribedAlone()), bytes: uint32(sess.NameBytes()), shared: sess.SharedList()} //nolint:gosec // they fit into memory
}

// identityNames counts names. The zero value is ready.
type identityNames struct {
	n, cost int
	shared  map[session.NameList]int // how many types of streams use each list
}

// with returns how many names there are if was is replaced by is, and what they cost.
func (c *identityNames) with(was, is names) (n, cost int) {
	n, cost = c.n+int(is.alone)-int(was.alone), c.cost+is.cost()-was.cost()
	if is.shared == was.shared {
		return n, cost
	}
	if is.shared != nil && c.shared[is.shared] == 0 {
		n, cost = n+len(is.shared.All()), cost+costOfList(is.shared)
	}
	if was.shared != nil && c.shared[was.shared] == 1 {
		n, cost = n-len(was.shared.All()), cost-costOfList(was.shared)
	}
	return n, cost
}

func costOfList(list session.NameList) int {
	bytes := 0
	for _, name := range list.All() {
		bytes += len(name)
	}
	return costOf(len(list.All()), bytes)
}

func (c *identityNames) replace(was, is names) {
	c.n, c.cost = c.with(was, is)
	if is.shared == was.shared {
		return
	}
	if is.shared != nil {
		if c.shared == nil {
			c.shared = map[session.NameList]int{}
		}
		c.shared[is.shared]++
	}
	if was.shared != nil {
		if c.shared[was.shared]--; c.shared[was.shared] == 0 {
			delete(c.shared, was.shared)
		}
	}
}

const tooManyNames = "%d names subscribed to by this identity"

// identities are the identities that have streams. The zero value is ready.
type identities struct {
	cost atomic.Int64 // of the names and Nodes of all

	mu   sync.Mutex
	open map[identityKey]*identityUse
	room cache.Room // of open
}

// join adds a stream of an identity until leave. It returns the excess if that is one too many.
func (i *identities) join(key identityKey, most int) (*identityUse, *excess) {
	i.mu.Lock()
	defer i.mu.Unlock()
	u := i.open[key]
	if u == nil {
		u = &identityUse{key: key, total: &i.cost}
	}
	if e := over(limitIdentityStreams, u.streams+1, most, "%d open streams of this identity"); e != nil {
		return nil, e
	}
	if i.open == nil {
		i.open = map[identityKey]*identityUse{}
	}
	i.open[key] = u
	u.streams++
	return u, nil
}

// leave undoes a join.
func (i *identities) leave(u *identityUse) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if u.streams--; u.streams == 0 {
		i.open = cache.Without(i.open, &i.room, u.key)
	}
}

// enter counts a stream that uses a scope until leave.
func (u *identityUse) enter(scope cache.Scope, most int) *excess {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.scopes.get(scope) == 0 {
		if e := over(limitIdentityScopes, u.scopes.len()+1, most, "%d authorities, partitions and sets of dynamic parameters of this identity"); e != nil {
			return e
		}
	}
	u.scopes.add(scope, 1)
	return nil
}

func (u *identityUse) leave(scope cache.Scope) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.scopes.add(scope, -1)
}

func (u *identityUse) enterType(typeURL string, most int) *excess {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.types[typeURL] == 0 {
		if e := over(limitIdentityTypes, len(u.types)+1, most, "%d types of this identity that the relay does not know"); e != nil {
			return e
		}
	}
	if u.types == nil {
		u.types = map[string]int{}
	}
	u.types[typeURL]++
	return nil
}

func (u *identityUse) leaveType(typeURL string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.types[typeURL]--; u.types[typeURL] == 0 {
		u.types = cache.Without(u.types, &u.room, typeURL)
	}
}

// hasRoom returns the excess if so many more names are too many.
func (u *identityUse) hasRoom(more, most int) *excess {
	u.mu.Lock()
	defer u.mu.Unlock()
	return over(limitIdentitySubscriptions, u.names.n+more, most, tooManyNames)
}

// count counts the names of a type of a stream, replacing was. It returns the excess if they are too many.
func (u *identityUse) count(was, is names, most int) *excess {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n, _ := u.names.with(was, is); n > u.names.n {
		if e := over(limitIdentitySubscriptions, n, most, tooManyNames); e != nil {
			return e
		}
	}
	u.replace(was, is)
	return nil
}

// replace counts names in the place of others. The caller holds mu.
func (u *identityUse) replace(was, is names) {
	before := u.names.cost
	u.names.replace(was, is)
	if u.total != nil {
		u.total.Add(int64(u.names.cost - before))
	}
}

// cost returns that of the identity's names and Nodes.
func (u *identityUse) cost() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return int64(u.names.cost + u.nodes)
}

// countNode counts a Node of that cost, or, if it is negative, no longer.
func (u *identityUse) countNode(cost int) {
	if u == nil || cost == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.nodes += cost
	if u.total != nil {
		u.total.Add(int64(cost))
	}
}

// shares reports whether a stream of the identity shares a list with others.
func (u *identityUse) shares(list session.NameList) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.names.shared[list] > 0
}

// The rates of requests that get one answer, and of refused streams: a client can send each on another connection.

const (
	// identityBurst is how many seconds' worth may come at once.
	identityBurst = 5
	// mostIdentityWait is the longest wait of a request. A request that would wait longer is refused.
	mostIdentityWait = time.Second
	// mostPaced is how many identities are paced separately, and how many addresses. All further ones share one pace, which
	// is not the same for both: addresses can be made up.
	mostPaced = 4096
)

// identityPaces are the paces of the identities that recently sent something. The zero value is ready.
type identityPaces struct {
	mu                sync.Mutex
	proven, addresses paces
}

// paces are those of identities, or of addresses.
type paces struct {
	of    map[identityKey]*rate.Limiter
	swept time.Time
}

// take counts a request of an identity, and returns how long it has to wait. The request is refused if that is longer
// than mostIdentityWait.
func (p *identityPaces) take(key identityKey, perSecond int, now time.Time) (wait time.Duration, refused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if key.proven != "" {
		return p.proven.take(key, perSecond, now)
	}
	return p.addresses.take(key, perSecond, now)
}

func (p *paces) take(key identityKey, perSecond int, now time.Time) (wait time.Duration, refused bool) {
	pace := p.of[key]
	if pace == nil && len(p.of) >= mostPaced {
		p.sweep(now)
		if len(p.of) >= mostPaced {
			key = identityKey{}
			pace = p.of[key]
		}
	}
	if pace == nil {
		if p.of == nil {
			p.of = map[identityKey]*rate.Limiter{}
		}
		pace = rate.NewLimiter(rate.Limit(perSecond), identityBurst*perSecond)
		p.of[key] = pace
	}
	reserved := pace.ReserveN(now, 1)
	if wait = reserved.DelayFrom(now); wait <= mostIdentityWait {
		return wait, false
	}
	reserved.CancelAt(now)
	return wait, true
}

// sweep forgets the identities that have sent nothing for long enough. It looks at all of them at most once a second.
// The caller holds identityPaces.mu.
func (p *paces) sweep(now time.Time) {
	if now.Sub(p.swept) < time.Second {
		return
	}
	p.swept = now
	for key, pace := range p.of {
		if pace.TokensAt(now) >= float64(pace.Burst()) {
			delete(p.of, key)
		}
	}
}
