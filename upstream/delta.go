package upstream

import (
	"fmt"
	"maps"
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/wire"
)

// deltaSession is what the client's sides of names and of sets have in common on a delta
// stream. xDS: "Incremental xDS".
type deltaSession struct {
	core    *core
	answers []answer
	size    int // of answers

	asked bool // the first request was sent
	// unlisted is the number of resources that are held and did not fit into
	// initial_resource_versions.
	unlisted int
	// proof: one of the resources that are held is to come again, see session.forceAnswer.
	proof bool
}

// acknowledge returns the requests that answer responses: without changes of subscriptions,
// as Istio takes those for errors.
func (d *deltaSession) acknowledge() (out []proto.Message) {
	for i := range d.answers {
		out = append(out, &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl:       d.core.typeURL,
			ResponseNonce: d.answers[i].nonce,
			ErrorDetail:   d.answers[i].errorDetail(),
		})
	}
	d.answers, d.size = nil, 0
	return out
}

// answer queues the answer to a response.
func (d *deltaSession) answer(r *response, nack string) {
	a := answer{nonce: r.nonce, nack: nack}
	d.answers = append(d.answers, a)
	d.size += a.size()
}

// changes returns what is to be subscribed to and what is to be given up.
func (d *deltaSession) changes(limit int, of topics) (add, drop []*subscription) {
	c := d.core
	room := roomFor(c.typeURL, limit)
	var late []*subscription
	for _, sub := range c.changed {
		switch {
		case of.get(sub.name) != sub:
			// Given up before it was requested.
		case d.asked && of.late(sub):
			late = append(late, sub)
		case sub.wanted && !sub.sent && c.sizeOf(sub) > room:
			refuse(of, sub, tooLong(c.sizeOf(sub)))
		case sub.wanted && (!sub.sent || sub.again):
			sub.answered = sub.answered && !sub.again
			sub.sent, sub.again = true, false
			add = append(add, sub)
		case !sub.wanted && sub.sent:
			sub.sent = false
			drop = append(drop, sub)
		}
	}
	c.changed = late
	return add, drop
}

func (d *deltaSession) begun() bool { return d.asked }

func (d *deltaSession) pending() int { return d.size }

func (d *deltaSession) unfit() string {
	if d.unlisted == 0 {
		return ""
	}
	n := d.unlisted
	d.unlisted = 0
	return fmt.Sprintf("the versions of %d resources are not in initial_resource_versions: "+
		"they come again, and if they are gone that may go unnoticed", n)
}

// deltaNames is the session of names.
type deltaNames struct {
	deltaSession
	names *names
}

func newDeltaNames(n *names) *deltaNames {
	n.opened(false)
	return &deltaNames{deltaSession{core: &n.core}, n}
}

func (d *deltaNames) requests(now time.Time, limit int) []proto.Message {
	out := d.acknowledge()
	add, drop := d.changes(limit, d.names)
	if len(add)+len(drop) == 0 {
		return out
	}
	p := d.packer(limit, out)
	first := !d.asked
	var resumed []*subscription // what is held goes first
	for _, sub := range add {
		switch {
		case first && sub.toList():
			resumed = append(resumed, sub)
		case !first || sub.answer.Resource == nil:
			p.subscribe(sub.name)
		case !p.resubscribe(sub.name, sub.answer.Resource.Name(), d.versionOf(sub.answer.Resource)):
			d.unlisted++
		}
	}
	for _, sub := range resumed {
		sub.listed = true
		if !p.resubscribe(sub.name, sub.name, resumedVersion) {
			d.unlisted++
		}
	}
	d.asked = d.asked || len(add) > 0
	d.names.ask(add, first, now)
	for _, sub := range drop {
		p.unsubscribe(sub.name)
		d.names.forget(sub)
	}
	p.flush()
	return p.out
}

func (d *deltaNames) response(now time.Time, r *response) (cache.Update, string) {
	v := accept(r, false, d.core.speaker())
	d.answer(r, v.nack)
	return d.names.apply(now, &v, false, r.version), v.nack
}

