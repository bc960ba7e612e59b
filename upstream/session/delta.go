package session

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// deltaSession is the client's side of one type on a delta stream, with its wildcard, globs and
// names. xDS: "Incremental xDS".
type deltaSession struct {
	of      *Topics
	answers []answer
	size    int    // of answers, in bytes
	nonce   string // the latest
	passed  passedOn

	begun bool // the first request was sent
	// explicit says that a name was sent in resource_names_subscribe on this stream. As long as
	// none was, the wildcard is subscribed to in the old form, and cannot be unsubscribed from.
	explicit bool
	// unlisted is the number of held resources that did not fit into
	// initial_resource_versions.
	unlisted int
	// force: the control plane must send one of the held resources again, see Session.ForceAnswer.
	force bool
}

func newDelta(t *Topics) *deltaSession {
	t.opened(false)
	return &deltaSession{of: t}
}

func (d *deltaSession) Requests(now time.Time, limit int) []proto.Message {
	out := d.acknowledge()
	var sets, names changed
	if d.begun && d.of.Both() {
		d.of.Names.noteCrossing()
	}
	if d.of.Sets != nil {
		sets = d.changes(limit, d.of.Sets)
	}
	if d.of.Names != nil {
		names = d.changes(limit, d.of.Names)
	}
	nudged := d.of.takeNudged()
	if sets.none() && names.none() && len(nudged) == 0 {
		return out
	}
	p := d.packer(limit, out)
	first := !d.begun
	d.subscribeSets(now, p, sets.add, len(names.add) == 0)
	d.subscribeNames(now, p, names.add, first)
	d.begun = d.begun || len(sets.add)+len(names.add) > 0
	d.unsubscribe(p, sets.drop)
	d.unsubscribe(p, names.drop)
	p.flush()
	if len(nudged) > 0 {
		for _, name := range nudged {
			p.unsubscribe(name)
		}
		p.flush()
		for _, name := range nudged {
			p.subscribe(name)
		}
		p.flush()
	}
	return p.out
}

// acknowledge returns the ACKs and NACKs. They have no changes of subscriptions, which Istio takes
// for errors.
func (d *deltaSession) acknowledge() (out []proto.Message) {
	for i := range d.answers {
		out = append(out, &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl:       d.of.TypeURL(),
			ResponseNonce: d.answers[i].nonce,
			ErrorDetail:   d.answers[i].errorDetail(),
		})
	}
	d.answers, d.size = nil, 0
	return out
}

// answer queues the ACK or NACK of a response.
func (d *deltaSession) answer(r *Response, nack string) {
	d.nonce = r.Nonce
	a := answer{nonce: r.Nonce, nack: nack}
	d.answers = append(d.answers, a)
	d.size += a.size()
}

func (d *deltaSession) Reject(_, words string) {
	if d.nonce == "" {
		return
	}
	a := answer{nonce: d.nonce, nack: words}
	d.answers = append(d.answers, a)
	d.size += a.size()
}

func (d *deltaSession) PassOn(r Rejection) {
	if d.passed.admit(d.nonce, "", r) {
		d.Reject("", r.Words)
	}
}

// changed are the subscriptions to request, and those to unsubscribe from.
type changed struct{ add, drop []*subscription }

func (c *changed) none() bool { return len(c.add)+len(c.drop) == 0 }

// changes returns the changed subscriptions of the names or the sets.
func (d *deltaSession) changes(limit int, of Subscriptions) (all changed) {
	c := of.common()
	room := roomFor(c.typeURL, limit)
	var late []*subscription
	for _, sub := range c.changed {
		switch {
		case of.get(sub.name) != sub:
			// Given up before it was requested.
		case d.begun && of.late(sub):
			late = append(late, sub)
		case sub.wanted && !sub.sent && c.sizeOf(sub) > room:
			refuse(of, sub, tooLong(c.sizeOf(sub)))
		case sub.wanted && (!sub.sent || sub.again):
			sub.answered, sub.told = sub.answered && !sub.again, false
			sub.sent, sub.again = true, false
			all.add = append(all.add, sub)
		case !sub.wanted && sub.sent:
			sub.sent = false
			all.drop = append(all.drop, sub)
		}
	}
	c.changed = late
	return all
}

