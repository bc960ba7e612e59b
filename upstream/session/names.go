package session

import (
	"maps"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Names are the subscriptions to names of one type.
type Names struct {
	core
	subs map[string]*subscription
	room cache.Room // of subs
	// sets share the stream, nil if none do. directories are for their globs.
	sets        *Sets
	directories directories
	// modest is that of Config.
	modest func(cache.Key, int64) bool

	// having, in SotW, is how many names have the version origin, or have had it.
	having int
	// claims are the resources that list the names as aliases.
	claims claims
	// full is the last response that was the whole state.
	full uint64

	// answers and habits are those of Config.
	answers Answers
	habits  *Habits

	// Of the present stream:

	// parked is how many names are parked, and trialAt when the next of them are tried. See strict.go.
	parked  int
	trialAt time.Time
	// heard is when the control plane last sent something, of any type.
	heard time.Time
	// unheard are names without an answer of which nothing can be said, as the control plane has sent nothing at all since
	// they were requested.
	unheard []*subscription
	// reviewAt is when refused names are tried again, zero if no name was refused.
	reviewAt time.Time
	// forgetAt is when the names that were given up are forgotten, zero if there are none.
	forgetAt time.Time
	// unlisted: a resumed name may have no answer because it was not listed.
	// relist: that is so for a name, and a new stream is needed.
	unlisted, relist bool
	// missed are resumed names that just missed the first request, in delta: until missedUntil.
	missed      []*subscription
	missedUntil time.Time
	// relisted says that the stream was opened to list names. A name that misses its first request waits for an
	// answer, so that clients cannot make the relay open one stream after another.
	relisted bool
	// recalls: some names have a recalled resource. confirmAt is when these count as confirmed,
	// zero for never.
	recalls   bool
	unasked   unasked
	confirmAt time.Time
	nudges    nudges
	// returns are absent names that clients have requested again: see adopted.go.
	returns nudges
	// forgets: the control plane does not read initial_resource_versions. toldAt is when names that were listed and have
	// not come count as gone, zero for never. See forgetful.go.
	forgets bool
	toldAt  time.Time
	unsaid  int // of these, those that have not come; 0 if the control plane may read the list
}

// NewNames returns the names of a type, without subscriptions.
func NewNames(c Config) *Names {
	if c.Habits == nil {
		c.Habits = new(Habits)
	}
	return &Names{core: newCore(c), subs: map[string]*subscription{}, modest: c.Modest, answers: c.Answers, habits: c.Habits}
}

// AnyWanted reports whether any name is wanted.
func (n *Names) AnyWanted() bool { return n.wanted > 0 }

func (n *Names) get(name string) *subscription { return n.subs[name] }

func (n *Names) all() func(yield func(*subscription) bool) { return maps.Values(n.subs) }

func (n *Names) late(*subscription) bool { return false }

// Know gives a new name the resource, or error, that a set has of it. A control plane must send the
// resource when the name is requested. But if the set shares the stream, some (go-control-plane) do not
// send it again, and on another stream it comes later. begun says that the type was requested on the
// present stream. Know does nothing for a name that is not new.
func (n *Names) Know(name string, from *Sets, begun bool) {
	if n.subs[name] != nil {
		return
	}
	sub := &subscription{name: name}
	shared := from.names == n
	switch r, err := from.given(name), from.refusedBy(name); {
	case r != nil && !r.DoNotCache():
		n.shown = ""
		sub.answered, sub.answer = true, cache.Change{Name: name, Resource: r}
		if shared {
			sub.answer.Origin, sub.seen = n.versionOf(), from.lastSeen(name)
		} else {
			sub.left = begun && n.sotw // a response on its way may not have it
			sub.answer.Origin = from.memberVersion(name).Fork()
			n.adoptVersion(&sub.answer)
		}
		n.takeOver(name, &from.core, shared)
	case err != nil && shared:
		sub.answered, sub.reported, sub.answer = true, true, cache.Change{Name: name, Err: err}
	case err != nil:
		sub.failure = err // until it is requested by its name
	default:
		return
	}
	n.keep(sub)
}

// keep adds the subscription to a name.
func (n *Names) keep(sub *subscription) {
	n.subs[sub.name] = sub
	n.directories.add(sub)
}

// requested reports whether a name was requested on the present stream.
func (n *Names) requested(name string) bool {
	if n == nil {
		return false
	}
	sub := n.subs[name]
	return sub != nil && sub.sent
}

// ForkVersion gives the names a version of their own, which begins as the one that they shared with the
// sets of their stream. It adds the answers with that version to the update.
func (n *Names) ForkVersion(u *cache.Update) {
	shared := n.origin
	n.origin = shared.Fork()
	u.Origin = n.origin
	for _, name := range n.sorted() {
		sub := n.subs[name]
		if sub.answer.Origin != shared {
			continue
		}
		if sub.answer.Origin = n.origin; sub.answered && !sub.behind && shared.Latest() != "" {
			u.Changes = append(u.Changes, sub.answer)
		}
	}
}

func (n *Names) start(name string, down *cache.Error, u *cache.Update) {
	sub := n.subs[name]
	if sub == nil {
		sub = &subscription{name: name}
		n.keep(sub)
		n.takeUnasked(sub)
	}
	if !sub.started {
		sub.started, sub.wanted = true, true
		n.wanted++
		n.touch(sub)
	}
	if r := sub.answer.Resource; sub.answered && r != nil && r.DoNotCache() {
		n.refresh(sub)
		sub.answered = false
	}
	switch {
	case sub.answered:
		if !sub.behind {
			u.Changes = append(u.Changes, sub.answer)
		}
	case down != nil:
		n.fail(sub, down, u)
	case sub.failure != nil:
		n.fail(sub, sub.failure, u)
	}
}

func (n *Names) again(name string, down *cache.Error, u *cache.Update) {
	sub := n.subs[name]
	if sub == nil || !sub.started {
		return
	}
	if down != nil {
		n.fail(sub, down, u)
	}
	n.refresh(sub)
}

func (n *Names) stop(name string) {
	sub := n.subs[name]
	if sub == nil || !sub.started {
		return
	}
	sub.started, sub.wanted = false, false
	n.wanted--
	if sub.sent {
		n.touch(sub)
	} else {
		n.forget(sub)
	}
}

func (n *Names) forget(sub *subscription) {
	n.keepLeft(sub)
	n.subs = cache.Without(n.subs, &n.room, sub.name)
	n.directories.remove(sub.name)
	n.unalias(sub.name)
	n.drop(sub.name)
}

// drop drops the variants and the TTL of a resource.
func (n *Names) drop(key string) {
	n.variants.drop(key)
	n.expiries.End(key)
}

// sorted returns the names that are wanted, in order.
func (n *Names) sorted() []string {
	sorted := make([]string, 0, len(n.subs))
	for name, sub := range n.subs {
		if sub.wanted {
			sorted = append(sorted, name)
		}
	}
	slices.Sort(sorted)
	return sorted
}

// inDirectory iterates over the names of a glob's directory that hold a resource. It leaves out
// aliases, which are no members.
func (n *Names) inDirectory(glob string) func(yield func(*subscription) bool) {
	return func(yield func(*subscription) bool) {
		for sub := range n.ofDirectory(glob) {
			if sub.isMember() && !yield(sub) {
				return
			}
		}
	}
}

// ofDirectory iterates over the names of a glob's directory.
func (n *Names) ofDirectory(glob string) func(yield func(*subscription) bool) {
	return func(yield func(*subscription) bool) {
		if n == nil {
			return
		}
		if n.directories.byGlob == nil {
			n.directories.byGlob = map[string]map[string]*subscription{}
			for _, sub := range n.subs {
				n.directories.add(sub)
			}
		}
		for _, sub := range n.directories.byGlob[glob] {
			if !yield(sub) {
				return
			}
		}
	}
}

func (n *Names) opened(sotw bool) {
	if n.sotw != sotw {
		n.having = 0
	}
	n.openedCore(sotw)
	n.forgetAt = time.Time{}
	for _, name := range n.sorted() {
		n.changed = append(n.changed, n.subs[name])
	}
}

// Lost implements Subscriptions.
func (n *Names) Lost() {
	n.lostCore()
	n.relisted = n.needStream(true)
	n.reviewAt, n.unlisted, n.relist = time.Time{}, false, false
	n.missed, n.missedUntil = nil, time.Time{}
	n.directories = directories{}
	n.recalls, n.confirmAt, n.nudges, n.unasked = false, time.Time{}, nudges{}, unasked{}
	n.forgets, n.toldAt, n.unsaid, n.returns = false, time.Time{}, 0, nudges{}
	n.parked, n.trialAt, n.heard, n.unheard = 0, time.Time{}, time.Time{}, nil
	for _, sub := range n.subs {
		if sub.again {
			n.shown = "" // the control plane must send all of it
		}
		if sub.lost(); !sub.wanted {
			n.forget(sub)
		}
	}
}

func (n *Names) fail(sub *subscription, err *cache.Error, u *cache.Update) {
	sub.failure = err
	u.Changes = append(u.Changes, cache.Change{Name: sub.name, Err: err})
}

func (n *Names) failed(err *cache.Error, u *cache.Update) {
	for _, name := range n.sorted() {
		if sub := n.subs[name]; !sub.answered {
			n.fail(sub, err, u)
		}
	}
}

// FailNew adds err to the update for each name that has neither an answer nor a failure.
func (n *Names) FailNew(err *cache.Error, u *cache.Update) {
	for _, name := range n.sorted() {
		if sub := n.subs[name]; !sub.answered && sub.failure == nil {
			n.fail(sub, err, u)
		}
	}
}

// waitAgain is for SotW: in delta silence does not mean absence.
func (n *Names) waitAgain(now time.Time) {
	if !n.sotw {
		return
	}
	var subs []*subscription
	for _, name := range n.sorted() {
		sub := n.subs[name]
		if sub.sent && (!sub.answered || sub.left && xdstype.Of(n.typeURL).FullState) {
			sub.failure = nil
			subs = append(subs, sub)
		}
	}
	n.waiting = nil
	n.wait(subs, now)
}

func (n *Names) needStream(begun bool) bool { return begun && (n.relist || n.misses()) }

func (n *Names) nextDue() (time.Time, bool) {
	at, _ := n.expiries.Next()
	at = earlier(earlier(at, n.forgetAt), earlier(n.reviewAt, n.trialAt))
	at = earlier(earlier(at, n.confirmAt), earlier(n.nudges.at, n.toldAt))
	if len(n.returns.names) > 0 {
		at = earlier(at, n.returns.at)
	}
	return at, !at.IsZero()
}

func (n *Names) seed(now time.Time, held func(cache.Key, func(string, *cache.Resource))) {
	for _, sub := range n.subs {
		if !sub.wanted || sub.answered {
			continue
		}
		held(cache.Key{Scope: n.scope, TypeURL: n.typeURL, Name: sub.name}, func(key string, r *cache.Resource) {
			if r.Alias() || r.DoNotCache() {
				return // it is not known whose alias it is; or it may not be stored
			}
			sub.answered, sub.answer = true, cache.Change{Name: key, Resource: r}
			if r.TTL() > 0 {
				n.expiries.Set(key, now.Add(r.TTL()))
			}
		})
	}
}

func (n *Names) resend() cache.Update {
	u := n.NewUpdate()
	for _, name := range n.sorted() {
		switch sub := n.subs[name]; {
		case sub.answered:
			if !sub.behind {
				u.Changes = append(u.Changes, sub.answer)
			}
		case sub.failure != nil:
			n.fail(sub, sub.failure, &u)
		}
	}
	for i := range u.Changes {
		u.Changes[i].Answer = cache.FirstAnswer
	}
	return u
}

// Ends implements Subscriptions.
func (n *Names) Ends(u *cache.Update) map[string]time.Time {
	if n.expiries.Len() == 0 {
		return nil
	}
	ends := map[string]time.Time{}
	n.endsOf(u.Changes, func(name string) string {
		if sub := n.subs[name]; sub != nil && sub.via != "" {
			return sub.via
		}
		return name
	}, ends)
	return ends
}

// hasResources reports whether any resource is held.
func (n *Names) hasResources() bool {
	for _, sub := range n.subs {
		if sub.answer.Resource != nil {
			return true
		}
	}
	return false
}

// unalias forgets which resources list a name.
func (n *Names) unalias(name string) {
	delete(n.claims.more, name)
	for _, own := range slices.Clone(n.claims.by[name]) {
		n.claims.remove(own, name)
		if len(n.claims.of[own]) == 0 && n.held(own) == nil {
			n.drop(own)
		}
	}
}

// holds returns the resource that is held under a key, or under an alias of it.
func (n *Names) holds(key string) *cache.Resource {
	if r := n.held(key); r != nil {
		return r
	}
	for alias := range n.claims.of[key] {
		if sub := n.subs[alias]; sub.via == key && sub.answer.Resource != nil {
			return sub.answer.Resource
		}
	}
	return nil
}

func (n *Names) held(key string) *cache.Resource {
	if sub := n.subs[key]; sub != nil {
		return sub.answer.Resource
	}
	return nil
}

// answer records the control plane's answer for a name.
func (n *Names) answer(sub *subscription, c cache.Change) {
	sub.seen, sub.answered, sub.reported, sub.expired, sub.repeated, sub.via = n.responses, true, false, false, false, ""
	sub.removed, sub.behind, sub.unreferred = false, false, false
	if n.has(&c) && !n.has(&sub.answer) {
		n.having++
	}
	sub.answer, sub.recalled = c, nil
}

// has reports whether a change has a resource with the present version.
func (n *Names) has(c *cache.Change) bool { return c.Resource != nil && c.Origin == n.origin }

func (n *Names) lastSeen(key string) uint64 {
	if sub := n.subs[key]; sub != nil {
		return sub.seen
	}
	return n.responses
}

func (n *Names) concerns(v *resourceUpdate) bool {
	return n.subs[v.key] != nil || len(n.claims.of[v.key]) > 0 ||
		slices.ContainsFunc(v.aliases, func(alias string) bool { return n.subs[canonical(alias)] != nil })
}