// conclude applies that the control plane has not answered names, which says nothing
// about their existence: it says that itself.
// xDS: "Knowing When a Requested Resource Does Not Exist" of "Incremental xDS".
func (d *deltaNames) conclude(now time.Time, timeout time.Duration, what silence) cache.Update {
	n, u := d.names, d.names.newUpdate()
	for _, sub := range n.overdue(now.Add(-timeout)) {
		n.fail(sub, noAnswer(timeout), &u)
		n.unlisted = n.unlisted || sub.toList()
	}
	if what != mute {
		n.relistResumed()
	}
	return u
}

func (d *deltaNames) forceAnswer() bool {
	for _, sub := range d.names.subs {
		d.proof = d.proof || sub.answer.Resource != nil
	}
	return d.proof
}

// deltaSets is the session of a wildcard and globs.
type deltaSets struct {
	deltaSession
	sets *sets
	// explicit says that something was subscribed to by name on this stream. As long as
	// nothing was, the wildcard is subscribed to in the old form, and cannot be given up.
	explicit bool
}

func newDeltaSets(s *sets) *deltaSets {
	s.opened(false)
	return &deltaSets{deltaSession: deltaSession{core: &s.core}, sets: s}
}

func (d *deltaSets) requests(now time.Time, limit int) []proto.Message {
	out := d.acknowledge()
	add, drop := d.changes(limit, d.sets)
	if len(add)+len(drop) == 0 {
		return out
	}
	p := d.packer(limit, out)
	first := !d.asked
	// The old form: the wildcard is all that is subscribed to. It has no parameters.
	legacy := first && len(add) == 1 && add[0].name == cache.Wildcard && d.core.params == nil
	if first {
		d.list(p)
	}
	for _, sub := range add {
		if legacy {
			p.must()
		} else {
			p.subscribe(sub.name)
		}
	}
	d.asked = d.asked || len(add) > 0
	d.explicit = d.explicit || len(add) > 0 && !legacy
	d.sets.ask(add, first, now)
	d.unsubscribe(p, drop)
	p.flush()
	return p.out
}

// list puts members into the first request of a stream: initial_resource_versions count
// nowhere else. They go first, because of members that are left out nobody says that they
// are gone.
func (d *deltaSets) list(p *deltaPacker) {
	members := d.sets.allMembers()
	if len(members) > 0 {
		p.must()
	}
	listing := d.sets.wildcard != nil && d.sets.members() == nil
	for _, key := range slices.Sorted(maps.Keys(members)) {
		switch r := members[key]; {
		case r.Name() == "":
			// It has nothing to be listed under, and comes again: see dropNameless.
		case p.room(versionSize(r.Name(), r.Version())):
			p.list(r.Name(), d.versionOf(r))
			if listing {
				d.sets.wildcard.list(key, r)
			}
		default:
			d.unlisted++
		}
	}
}

// unsubscribe packs what is given up.
func (d *deltaSets) unsubscribe(p *deltaPacker, drop []*subscription) {
	if slices.ContainsFunc(drop, func(sub *subscription) bool { return sub.name == cache.Wildcard }) {
		if !d.explicit {
			// xDS: "How the client specifies what resources to return": it is there
			// as long as nothing was subscribed to.
			p.subscribe(cache.Wildcard)
			d.explicit = true
		}
		p.flush() // whichever of the lists in one request counts first
	}
	for _, sub := range drop {
		p.unsubscribe(sub.name)
		d.sets.forget(sub)
	}
}

func (d *deltaSets) response(now time.Time, r *response) (cache.Update, string) {
	v := accept(r, d.sets.wildcard != nil, d.core.speaker())
	d.answer(r, v.nack)
	return d.sets.apply(now, &v, false, r.version), v.nack
}

