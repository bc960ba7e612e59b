package session

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Topics are the subscriptions to one type on one stream: names, sets (a wildcard, globs), or
// in delta names and globs. A response on that stream is applied to both names and sets.
// The control plane need not send a resource again when the other of the two starts. So a new name
// takes the resource that its sets have, and a new glob takes the resources of the names in its directory.
type Topics struct {
	Names *Names // nil if none is wanted
	Sets  *Sets  // nil if none is wanted
}

// each iterates over the sets and the names, as far as there are any.
func (t *Topics) each(yield func(Subscriptions) bool) {
	if t.Sets != nil && !yield(t.Sets) {
		return
	}
	if t.Names != nil {
		yield(t.Names)
	}
}

// core returns the core of the sets or the names, for what both have in common: the type, and the newest
// version.
func (t *Topics) core() *core {
	if t.Sets != nil {
		return &t.Sets.core
	}
	return &t.Names.core
}

// Kind returns the sets if name is that of a set, and the names otherwise. It returns nil if there
// are none.
func (t *Topics) Kind(name string) Subscriptions {
	switch {
	case IsSet(name) && t.Sets != nil:
		return t.Sets
	case !IsSet(name) && t.Names != nil:
		return t.Names
	}
	return nil
}

// AddNames adds names, which share the stream.
func (t *Topics) AddNames(n *Names) {
	t.Names = n
	if t.Sets != nil {
		n.follow(&t.Sets.core)
		n.sets, t.Sets.names = t.Sets, n
	}
}

// AddSets adds sets, which share the stream.
func (t *Topics) AddSets(s *Sets) {
	t.Sets = s
	if t.Names != nil {
		s.follow(&t.Names.core)
		s.names, t.Names.sets = t.Names, s
	}
}

// RemoveNames removes the names. They go on without the sets, as after a lost stream.
func (t *Topics) RemoveNames() *Names {
	n := t.Names
	t.Names, t.Sets.names, n.sets = nil, nil, nil
	t.Sets.hadNames = t.Sets.live
	n.Lost()
	return n
}

// Both reports whether names and sets share the stream.
func (t *Topics) Both() bool { return t.Names != nil && t.Sets != nil }

// TypeURL returns the type of the subscriptions.
func (t *Topics) TypeURL() string { return t.core().typeURL }

// Wanted returns how many names and sets are wanted.
func (t *Topics) Wanted() (n int) {
	for k := range t.each {
		n += k.common().wanted
	}
	return n
}

// Responses returns how many responses there have been, over all streams.
func (t *Topics) Responses() uint64 { return t.core().responses }

// Answered reports whether there was a response on the present stream.
func (t *Topics) Answered() bool { return t.core().responses > t.core().before }

// Listens reports whether responses of other types matter: see Session.Heard and Hear.
func (t *Topics) Listens() bool { return t.Names != nil && t.Names.parked+len(t.Names.unheard) > 0 }

// Hear notes when the control plane last sent a response on the stream, of any type. It must be called before
// Session.Conclude.
func (t *Topics) Hear(at time.Time) {
	n := t.Names
	if n == nil || !n.heard.Before(at) {
		return
	}
	if n.heard = at; len(n.unheard) > 0 {
		n.wait(n.unheard, at)
		for _, sub := range n.unheard {
			sub.failure = nil
		}
		n.unheard = nil
	}
}

// Unanswered returns the names and sets that were requested on the stream without an answer. With ever, it returns those
// that were never answered.
func (t *Topics) Unanswered(ever bool) (names []string) {
	if n := t.Names; n != nil {
		for _, name := range n.sorted() {
			sub := n.subs[name]
			if sub.sent && sub.seen <= n.before && !(ever && (sub.seen > 0 || sub.answer.Resource != nil)) {
				names = append(names, name)
			}
		}
	}
	if s := t.Sets; s != nil {
		for _, c := range s.inOrder() {
			r := s.requestOf(c)
			if c.started && r.wanted && r.sent && r.lastPart.IsZero() && !(r.answered && (ever || s.responses > s.before)) && r.members == nil {
				names = append(names, c.name)
			}
		}
	}
	return names
}

// Overtaken notes that another type, which was requested on the same stream, has been answered for the first
// time. It reports whether that changes when something is due.
func (t *Topics) Overtaken(now time.Time, by *Topics) bool {
	return t.Sets != nil && t.Sets.overtake(now, by.core().first.asked, by.TypeURL())
}

// NewUpdate returns an update without changes.
func (t *Topics) NewUpdate() cache.Update { return t.core().NewUpdate() }

// get returns the subscription to a name or a set, nil if there is none.
func (t *Topics) get(name string) *subscription {
	if k := t.Kind(name); k != nil {
		return k.get(name)
	}
	return nil
}

// Has reports whether a name or a set is subscribed to.
func (t *Topics) Has(name string) bool { return t.get(name) != nil }

// Knows reports whether a name or a set is subscribed to, or a set has the resource of a name.
func (t *Topics) Knows(name string) bool {
	return t.Has(name) || t.Sets != nil && !IsSet(name) && t.Sets.given(name) != nil
}

