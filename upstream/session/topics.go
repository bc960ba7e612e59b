package session

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Topics are what is wanted of one type on one stream: names, sets (a wildcard, globs), or
// in delta names and globs. What the control plane sends on that stream is applied to both.
// It need not send a resource again because of the other of the two: so a name that starts
// takes what its sets have, and a glob what is held by the names of its directory.
type Topics struct {
	Names *Names // nil if none is wanted
	Sets  *Sets  // nil if none is wanted
}

// each yields the sets and the names, as far as there are any.
func (t *Topics) each(yield func(Subscriptions) bool) {
	if t.Sets != nil && !yield(t.Sets) {
		return
	}
	if t.Names != nil {
		yield(t.Names)
	}
}

// core returns what the names and sets have in common: the type, and the newest version.
func (t *Topics) core() *core {
	if t.Sets != nil {
		return &t.Sets.core
	}
	return &t.Names.core
}

// Kind returns the names or the sets, as a name says, nil if there are none.
func (t *Topics) Kind(name string) Subscriptions {
	switch {
	case IsSet(name) && t.Sets != nil:
		return t.Sets
	case !IsSet(name) && t.Names != nil:
		return t.Names
	}
	return nil
}

// AddNames has names share the stream.
func (t *Topics) AddNames(n *Names) {
	t.Names = n
	if t.Sets != nil {
		n.follow(&t.Sets.core)
		n.sets, t.Sets.names = t.Sets, n
	}
}

// AddSets has sets share the stream.
func (t *Topics) AddSets(s *Sets) {
	t.Sets = s
	if t.Names != nil {
		s.follow(&t.Names.core)
		s.names, t.Names.sets = t.Names, s
	}
}

// RemoveNames takes the names away from the sets, to go on by themselves, as after a lost
// stream.
func (t *Topics) RemoveNames() *Names {
	n := t.Names
	t.Names, t.Sets.names, n.sets = nil, nil, nil
	t.Sets.hadNames = t.Sets.live
	n.Lost()
	return n
}

// Both says that names and sets share the stream.
func (t *Topics) Both() bool { return t.Names != nil && t.Sets != nil }

// TypeURL returns the type of all that is wanted.
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

// Answered reports whether there was one on the present stream.
func (t *Topics) Answered() bool { return t.core().responses > t.core().before }

// NewUpdate returns an update in which nothing has happened yet.
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

// Start subscribes to a name or a set, of which there are some or were just added. It adds to
// the update what is known already: what is held, or why it cannot be had (down).
func (t *Topics) Start(name string, down *cache.Error, u *cache.Update) {
	if t.Both() && !IsSet(name) {
		t.Names.Know(name, t.Sets, false)
	}
	t.Kind(name).start(name, down, u)
	t.shareRecalled(name)
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

// Failed adds to the update why what has no answer yet cannot be had.
func (t *Topics) Failed(err *cache.Error, u *cache.Update) {
	for k := range t.each {
		k.failed(err, u)
	}
}

// opened begins a new stream: everything is to be requested again.
func (t *Topics) opened(sotw bool) {
	for k := range t.each {
		k.opened(sotw)
	}
	if t.Both() {
		t.Sets.origin = t.Names.origin // which is new if the form is another
	}
}

// Lost ends the stream. Nothing that is known is lost with it. Of names and sets, those of
// which nothing is wanted end with it.
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
	t.noteMembers(&u)
	return u
}

// noteMembers marks the names whose glob has no answer yet. The cache may have a set of it from an earlier source or
// subscription, which must not be behind them.
func (t *Topics) noteMembers(u *cache.Update) {
	for i := range u.Changes {
		c := &u.Changes[i]
		if c.Resource == nil {
			continue
		}
		if g := t.Sets.globOf(c.Name); g != nil && !g.answered {
			c.Member = true
		}
	}
}

// Expire applies what happens by time alone.
func (t *Topics) Expire(now time.Time) cache.Update {
	u := t.NewUpdate()
	for k := range t.each {
		merge(&u, k.expire(now))
	}
	return u
}

// NextDue returns when that is.
func (t *Topics) NextDue() (at time.Time, ok bool) {
	for k := range t.each {
		next, _ := k.nextDue()
		at = earlier(at, next)
	}
	return at, !at.IsZero()
}

// Oldest returns since when the first of those that wait for an answer has been waiting.
func (t *Topics) Oldest() (since time.Time, ok bool) {
	for k := range t.each {
		first, _ := k.common().oldest()
		since = earlier(since, first)
	}
	return since, !since.IsZero()
}

// WaitAgain restarts the time that unanswered subscriptions wait for an answer.
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

// Seed takes over what another server with the same versions has said.
func (t *Topics) Seed(now time.Time, held func(cache.Key, func(string, *cache.Resource))) {
	for k := range t.each {
		k.seed(now, held)
	}
}

// Recall notes what the relay had before it was started. See recall.go.
func (t *Topics) Recall(had func(cache.Key, func(string, *cache.Resource))) {
	for k := range t.each {
		k.recall(had)
	}
	if !t.Both() {
		return
	}
	for name := range t.Names.subs {
		t.shareRecalled(name)
	}
}

// shareRecalled gives a name, or a glob, what was recalled for the other of the two: the control plane,
// to which it is listed, need not send it for either.
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

// shareWithGlob is shareRecalled of a name and the glob of its directory.
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

// takeNudged returns the names and globs that are to be given up and subscribed to again.
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
	return u
}

// Ends returns when the TTLs of what an update has expire.
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

// TakeRefusals returns what the cache does not know yet of what was refused, and of how many
// names and sets that is.
func (t *Topics) TakeRefusals() (cache.Update, int) {
	u := t.NewUpdate()
	for k := range t.each {
		merge(&u, k.common().takeRefusals())
	}
	return u, len(u.Changes) + len(u.Sets)
}

// TakeWarnings returns the names of which several variants match, once for each time that it
// comes to that.
func (t *Topics) TakeWarnings() []string {
	warnings := t.core().variants.takeWarnings()
	if t.Both() { // which have the same, where both have a resource
		warnings = append(warnings, t.Names.variants.takeWarnings()...)
		slices.Sort(warnings)
		warnings = slices.Compact(warnings)
	}
	return warnings
}

// ForgetFailures forgets why what is wanted could not be had.
func (t *Topics) ForgetFailures() {
	for k := range t.each {
		for sub := range k.all() {
			sub.failure = nil
		}
	}
}

// merge adds to an update another one of the same type.
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

// holds returns what is held under a key, by a name or by a set, nil if there is nothing.
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
	for i := range r.Resources {
		yield(i, yieldEvery)
		res := &r.Resources[i]
		if !res.canBeTasted(r.TypeURL) || res.Name == "" {
			continue
		}
		if last := of.holds(res.canonical()); last != nil && last.Redirect() == "" && bytes.Equal(last.Value(), res.value) {
			res.taste = held
		}
	}
}
