package session

import (
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
)

// Aliases. A delta client is sent a resource once, under the resource's own name. Its
// aliases are the names by which this client requested it, whatever others requested.
// Whether the client may have what an alias stands for is decided in denied.go.
// xDS: "Resource names" of "Incremental xDS".

// aliasKey returns the key of a resource of which a name is an alias, or which has
// aliases that the client asks for; empty for any other.
func (d *Delta) aliasKey(sub *nameSub, res *cache.Resource) string {
	if res.Alias() {
		return sub.ref().of(res.Name()).key()
	}
	if len(d.aliases) == 0 || len(d.aliases[sub.key()]) == 0 {
		return ""
	}
	return sub.key()
}

// sendAliased adds to r a resource that the client asks for by aliases, for all names by
// which it does, and says whether it fitted. own is its key.
func (d *Delta) sendAliased(r *Response, sub *nameSub, own string, st *cache.State) bool {
	res, form := st.Resource, sub.form()
	name, group := res.Name(), d.askedFor(sub, own, res)
	// That the client has the resource from an earlier stream does not say that it knows of
	// which names that is the answer: so it is sent again.
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
				size += overhead + len(rare.sentAs) // may be removed with it
			}
		}
		slices.Sort(aliases)
		if r.own[own] != 0 || !r.fits(res.Size(name, form)+size, d.Limit) {
			return false // in one response a resource is there once
		}
		if held {
			form |= cache.Heartbeat
		} else {
			r.noteChanged(res)
		}
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

// askedFor returns the names by which the client asks for a resource, own among them if
// it does so.
func (d *Delta) askedFor(sub *nameSub, own string, res *cache.Resource) (group []*nameSub) {
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

// knowsAll notes that the client has a resource, by all names by which it asks for it.
func (d *Delta) knowsAll(group []*nameSub, name string) {
	for _, s := range group {
		st := s.state()
		s.has(name)
		d.knows(s, &st)
	}
	delete(d.initial, name)
}

// sentUnder notes under which name a subscription's resource goes to the client. What it
// had by that under another name goes, in the same response, unless something else gives
// it: of two with the same domains Envoy would take neither.
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
		d.addRemoved(r, rare.resourceRef.of(was), rare.constraints)
		delete(d.initial, was)
	}
	sub.has(name)
}

// has notes under which name the client has what a subscription gives.
func (s *nameSub) has(name string) {
	switch r := s.rare(); {
	case name != s.name():
		s.makeRare().sentAs = strings.Clone(name)
	case r != nil:
		r.sentAs = ""
	}
}

// noteFormer notes that the client has something by a name that does not give it any more,
// and that another does, which may come to stand for something else before the removal is sent.
func (d *Delta) noteFormer(a resourceRef, constraints string) {
	a.name = strings.Clone(a.name)
	put(&d.former, a, constraints)
}

// sendsItself says that the client was sent a resource under its own name, and will be sent
// what becomes of it.
func (d *Delta) sendsItself(a resourceRef) bool {
	s := d.named.get(a.key())
	return s != nil && s.sent() == sentResource && (s.rare() == nil || s.rare().sentAs == "")
}

// hasAs says that the client was sent what the name stands for under that name.
func (s *nameSub) hasAs(name string) bool {
	r := s.rare()
	return r != nil && r.sentAs == name
}

// given says that the client asks for something in another way than by a subscription,
// and has it, or will.
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

// addRemoved adds a removal to r, once for all names by which the client requested it.
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

// hasOwn says whether a resource that a set gives is in r, as the client asks for it by
// aliases, and whether that is another one.
func (r *Response) hasOwn(key string, mark uint64) (same, other bool) {
	is := r.own[key]
	return is == mark|1, is != 0 && is != mark|1
}