// Start subscribes to a name or a set. Topics must have Names, or Sets, for it. It adds what is known
// already to the update: what is held, or the error. down is the error if the control plane cannot be
// reached.
func (t *Topics) Start(name string, down *cache.Error, u *cache.Update) {
	if t.Both() && !IsSet(name) {
		t.Names.Know(name, t.Sets, false)
	}
	before := len(u.Changes)
	t.Kind(name).start(name, down, u)
	t.noteMembers(u.Changes[before:])
	t.shareRecalled(name)
}

// Return is Start for a name of which another stream to the control plane has brought something. What is known of it
// here is older, so the cache does not receive it. A delta control plane that has sent it for a set may send it no more
// for the name (see Names.Know). So if there is no answer within the response timeout, it was the newest after all.
func (t *Topics) Return(name string) {
	u := t.NewUpdate()
	t.Start(name, nil, &u)
	t.Names.subs[name].behind = t.Names.subs[name].answered
}

// Again requests a subscribed name once more.
func (t *Topics) Again(name string, down *cache.Error, u *cache.Update) {
	if k := t.Kind(name); k != nil {
		k.again(name, down, u)
	}
}

// Resume notes that a client holds the resource of a name from an earlier stream.
func (t *Topics) Resume(name string, now time.Time) {
	if t.Names != nil {
		t.Names.resume(name, now)
	}
}

// Adopt notes that the first client requests a name.
func (t *Topics) Adopt(name string, now time.Time, down *cache.Error, u *cache.Update) {
	if t.Names != nil {
		t.Names.adopt(name, now, down, u)
	}
}

// Stop unsubscribes from a name.
func (t *Topics) Stop(name string) {
	if k := t.Kind(name); k != nil {
		k.stop(name)
	}
}

// forget drops a subscription that was given up.
func (t *Topics) forget(sub *subscription) {
	if t.Both() && !IsSet(sub.name) {
		t.Sets.leave(sub)
	}
	t.Kind(sub.name).forget(sub)
	if t.Both() && len(t.Sets.globs) == 0 {
		t.Names.directories = directories{} // until there is a glob again
	}
}

// Failed adds err to the update for each subscription that has no answer yet.
func (t *Topics) Failed(err *cache.Error, u *cache.Update) {
	for k := range t.each {
		k.failed(err, u)
	}
}

// opened begins a new stream, on which everything must be requested again.
func (t *Topics) opened(sotw bool) {
	for k := range t.each {
		k.opened(sotw)
	}
	if t.Both() {
		t.Sets.origin = t.Names.origin // it is new if the form is another
	}
}

// Lost ends the stream. What is known remains. If nothing is wanted of the names, or of the sets, these
// end with the stream.
func (t *Topics) Lost() {
	for k := range t.each {
		k.Lost()
	}
	switch {
	case !t.Both():
	case t.Names.wanted == 0:
		t.Names, t.Sets.names = nil, nil
	case t.Sets.wanted == 0:
		t.Sets, t.Names.sets = nil, nil
	}
}

// apply applies a response. version is its version_info, or system_version_info.
func (t *Topics) apply(now time.Time, v *accepted, sotw bool, version string) cache.Update {
	switch {
	case t.Names == nil:
		return t.Sets.apply(now, v, sotw, version)
	case t.Sets == nil:
		return t.Names.apply(now, v, sotw, version)
	}
	ofSets := *v // each resolves the variants by itself
	u := t.Names.apply(now, v, sotw, version)
	merge(&u, t.Sets.apply(now, &ofSets, sotw, version))
	t.noteMembers(u.Changes)
	return u
}

// noteMembers marks the changes of names whose glob has no answer yet. The cache may have a set of that glob from an
// earlier source or subscription, which must not be older than the names.
func (t *Topics) noteMembers(changes []cache.Change) {
	if !t.Both() {
		return
	}
	for i := range changes {
		c := &changes[i]
		if c.Resource == nil {
			continue
		}
		if g := t.Sets.globOf(c.Name); g != nil && !g.answered {
			c.Member = true
		}
	}
}

// Expire applies the changes that are due by time alone.
func (t *Topics) Expire(now time.Time) cache.Update {
	u := t.NewUpdate()
	for k := range t.each {
		merge(&u, k.expire(now))
	}
	return u
}

// NextDue returns when the next change is due by time alone.
func (t *Topics) NextDue() (at time.Time, ok bool) {
	for k := range t.each {
		next, _ := k.nextDue()
		at = earlier(at, next)
	}
	return at, !at.IsZero()
}

// Oldest returns since when the first unanswered subscription has been waiting for an answer.
func (t *Topics) Oldest() (since time.Time, ok bool) {
	for k := range t.each {
		first, _ := k.common().oldest()
		since = earlier(since, first)
	}
	return since, !since.IsZero()
}

// WaitAgain restarts the response timeout of unanswered subscriptions.
func (t *Topics) WaitAgain(now time.Time) {
	for k := range t.each {
		k.waitAgain(now)
	}
}

