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

// deltaSession is the client's side of one type on a delta stream.
// xDS: "Incremental xDS".
type deltaSession struct {
	subs    *subscriptions
	answers []answer
	size    int // of answers

	asked bool // the first request was sent
	// explicit says that a name was subscribed to on this stream. As long as none
	// was, the wildcard is subscribed to in the old form, and cannot be given up.
	explicit bool
	// unlisted is the number of resources that are held and did not fit into
	// initial_resource_versions.
	unlisted int
	// proof: one of the resources that are held is to come again, see session.forceAnswer.
	proof bool
}

func newDeltaSession(subs *subscriptions) *deltaSession {
	subs.opened(false)
	return &deltaSession{subs: subs}
}

func (d *deltaSession) requests(now time.Time, limit int) []proto.Message {
	var out []proto.Message
	for i := range d.answers {
		// Without changes of subscriptions: Istio takes those for errors.
		out = append(out, &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl:       d.subs.typeURL,
			ResponseNonce: d.answers[i].nonce,
			ErrorDetail:   d.answers[i].errorDetail(),
		})
	}
	d.answers, d.size = nil, 0

	add, drop := d.changes(limit)
	if len(add)+len(drop) == 0 {
		return out
	}
	p := deltaPacker{subs: d.subs, limit: limit, out: out, proof: &d.proof}
	first := !d.asked
	if first {
		d.unlisted += p.list()
	}
	d.subscribe(&p, add, first)
	d.subs.ask(add, first, now)
	d.unsubscribe(&p, drop)
	p.flush()
	return p.out
}

// subscribe packs what is subscribed to.
func (d *deltaSession) subscribe(p *deltaPacker, add []*subscription, first bool) {
	s := d.subs
	// The old form: the wildcard is all that is subscribed to. It has no parameters.
	legacy := first && len(add) == 1 && add[0] == s.wildcard && s.params == nil
	var resumed []*subscription // what is held goes first
	for _, sub := range add {
		switch {
		case legacy:
			p.must()
		case first && sub.toList():
			resumed = append(resumed, sub)
		case !first || s.member(sub.name) != nil || sub.answer.Resource == nil:
			p.subscribe(sub.name)
		case !p.resubscribe(sub.name, sub.answer.Resource):
			d.unlisted++
		case s.members() == nil && s.wildcard != nil:
			s.wildcard.set.list(sub.name, sub.answer.Resource)
		}
	}
	for _, sub := range resumed {
		sub.listed = true
		if !p.resume(sub.name) {
			d.unlisted++
		}
	}
	d.asked = d.asked || len(add) > 0
	d.explicit = d.explicit || len(add) > 0 && !legacy
}

// unsubscribe packs what is given up.
func (d *deltaSession) unsubscribe(p *deltaPacker, drop []*subscription) {
	wildcard := slices.IndexFunc(drop, func(sub *subscription) bool { return sub.name == cache.Wildcard })
	if wildcard >= 0 {
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
		d.subs.forget(sub)
	}
}

// changes returns what is to be subscribed to and what is to be given up.
func (d *deltaSession) changes(limit int) (add, drop []*subscription) {
	s := d.subs
	room := roomFor(s.typeURL, limit)
	var late []*subscription
	for _, sub := range s.changed {
		switch {
		case s.get(sub.name) != sub:
			// Given up before it was asked for.
		case d.asked && s.late(sub):
			late = append(late, sub)
		case sub.wanted && !sub.sent && s.size(sub) > room:
			s.refuse(sub, tooLong(s.size(sub)))
		case sub.wanted && (!sub.sent || sub.again):
			sub.answered = sub.answered && !sub.again
			sub.sent, sub.again = true, false
			add = append(add, sub)
		case !sub.wanted && sub.sent:
			sub.sent = false
			drop = append(drop, sub)
		}
	}
	s.changed = late
	return add, drop
}

func (d *deltaSession) response(now time.Time, r *response) (cache.Update, string) {
	v := accept(r, d.subs.wildcard != nil, d.subs.speaker())
	d.answers = append(d.answers, answer{nonce: r.nonce, nack: v.nack})
	d.size += d.answers[len(d.answers)-1].size()
	return d.subs.apply(now, &v, false, r.version), v.nack
}

