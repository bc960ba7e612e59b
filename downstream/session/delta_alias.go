package session

import (
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
)

// Aliases. A delta client is sent a resource once, under the resource's own name. Its aliases are the names by which
// this client requested it, whatever other clients requested. denied.go decides whether the client may have what an
// alias stands for.
// xDS: "Resource names" of "Incremental xDS".

// aliasKey returns the key of a resource if a name is an alias of it, or if the client requests it by aliases; empty
// for any other.
func (d *Delta) aliasKey(sub *nameSub, res *cache.Resource) string {
	if res.Alias() {
		return sub.ref().of(res.Name()).key()
	}
	if len(d.aliases) == 0 || len(d.aliases[sub.key()]) == 0 {
		return ""
	}
	return sub.key()
}

// sendAliased adds to r a resource that the client requests by aliases, for all names by which it does, and reports
// whether it fitted. own is the resource's key.
func (d *Delta) sendAliased(r *Response, sub *nameSub, own string, st *cache.State) bool {
	res, form := st.Resource, sub.form()
	name, group := res.Name(), d.requestedNames(sub, own, res)
	// If the client has the resource from an earlier stream, it need not know which names that resource answers: so it
	// is sent again.
	held := sub.sent() == sentResource && sub.Note == d.mark(res) && (sub.sentErr() == 0 || st.Err != nil)
	if !held || sub.heartbeatDue(st) {
		var aliases []string
		size := 0
		for _, s := range group {
			const overhead = 16
			size += overhead + len(s.name())
			if s.key() != own {
				aliases = append(aliases, s.name())
			}
			if rare := s.rare(); rare != nil {
				size += overhead + len(rare.sentAs) // the resource may be removed under that name at the same time
			}
		}
		slices.Sort(aliases)
		if r.own[own] != 0 || !r.fits(res.Size(name, form)+size, d.Limit) {
			return false // a response can have a resource only once
		}
		if held {
			form |= cache.Heartbeat
		} else {
			r.noteChanged(res)
		}
		r.from(st.Origin)
		r.addAliased(name, res, form, aliases)
		r.noteOwn(own, d.mark(res))
		for _, s := range group {
			d.sentUnder(r, s, name, res)
		}
		d.knowsAll(group, name)
	}
	if st.Err != nil && sub.sentErr() != markError(st.Err) {
		return d.sendError(r, sub, st.Err)
	}
	return true
}

// requestedNames returns the names by which the client requests a resource, including own if it does.
func (d *Delta) requestedNames(sub *nameSub, own string, res *cache.Resource) (group []*nameSub) {
	same := func(s *nameSub) bool {
		st := s.state()
		return s == sub || st.Status == cache.Present && d.mark(st.Resource) == d.mark(res)
	}
	for _, s := range d.aliases[own] {
		if same(s) {
			group = append(group, s)
		}
	}
	if s := d.named.get(own); s != nil && same(s) {
		group = append(group, s)
	}
	if !slices.Contains(group, sub) {
		group = append(group, sub)
	}
	return group
}

// knowsAll records that the client has a resource, for all names by which it requests it.
func (d *Delta) knowsAll(group []*nameSub, name string) {
	for _, s := range group {
		st := s.state()
		s.has(name)
		d.knows(s, &st)
	}
	delete(d.initial, name)
}

// sentUnder records under which name a subscription's resource goes to the client. If the client had it under another
// name, the same response removes that, unless something else gives it: of two resources with the same domains Envoy
// would accept neither.
func (d *Delta) sentUnder(r *Response, sub *nameSub, name string, res *cache.Resource) {
	rare := sub.rare()
	if rare == nil && name == sub.name() {
		return
	}
	rare = sub.makeRare()
	was := rare.sentAs
	if was == "" && sub.sent() == sentResource {
		was = sub.name()
	}
	switch {
	case was == "":
	case was == name:
		if rare.locator && rare.constraints != res.Constraints() {
			r.addRemovedVariant(name, rare.constraints)
		}
	case d.given(rare.resourceRef.of(was), sub):
		d.noteFormer(rare.resourceRef.of(was), rare.constraints)
	default:
		a := rare.resourceRef.of(was)
		d.addRemoved(r, a, rare.constraints)
		delete(d.initial, was)
		// The client also requests it by its own name, which has nothing now: its removal may come only later.
		if own := d.named.get(a.key()); own != nil && own != sub && own.sent() == sentResource {
			own.setSent(sentNothing)
		}
	}
	sub.has(name)
}

// has records under which name the client has the resource of a subscription.
func (s *nameSub) has(name string) {
	switch r := s.rare(); {
	case name != s.name():
		s.makeRare().sentAs = strings.Clone(name)
	case r != nil:
		r.sentAs = ""
	}
}

// noteFormer records a name under which the client has a resource, after the subscription that gave the name has come
// to stand for something else. Another subscription still gives the name, but may also come to stand for something else
// before it sends the name: then removeFormer removes the name.
func (d *Delta) noteFormer(a resourceRef, constraints string) {
	a.name = strings.Clone(a.name)
	put(&d.former, a, constraints)
}

// sendsItself reports that the client was sent a resource under its own name, and will be sent its changes.
func (d *Delta) sendsItself(a resourceRef) bool {
	s := d.named.get(a.key())
	return s != nil && s.sent() == sentResource && (s.rare() == nil || s.rare().sentAs == "")
}

// hasAs reports that the client was sent, under that name, what the subscription stands for.
func (s *nameSub) hasAs(name string) bool {
	r := s.rare()
	return r != nil && r.sentAs == name
}

// given reports that the client has a resource, or will get it, because of a subscription other than but.
func (d *Delta) given(a resourceRef, but *nameSub) bool {
	key := a.key()
	if s := d.named.get(key); s != nil && s != but && s.state().Status == cache.Present {
		return true
	}
	if slices.ContainsFunc(d.aliases[key], func(s *nameSub) bool { return s != but }) {
		return true
	}
	return slices.ContainsFunc(d.covering(a), func(set *setSub) bool {
		return !present(set) || set.set.Member(memberKey(a.name)) != nil
	})
}

// addRemoved adds a removal to r, once for all names by which the client requested the resource.
func (d *Delta) addRemoved(r *Response, a resourceRef, constraints string) {
	if r.removed[a.key()] {
		return
	}
	if d.aliases != nil {
		put(&r.removed, a.key(), true)
	}
	if a.locator {
		r.addRemovedVariant(a.name, constraints)
	} else {
		r.addRemoved(a.name)
	}
}

func (r *Response) noteOwn(key string, mark uint64) {
	put(&r.own, key, mark|1) // not 0
}

// hasOwn is for a resource that a set gives and that the client also requests by aliases. It reports whether r has the
// same resource, or another one, under its key.
func (r *Response) hasOwn(key string, mark uint64) (same, other bool) {
	is := r.own[key]
	return is == mark|1, is != 0 && is != mark|1
}