// NeedStream reports whether the control plane can answer only on a new stream. begun says
// that the type was requested on the present one.
func (t *Topics) NeedStream(begun bool) (need bool) {
	for k := range t.each {
		need = need || k.needStream(begun)
	}
	return need
}

// Seed takes over the resources of another server with the same versions.
func (t *Topics) Seed(now time.Time, held func(cache.Key, func(string, *cache.Resource))) {
	for k := range t.each {
		k.seed(now, held)
	}
}

// Recall notes the resources that the relay had before it was started. See recall.go.
func (t *Topics) Recall(stored func(cache.Key, func(string, *cache.Resource))) {
	for k := range t.each {
		k.recall(stored)
	}
	if !t.Both() {
		return
	}
	for name := range t.Names.subs {
		t.shareRecalled(name)
	}
}

// shareRecalled gives a name the resource that was recalled for its glob, and a glob those that were
// recalled for its names: the relay lists them to the control plane, which then need not send them for
// either.
func (t *Topics) shareRecalled(name string) {
	if !t.Both() {
		return
	}
	if !IsSet(name) {
		t.shareWithGlob(t.Names.subs[name])
		return
	}
	if t.Names.recalls {
		for sub := range t.Names.ofDirectory(name) {
			t.shareWithGlob(sub)
		}
	}
}

// shareWithGlob is shareRecalled for a name and the glob of its directory.
func (t *Topics) shareWithGlob(sub *subscription) {
	g := t.Sets.globOf(sub.name)
	switch {
	case g == nil:
	case sub.recalled == nil && !sub.answered && g.listed[sub.name] != nil:
		sub.recalled, t.Names.recalls = g.listed[sub.name], true
	case sub.recalled != nil && g.members == nil && !g.answered:
		g.list(sub.name, sub.recalled)
		g.recalled = true
	}
}

// takeNudged returns the names and globs to unsubscribe from and subscribe to again.
func (t *Topics) takeNudged() (nudged []string) {
	if t.Names != nil {
		nudged = t.Names.nudges.take(t.Names.get)
	}
	if t.Sets != nil {
		nudged = append(nudged, t.Sets.nudges.take(t.Sets.get)...)
	}
	return nudged
}

// Resend returns everything that is held or has failed.
func (t *Topics) Resend() cache.Update {
	u := t.NewUpdate()
	for k := range t.each {
		merge(&u, k.resend())
	}
	t.noteMembers(u.Changes)
	return u
}

// Ends returns when the TTLs of an update's resources expire.
func (t *Topics) Ends(u *cache.Update) (at map[string]time.Time) {
	for k := range t.each {
		ends := k.Ends(u)
		if at == nil {
			at = ends
		} else {
			maps.Copy(at, ends)
		}
	}
	return at
}

// TakeRefusals returns the errors of refused subscriptions that the cache has not received yet, and how
// many there are.
func (t *Topics) TakeRefusals() (cache.Update, int) {
	u := t.NewUpdate()
	for k := range t.each {
		merge(&u, k.common().takeRefusals())
	}
	return u, len(u.Changes) + len(u.Sets)
}

// TakeWarnings returns the names for which several variants match. It returns a name once each time
// that it begins to be ambiguous.
func (t *Topics) TakeWarnings() []string {
	warnings := t.core().variants.takeWarnings()
	if t.Both() { // both have the warning if both have the resource
		warnings = append(warnings, t.Names.variants.takeWarnings()...)
		slices.Sort(warnings)
		warnings = slices.Compact(warnings)
	}
	return warnings
}

// ForgetFailures forgets the failures of all subscriptions.
func (t *Topics) ForgetFailures() {
	for k := range t.each {
		for sub := range k.all() {
			sub.failure = nil
		}
	}
}

// merge adds another update of the same type to an update.
func merge(u *cache.Update, o cache.Update) {
	if len(u.Changes) == 0 {
		u.Changes = o.Changes
	} else {
		u.Changes = append(u.Changes, o.Changes...)
	}
	if len(u.Sets) == 0 {
		u.Sets = o.Sets
	} else {
		u.Sets = append(u.Sets, o.Sets...)
	}
}

// holds returns the resource that a name or a set holds under a key, nil if there is none.
func (t *Topics) holds(key string) (r *cache.Resource) {
	if t.Names != nil {
		r = t.Names.held(key)
	}
	if r == nil && t.Sets != nil {
		r = t.Sets.member(key)
	}
	return r
}

// MarkHeld marks the resources whose content the topics hold.
func (r *Response) MarkHeld(of *Topics) {
	work := parts{every: yieldEvery}
	for i := range r.Resources {
		res := &r.Resources[i]
		work.begin(len(res.value))
		if !res.canBeTasted(r.TypeURL) || res.Name == "" {
			continue
		}
		if last := of.holds(res.canonical()); last != nil && last.Redirect() == "" && bytes.Equal(last.Value(), res.value) {
			res.taste = held
		}
	}
}