func (*deltaSession) Heard(time.Time) bool { return false }

func (*deltaSession) ClustersChanged(time.Time, *Topics) bool { return false }

func (d *deltaSession) Begun() bool { return d.begun }

func (d *deltaSession) Pending() int { return d.size }

func (d *deltaSession) Unfit() string {
	if d.unlisted == 0 {
		return ""
	}
	n := d.unlisted
	d.unlisted = 0
	return fmt.Sprintf("the versions of %d resources are not in initial_resource_versions: "+
		"they come again, and if they are gone that may go unnoticed", n)
}

// subscribeSets packs the subscriptions to sets. The first request lists what is held of
// all sets, before anything else. alone says that there are no subscriptions to names.
func (d *deltaSession) subscribeSets(now time.Time, p *deltaPacker, add []*subscription, alone bool) {
	s := d.of.Sets
	if s == nil {
		return
	}
	first := !d.begun
	if first {
		d.list(p)
	}
	if len(add) == 0 {
		return
	}
	// The old form: only the wildcard is subscribed to, without parameters.
	legacy := first && alone && len(add) == 1 && add[0].name == cache.Wildcard && s.params == nil
	for _, sub := range add {
		if legacy {
			p.must()
		} else {
			p.subscribe(sub.name)
		}
	}
	d.explicit = d.explicit || !legacy
	if first {
		s.nudgeLater(now)
	}
	s.ask(add, first, now)
}

// subscribeNames packs the subscriptions to names, with the versions of held resources.
func (d *deltaSession) subscribeNames(now time.Time, p *deltaPacker, add []*subscription, first bool) {
	if len(add) == 0 {
		return
	}
	var resumed []*subscription // they follow the names of held resources
	for _, sub := range add {
		held := cmp.Or(sub.answer.Resource, sub.recalled)
		switch {
		case first && held == nil && sub.toList():
			resumed = append(resumed, sub)
		case !first || held == nil || d.of.Sets != nil && d.of.Sets.member(sub.name) != nil:
			p.subscribe(sub.name)
		default:
			version := d.versionOf(held)
			if !p.resubscribe(sub.name, held.Name(), version) {
				sub.recalled = nil // the control plane sends it again
				d.unlisted++
				continue
			}
			sub.told = version != "" && sub.answered && sub.via == ""
		}
	}
	for _, sub := range resumed {
		sub.listed = true
		if !p.resubscribe(sub.name, sub.name, resumedVersion) {
			d.unlisted++
		}
	}
	d.explicit = true
	if first {
		d.of.Names.nudgeLater(now)
		if !d.of.Names.relisted {
			d.of.Names.missedUntil = now.Add(resumeMoment)
		}
	}
	d.of.Names.ask(add, first, now)
}

// list puts members into initial_resource_versions of the first request of a stream, the only one that
// can have them. Members go before names, because the control plane does not report the removal of a
// member that is left out.
func (d *deltaSession) list(p *deltaPacker) {
	s := d.of.Sets
	members, recalled := s.allMembers(), s.recalled()
	if len(members)+len(recalled) > 0 {
		p.must()
	}
	if c := s.wildcard; c != nil && c.silent {
		d.force, c.silent = c.doubted == "", false
	}
	listing := s.wildcard != nil && s.members() == nil
	for _, key := range slices.Sorted(maps.Keys(members)) {
		switch r := members[key]; {
		case r.Name() == "":
			// It cannot be listed without a name, and comes again: see dropNameless.
		case p.room(versionSize(r.Name(), r.OriginVersion())):
			version := d.versionOf(r)
			if s.wildcard != nil && key == s.wildcard.doubted {
				version = ""
			}
			p.list(r.Name(), version)
			if version == "" && s.wildcard != nil {
				s.wildcard.invite(key)
			}
			if listing {
				s.wildcard.list(key, r)
			}
		default:
			d.unlisted++
		}
	}
	d.listRecalled(p, recalled)
	if c := s.wildcard; c != nil && c.resumed && d.unlisted == 0 {
		c.told = true
	}
}