// conclude is that of deltaNames, and applies which first answers have come as a whole.
func (d *deltaSets) conclude(now time.Time, timeout time.Duration, what silence) cache.Update {
	s, u := d.sets, d.sets.newUpdate()
	s.endGraces(now, what, &u)
	for _, sub := range s.overdue(now.Add(-timeout)) {
		if !s.settleHeld(s.find(sub.name), &u) {
			s.fail(sub, noAnswer(timeout), &u)
		}
	}
	return u
}

func (d *deltaSets) forceAnswer() bool {
	d.proof = d.sets.hasMembers()
	return d.proof
}

// versionOf returns the version under which a resource that is held is listed.
func (d *deltaSession) versionOf(r *cache.Resource) string {
	if r.DoNotCache() || d.proof {
		d.proof = false
		return "" // it is to come again, for those who came later; or to go
	}
	return r.Version()
}

// deltaPacker fills requests up to a limit.
type deltaPacker struct {
	typeURL string
	params  cache.Params // with dynamic parameters, names go as locators
	limit   int
	out     []proto.Message

	req    *discoveryv3.DeltaDiscoveryRequest // nil if there is nothing for it yet
	size   int
	filled bool // there is something in it
	// flushed: the first request is complete.
	flushed bool
}

func (d *deltaSession) packer(limit int, out []proto.Message) *deltaPacker {
	return &deltaPacker{typeURL: d.core.typeURL, params: d.core.params, limit: limit, out: out}
}

// must begins a request, if there is none.
func (p *deltaPacker) must() *discoveryv3.DeltaDiscoveryRequest {
	if p.req == nil {
		p.req = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: p.typeURL}
		p.size = proto.Size(p.req)
	}
	return p.req
}

func (p *deltaPacker) flush() {
	if p.req != nil {
		p.out = append(p.out, p.req)
		p.req, p.filled, p.flushed = nil, false, true
	}
}

// room says whether the request has room for n more bytes.
func (p *deltaPacker) room(n int) bool {
	p.must()
	return p.size+n <= p.limit
}

// grow makes room for n bytes, in a new request if need be.
func (p *deltaPacker) grow(n int) *discoveryv3.DeltaDiscoveryRequest {
	if !p.room(n) && p.filled {
		p.flush()
	}
	req := p.must()
	p.size += n
	p.filled = true
	return req
}

func (p *deltaPacker) subscribe(name string) {
	if l := locator(name, p.params); l != nil {
		req := p.grow(sizeMessage(l))
		req.ResourceLocatorsSubscribe = append(req.ResourceLocatorsSubscribe, l)
		return
	}
	req := p.grow(wire.SizeString(name))
	req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, name)
}

func (p *deltaPacker) unsubscribe(name string) {
	if l := locator(name, p.params); l != nil {
		req := p.grow(sizeMessage(l))
		req.ResourceLocatorsUnsubscribe = append(req.ResourceLocatorsUnsubscribe, l)
		return
	}
	req := p.grow(wire.SizeString(name))
	req.ResourceNamesUnsubscribe = append(req.ResourceNamesUnsubscribe, name)
}

// resubscribe subscribes to a name of which a resource is held, and lists that under the
// name that the origin knows it by, if both go into the same request, and that is the first.
func (p *deltaPacker) resubscribe(name, under, version string) (listed bool) {
	size := wire.SizeString(name)
	if l := locator(name, p.params); l != nil {
		size = sizeMessage(l)
	}
	if p.flushed || !p.room(size+versionSize(under, version)) {
		p.subscribe(name)
		return false
	}
	p.list(under, version)
	p.subscribe(name)
	return true
}

// list puts a name with a version into initial_resource_versions.
func (p *deltaPacker) list(name, version string) {
	req := p.must()
	if req.InitialResourceVersions == nil {
		req.InitialResourceVersions = map[string]string{}
	}
	p.filled = true
	if _, there := req.InitialResourceVersions[name]; !there {
		p.size += versionSize(name, version)
	}
	req.InitialResourceVersions[name] = version
}

// versionSize is the length that a name and its version have in a request.
func versionSize(name, version string) int {
	const header = 5 // of an entry, at most
	return header + wire.SizeString(name) + wire.SizeString(version)
}