// conclude tells what the control plane has not answered, which says nothing
// about its existence: it says that itself.
// xDS: "Knowing When a Requested Resource Does Not Exist" of "Incremental xDS".
func (d *deltaSession) conclude(now time.Time, timeout time.Duration, what silence) cache.Update {
	u := d.subs.newUpdate()
	d.subs.endGraces(now, what, &u)
	for _, sub := range d.subs.overdue(now.Add(-timeout)) {
		if !d.subs.settleHeld(sub, &u) {
			d.subs.fail(sub, noAnswer(timeout), &u)
			d.subs.unlisted = d.subs.unlisted || sub.toList()
		}
	}
	if what != mute {
		d.subs.relistResumed()
	}
	return u
}

func (d *deltaSession) forceAnswer() bool {
	d.proof = d.subs.hasMembers()
	for _, sub := range d.subs.names {
		d.proof = d.proof || sub.answer.Resource != nil
	}
	return d.proof
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

// deltaPacker fills requests up to a limit.
type deltaPacker struct {
	subs  *subscriptions // if they have dynamic parameters, names go as locators
	limit int
	out   []proto.Message

	req    *discoveryv3.DeltaDiscoveryRequest // nil if there is nothing for it yet
	size   int
	filled bool // there is something in it
	// flushed: the first request is complete.
	flushed bool
	proof   *bool // deltaSession.proof
}

// must begins a request, if there is none.
func (p *deltaPacker) must() *discoveryv3.DeltaDiscoveryRequest {
	if p.req == nil {
		p.req = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: p.subs.typeURL}
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
	if l := locator(name, p.subs.params); l != nil {
		req := p.grow(sizeMessage(l))
		req.ResourceLocatorsSubscribe = append(req.ResourceLocatorsSubscribe, l)
		return
	}
	req := p.grow(wire.SizeString(name))
	req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, name)
}

func (p *deltaPacker) unsubscribe(name string) {
	if l := locator(name, p.subs.params); l != nil {
		req := p.grow(sizeMessage(l))
		req.ResourceLocatorsUnsubscribe = append(req.ResourceLocatorsUnsubscribe, l)
		return
	}
	req := p.grow(wire.SizeString(name))
	req.ResourceNamesUnsubscribe = append(req.ResourceNamesUnsubscribe, name)
}

// list puts the members of the wildcard and of globs into the first request of a stream:
// initial_resource_versions count nowhere else. They go before names, because of
// members that are left out nobody says that they are gone. It returns how many
// are left out.
func (p *deltaPacker) list() (unlisted int) {
	members := p.subs.allMembers()
	if len(members) > 0 {
		p.must()
	}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		switch r := members[key]; {
		case r.Name() == "":
			// It has nothing to be listed under, and comes again: see dropNameless.
		case p.room(versionSize(r.Name(), r.Version())):
			p.version(r)
		default:
			unlisted++
		}
	}
	p.subs.list(members, p.listed)
	return unlisted
}

// listed says whether a resource is in the first request.
func (p *deltaPacker) listed(r *cache.Resource) bool {
	_, ok := p.must().GetInitialResourceVersions()[r.Name()]
	return ok
}

// resubscribe subscribes to a name of which a resource is held, and lists it if
// that goes into the same request, and that is the first.
func (p *deltaPacker) resubscribe(name string, r *cache.Resource) (listed bool) {
	size := wire.SizeString(name)
	if l := locator(name, p.subs.params); l != nil {
		size = sizeMessage(l)
	}
	if p.flushed || !p.room(size+versionSize(r.Name(), r.Version())) {
		p.subscribe(name)
		return false
	}
	p.version(r)
	p.subscribe(name)
	return true
}

// version lists a resource, under the name that the origin knows it by.
func (p *deltaPacker) version(r *cache.Resource) {
	version := r.Version()
	if r.DoNotCache() || *p.proof {
		*p.proof = false
		version = "" // it is to come again, for those who came later; or to go
	}
	p.put(r.Name(), version)
}