// listRecalled lists recalled resources. The control plane sends those again for which there is no room.
func (d *deltaSession) listRecalled(p *deltaPacker, recalled map[string]*cache.Resource) {
	for _, key := range slices.Sorted(maps.Keys(recalled)) {
		r := recalled[key]
		if p.room(versionSize(r.Name(), r.OriginVersion())) {
			p.list(r.Name(), d.versionOf(r))
			continue
		}
		d.unlisted++
		for _, c := range d.of.Sets.inOrder() {
			delete(c.listed, key)
		}
	}
}

// unsubscribe packs the names and sets to unsubscribe from.
func (d *deltaSession) unsubscribe(p *deltaPacker, drop []*subscription) {
	if slices.ContainsFunc(drop, func(sub *subscription) bool { return sub.name == cache.Wildcard }) {
		if !d.explicit {
			// xDS: "How the client specifies what resources to return": the old form of the
			// wildcard holds as long as nothing was subscribed to.
			p.subscribe(cache.Wildcard)
			d.explicit = true
		}
		p.flush() // the order of the two lists within one request is not defined
	}
	for _, sub := range drop {
		p.unsubscribe(sub.name)
		d.of.forget(sub)
	}
}

func (d *deltaSession) Response(now time.Time, r *Response) (cache.Update, string) {
	v := accept(r, d.of.Sets != nil && d.of.Sets.wildcard != nil, d.of.core().speaker(), d.of.core().check)
	d.answer(r, v.nack)
	u := d.of.apply(now, &v, false, r.Version)
	if n := d.of.Names; n != nil {
		n.confirmLater(now, v.size, &u)
	}
	return u, v.nack
}

// Conclude applies that the control plane has not answered. That does not mean that a resource does not
// exist, as delta control planes report that. It also completes first answers whose grace has ended.
// xDS: "Knowing When a Requested Resource Does Not Exist" of "Incremental xDS".
func (d *deltaSession) Conclude(now time.Time, timeout time.Duration, what Silence) cache.Update {
	u, then := d.of.NewUpdate(), now.Add(-timeout)
	if s := d.of.Sets; s != nil {
		s.endGraces(now, what, &u)
		s.nudge(now)
		for _, sub := range s.overdue(then) {
			if !s.settleHeld(s.find(sub.name), &u) {
				s.fail(sub, noAnswer(timeout), &u)
			}
		}
	}
	if n := d.of.Names; n != nil {
		for _, sub := range n.overdue(then) {
			switch {
			case sub.behind && what == Mute:
				n.wait([]*subscription{sub}, now)
				continue
			case sub.answered, sub.removed:
				n.settleCrossing(sub, &u)
				continue
			}
			n.fail(sub, noAnswer(timeout), &u)
			n.unlisted = n.unlisted || sub.toList()
		}
		if what != Mute {
			n.relistResumed()
		}
		n.nudge(now)
	}
	return u
}

func (d *deltaSession) ForceAnswer() bool {
	d.force = d.of.Sets != nil && d.of.Sets.hasMembers() || d.of.Names != nil && d.of.Names.hasResources()
	return d.force
}

// versionOf returns the version with which a held resource is listed. It is empty if the control plane
// must send the resource, or its removal, again.
func (d *deltaSession) versionOf(r *cache.Resource) string {
	if r.DoNotCache() || d.force {
		d.force = false
		return ""
	}
	return r.OriginVersion()
}

// deltaPacker fills requests up to a limit.
type deltaPacker struct {
	typeURL string
	params  cache.Params // with dynamic parameters, names go as locators
	limit   int
	out     []proto.Message

	req    *discoveryv3.DeltaDiscoveryRequest // nil if there is nothing for it yet
	size   int
	filled bool // req is not empty
	// flushed: the first request is complete.
	flushed bool
}

func (d *deltaSession) packer(limit int, out []proto.Message) *deltaPacker {
	c := d.of.core()
	return &deltaPacker{typeURL: c.typeURL, params: c.params, limit: limit, out: out}
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

// room reports whether the request has room for n more bytes.
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

// resubscribe subscribes to a name, and lists its held resource, under which name the control plane knows
// it. It lists the resource only if both fit into the first request.
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

// versionSize returns the length of a name and its version in a request.
func versionSize(name, version string) int {
	const header = 5 // of an entry, at most
	return header + wire.SizeString(name) + wire.SizeString(version)
}
