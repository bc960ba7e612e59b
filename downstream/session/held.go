package session

import (
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// What a client holds, for CSDS and the admin listener. It is computed from state that sessions have in any case.

// HeldState is the state of a resource that a client has subscribed to, at the client.
type HeldState uint8

// The states of a resource at a client.
const (
	// Requested: the client was sent nothing about it yet.
	Requested HeldState = iota
	// Unanswered: it was sent, and neither ACKed nor NACKed yet.
	Unanswered
	Acked
	Nacked
	// DoesNotExist: the client was sent that it does not exist.
	DoesNotExist
	// Failed: the client was sent an error, or its name is refused with one.
	Failed
	// TimedOut: the control plane has not answered in time.
	TimedOut
)

// String returns the state in lower case.
func (s HeldState) String() string {
	return [...]string{"requested", "unanswered", "acked", "nacked", "does_not_exist", "failed", "timed_out"}[s]
}

// Held is one subscription to a name, or one member of a wildcard or glob, as the client has it.
type Held struct {
	TypeURL string
	// Subscription and Name are spelled as the client spells them. Name is empty for the wildcard or the glob itself;
	// otherwise it is the resource's.
	Subscription, Name string
	// Key is the topic that the client watches: that of the name, or of the wildcard or glob. It is zero if the name is
	// refused.
	Key   cache.Key
	State HeldState
	// Resource is what the client has accepted, or was sent last and has not answered; nil if that is nothing, or not
	// remembered. Rejected is what it has NACKed, if the topic still has that.
	Resource, Rejected *cache.Resource
	// Version is the version of Resource, or the version that the client states; empty if not known.
	Version string
	// Err is why the resource is not there, or why no newer one could be fetched.
	Err *cache.Error
	// NACK is set if State is Nacked. It may be nil even then, if the NACK was long ago.
	NACK *Rejection
	// SentAt is when the response that has not been ACKed was sent, by the stream's clock; 0 if there is none.
	SentAt uint32
	// Since is when the relay received the resource, or learned that there is none, in nanoseconds since the epoch; 0
	// if not known.
	Since int64
	// Pending: there is something newer that the client was not sent yet.
	Pending bool
	// Stale: it is from before the relay was started, and no control plane has confirmed it since.
	Stale bool
	// Covered: another subscription of the client owns the name, and has it too.
	Covered bool
	// Members is how many members a wildcard or glob has.
	Members int
}

// Walk goes through what a client holds of a type, a piece at a time. The stream may be unlocked between two pieces:
// what changes then may come twice, and what ends is left out.
type Walk struct {
	subs *subscriptions
	// inFlight iterates over the responses without an answer.
	inFlight func(func(*sentResponse) bool)

	sets  []*setSub
	from  cache.SetPosition // in the first of the sets
	begun bool              // the first set itself is done
	bare  bool              // without members
	page  []cache.SetMember

	list  NameList // of the group; nil without one
	taken NameBits // the names of the list that are in own
	next  int      // in the list

	own []*nameSub
}

// Walk begins a walk. The caller holds the stream.
func (s *SotW) Walk() *Walk { return s.walk(s.inFlight) }

// Walk begins a walk. The caller holds the stream.
func (d *Delta) Walk() *Walk { return d.walk(d.inFlight) }

func (s *subscriptions) walk(inFlight func(func(*sentResponse) bool)) *Walk {
	w := &Walk{subs: s, inFlight: inFlight}
	w.sets = slices.AppendSeq(w.sets, s.sets())
	w.own = slices.AppendSeq(make([]*nameSub, 0, s.named.table.Len()), s.named.own())
	if m := s.named.shared; m != nil {
		w.list, w.taken = m.group.List(), slices.Clone(m.taken)
	}
	return w
}

// LeaveOutMembers leaves out the members of sets from now on.
func (w *Walk) LeaveOutMembers() { w.bare = true }

// Next appends about n more to out; nothing at the end. The caller holds the stream.
func (w *Walk) Next(n int, out []Held) []Held {
	most := len(out) + n
	for len(out) < most && len(w.sets) > 0 {
		out = w.ofSet(most-len(out), out)
	}
	for ; len(out) < most && w.list != nil && w.next < len(w.list.All()); w.next++ {
		if i := uint32(w.next); !w.taken.Has(i) { //nolint:gosec // a request has fewer
			out = w.ofListed(i, out)
		}
	}
	for len(out) < most && len(w.own) > 0 {
		if sub := w.own[0]; !sub.is(hasEnded) {
			out = append(out, w.ofName(sub))
		}
		w.own = w.own[1:]
	}
	return out
}

// ofSet appends the first set, and then up to n of its members.
func (w *Walk) ofSet(n int, out []Held) []Held {
	set := w.sets[0]
	end := func() { w.sets, w.from, w.begun = w.sets[1:], cache.SetPosition{}, false }
	if set.ended {
		end()
		return out
	}
	if !w.begun {
		w.begun = true
		for _, name := range set.names() {
			out = append(out, w.ofSetItself(set, name))
		}
	}
	if set.set == nil || w.bare {
		end()
		return out
	}
	before := w.from
	w.page, w.from = set.set.Page(&set.SetWatch, w.from, max(n, 1), w.page[:0])
	if len(w.page) == 0 && w.from == before {
		end()
		return out
	}
	seen, _ := set.Seen()
	stale, name := set.set.Stale(), set.names()[0]
	for i := range w.page {
		if h, ok := w.ofMember(set, &w.page[i], seen); ok {
			h.Subscription, h.Stale = name, stale && h.Resource != nil
			out = append(out, h)
		}
	}
	clear(w.page)
	return out
}

// ofSetItself returns what a client has of a wildcard or glob as a whole.
func (w *Walk) ofSetItself(set *setSub, name string) Held {
	h := Held{TypeURL: w.subs.typeURL, Subscription: name}
	status, err := set.status()
	h.Err = err
	if set.set != nil {
		h.Key, h.Members, h.Stale = set.set.Key(), set.set.Len(), set.set.Stale()
	}
	seen, from := set.Seen()
	switch {
	case set.set == nil, status == cache.Failed:
		h.State = failed(err)
	case set.fresh && seen == 0, status != cache.Present:
		h.State = Requested
	default:
		h.State = w.answerTo(&h, set, func(*span) bool { return true }, "")
	}
	if h.State == Nacked {
		if r := w.subs.nacks.standingIn(set); r != nil {
			h.NACK, h.SentAt = r, r.SentAt
		} else {
			h.State, h.NACK, h.SentAt = Acked, nil, 0
		}
	}
	h.Pending = set.queued || from < seen
	return h
}

// ofMember returns what a client has of a member; ok is false if that is nothing, and nothing is to come.
func (w *Walk) ofMember(set *setSub, m *cache.SetMember, seen uint64) (h Held, ok bool) {
	h = Held{TypeURL: w.subs.typeURL, Key: set.set.Key(), Err: m.Err}
	if m.Resource == nil {
		h.Name, h.State = m.Key, failed(m.Err)
		if set.set.as != "" {
			h.Name = set.set.spelled(m.Key)
		}
		return h, true
	}
	h.Name = set.set.nameOf(m.Resource)
	h.Covered = w.covered(set, h.Name)
	has := m.Has(seen)
	switch {
	case m.Removed && (!has || m.Changed <= seen), m.Withheld:
		return h, false
	case !has:
		h.State, h.Pending = Requested, true
	case m.Changed > seen:
		// What the client has is not in the cache any more.
		h.State, h.Pending = Acked, true
	default:
		name := ""
		if !w.subs.sotw {
			name = h.Name
		}
		h.State = w.answerTo(&h, set, func(p *span) bool { return p.has(m.Changed) }, name)
		h.Since = m.Since
		if h.State == Nacked {
			h.Rejected = m.Resource
			break
		}
		h.Resource, h.Version = m.Resource, m.Resource.Version()
		if _, is := set.heldBack[h.Name]; is {
			h.Resource, h.Version, h.Pending, h.Since = nil, set.initial[h.Name], true, 0
		}
		if set.HasApart() && set.set.Apart(&set.SetWatch, h.Name) {
			h.Resource, h.Version, h.Pending, h.Since = nil, "", true, 0
		}
	}
	return h, true
}

// answerTo returns the client's answer to the span of a set for which is returns true. set is nil for the group. name
// is empty if the names in the responses do not matter.
func (w *Walk) answerTo(h *Held, set *setSub, is func(*span) bool, name string) HeldState {
	for r := range w.inFlight {
		if name != "" && !r.mayHave(name) {
			continue
		}
		var sent bool
		if set == nil {
			flight := w.subs.named.shared.inFlight()
			sent = is(&flight)
		} else {
			sent = slices.ContainsFunc(set.spans, func(p span) bool { return p.number == r.number && is(&p) })
		}
		if sent {
			h.SentAt = r.at
			return Unanswered
		}
	}
	if r := w.subs.nacks.find(set, is, name); r != nil {
		h.NACK, h.SentAt = r, r.SentAt
		return Nacked
	}
	return Acked
}

// covered reports whether another subscription owns a name that is a member of a set.
func (w *Walk) covered(set *setSub, name string) bool {
	s, a := w.subs, set.ref.of(name)
	if sub, ok := s.named.table.Get(a.key(), (*nameSub).key); ok && sub.meansSomething() {
		return true
	}
	if !s.overlaps(set) {
		return false
	}
	_, by, _ := first(memberKey(name), s.covering(a)...)
	return by != nil && by != set
}

// ofListed appends what a client has of a name that it shared with others when the walk began.
func (w *Walk) ofListed(i uint32, out []Held) []Held {
	name := w.list.All()[i]
	m := w.subs.named.shared
	if m == nil || m.group.List() != w.list || !m.has(i) {
		if sub, ok := w.subs.named.table.Get(name, (*nameSub).key); ok {
			out = append(out, w.ofName(sub))
		}
		return out
	}
	e, mark, changed := m.group.SentAt(i, m.sentUpTo, m.OnNew)
	st := e.State()
	h := Held{TypeURL: w.subs.typeURL, Subscription: name, Name: name, Key: e.Key(), Err: st.Err}
	if mark == 0 {
		mark = m.before.of(i)
	}
	if mark == 0 {
		h.Pending = st.Status != cache.Requested
		return append(out, h)
	}
	h.Pending = changed
	res := w.subs.heldOf(&st, mark)
	at := m.group.ChangedAt(i, m.OnNew)
	h.State = w.answerTo(&h, nil, func(p *span) bool { return p.has(at) }, name)
	h.setResource(res, &st)
	return append(out, h)
}

// setResource sets what the client has.
func (h *Held) setResource(r *cache.Resource, st *cache.State) {
	if r != nil && r == st.Resource {
		h.Since = st.Since
	}
	if h.State == Nacked {
		h.Rejected = r
		return
	}
	if h.Resource = r; r != nil {
		h.Version = r.Version()
		h.Stale = st.Stale && r == st.Resource
	}
}

// heldOf returns the resource of an entry that has a mark, nil if none has.
func (s *subscriptions) heldOf(st *cache.State, mark uint64) *cache.Resource {
	for _, r := range []*cache.Resource{st.Resource, st.Previous} {
		if r != nil && s.mark(r) == mark {
			return r
		}
	}
	return nil
}

// ofName returns what a client has of a name that it watches by itself.
func (w *Walk) ofName(sub *nameSub) Held {
	h := Held{TypeURL: w.subs.typeURL, Subscription: sub.name(), Name: sub.name()}
	var st cache.State
	rare := sub.rare()
	if e := sub.entry(); e != nil {
		h.Key, st = e.Key(), e.State()
	} else {
		st = cache.State{Status: cache.Failed, Err: rare.err}
	}
	h.Err = st.Err
	switch sub.sent() {
	case sentNothing:
		if sub.entry() == nil {
			h.State = failed(st.Err)
			break
		}
		if st.Status == cache.Failed && st.Err.Unanswered {
			h.State = TimedOut // nothing may be sent of that: see Delta.timesOut
			break
		}
		h.Pending = st.Status != cache.Requested
	case sentResource:
		res := w.subs.heldOf(&st, sub.Note)
		h.Pending = st.Status == cache.Absent || st.Status == cache.Present && res != st.Resource
		if rare != nil && rare.beforeRedirect != nil && w.subs.mark(rare.beforeRedirect.resource) == sub.Note {
			res = rare.beforeRedirect.resource
		}
		if res == nil {
			if res = w.givenBySet(sub); res != nil {
				h.Pending = false
			}
		}
		h.State = w.answerToName(&h, sub)
		h.setResource(res, &st)
	case sentAbsent:
		h.State, h.Pending = DoesNotExist, st.Status == cache.Present
		if st.Status == cache.Absent {
			h.Since = st.Since
		}
		if st.Status == cache.Failed && st.Err.Unanswered {
			h.State = TimedOut
		}
	case sentFailed:
		h.State, h.Pending = failed(st.Err), st.Status == cache.Present && st.Err == nil
		if rare != nil && rare.deniedFor != 0 {
			h.Err = &cache.Error{Code: codes.PermissionDenied, Message: "the client may not have the resource that this is an alias of"}
		}
	}
	return h
}

// givenBySet returns what the client has of a name by a set that gives it.
func (w *Walk) givenBySet(sub *nameSub) *cache.Resource {
	if !w.subs.hasSets() || !sub.meansSomething() {
		return nil
	}
	r, _, _ := first(memberKey(sub.name()), w.subs.covering(sub.ref())...)
	if r == nil || w.subs.mark(r) != sub.Note {
		return nil
	}
	return r
}

// answerToName returns the client's answer to what it was sent last about a name.
func (w *Walk) answerToName(h *Held, sub *nameSub) HeldState {
	if sub.isRejected() {
		if h.NACK = w.subs.nacks.ofName(sub.name()); h.NACK != nil {
			h.SentAt = h.NACK.SentAt
		}
		return Nacked
	}
	for r := range w.inFlight {
		if w.subs.sentWith(sub, r) {
			h.SentAt = r.at
			return Unanswered
		}
	}
	return Acked
}

// failed returns the state of something for which the client gets an error.
func failed(err *cache.Error) HeldState {
	if err != nil && (err.Unanswered || err.Code == codes.DeadlineExceeded) {
		return TimedOut
	}
	return Failed
}
