package upstream

import (
	"maps"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// topics are what is wanted of one type on one stream: names, sets (a wildcard, globs), or
// in delta names and globs. What the control plane sends on that stream is applied to both.
// It need not send a resource again because of the other of the two: so a name that starts
// takes what its sets have, and a glob what is held by the names of its directory.
type topics struct {
	names *names // nil if none is wanted
	sets  *sets  // nil if none is wanted
}

// each yields the sets and the names, as far as there are any.
func (t *topics) each(yield func(subscriptions) bool) {
	if t.sets != nil && !yield(t.sets) {
		return
	}
	if t.names != nil {
		yield(t.names)
	}
}

// core returns what the names and sets have in common: the type, and the newest version.
func (t *topics) core() *core {
	if t.sets != nil {
		return &t.sets.core
	}
	return &t.names.core
}

// kind returns the names or the sets, as a name says, nil if there are none.
func (t *topics) kind(name string) subscriptions {
	switch {
	case isSet(name) && t.sets != nil:
		return t.sets
	case !isSet(name) && t.names != nil:
		return t.names
	}
	return nil
}

// addNames has names share the stream.
func (t *topics) addNames(n *names) {
	t.names = n
	if t.sets != nil {
		n.follow(&t.sets.core)
		n.sets, t.sets.names = t.sets, n
	}
}

// addSets has sets share the stream.
func (t *topics) addSets(s *sets) {
	t.sets = s
	if t.names != nil {
		s.follow(&t.names.core)
		s.names, t.names.sets = t.names, s
	}
}

// removeNames takes the names away from the sets, to go on by themselves, as after a lost
// stream.
func (t *topics) removeNames() *names {
	n := t.names
	t.names, t.sets.names, n.sets = nil, nil, nil
	t.sets.hadNames = t.sets.live
	n.lost()
	return n
}

// both says that names and sets share the stream.
func (t *topics) both() bool { return t.names != nil && t.sets != nil }

func (t *topics) typeURL() string { return t.core().typeURL }

// wanted returns how many names and sets are wanted.
func (t *topics) wanted() (n int) {
	for k := range t.each {
		n += k.common().wanted
	}
	return n
}

// newUpdate returns an update in which nothing has happened yet.
func (t *topics) newUpdate() cache.Update { return t.core().newUpdate() }

// get returns the subscription to a name or a set, nil if there is none.
func (t *topics) get(name string) *subscription {
	if k := t.kind(name); k != nil {
		return k.get(name)
	}
	return nil
}

// start subscribes to a name or a set, of which there are some or were just added. It adds to
// the update what is known already: what is held, or why it cannot be had (down).
func (t *topics) start(name string, down *cache.Error, u *cache.Update) {
	if t.both() && !isSet(name) && t.names.subs[name] == nil {
		t.names.know(name, t.sets, false)
	}
	t.kind(name).start(name, down, u)
	t.shareRecalled(name)
}

// again requests a subscribed name once more.
func (t *topics) again(name string, down *cache.Error, u *cache.Update) {
	if k := t.kind(name); k != nil {
		k.again(name, down, u)
	}
}

// resume notes that a client holds the resource of a name from an earlier stream.
func (t *topics) resume(name string, now time.Time) {
	if t.names != nil {
		t.names.resume(name, now)
	}
}

// stop unsubscribes from a name.
func (t *topics) stop(name string) {
	if k := t.kind(name); k != nil {
		k.stop(name)
	}
}

// forget drops a subscription that was given up.
func (t *topics) forget(sub *subscription) {
	if t.both() && !isSet(sub.name) {
		t.sets.leave(sub)
	}
	t.kind(sub.name).forget(sub)
	if t.both() && len(t.sets.globs) == 0 {
		t.names.directories = directories{} // until there is a glob again
	}
}

// failed adds to the update why what has no answer yet cannot be had.
func (t *topics) failed(err *cache.Error, u *cache.Update) {
	for k := range t.each {
		k.failed(err, u)
	}
}

// opened begins a new stream: everything is to be requested again.
func (t *topics) opened(sotw bool) {
	for k := range t.each {
		k.opened(sotw)
	}
	if t.both() {
		t.sets.origin = t.names.origin // which is new if the form is another
	}
}

// lost ends the stream. Nothing that is known is lost with it. Of names and sets, those of
// which nothing is wanted end with it.
func (t *topics) lost() {
	for k := range t.each {
		k.lost()
	}
	switch {
	case !t.both():
	case t.names.wanted == 0:
		t.names, t.sets.names = nil, nil
	case t.sets.wanted == 0:
		t.sets, t.names.sets = nil, nil
	}
}

// apply applies a response. version is its version_info, or system_version_info.
func (t *topics) apply(now time.Time, v *accepted, sotw bool, version string) cache.Update {
	switch {
	case t.names == nil:
		return t.sets.apply(now, v, sotw, version)
	case t.sets == nil:
		return t.names.apply(now, v, sotw, version)
	}
	ofSets := *v // each resolves the variants by itself
	u := t.names.apply(now, v, sotw, version)
	merge(&u, t.sets.apply(now, &ofSets, sotw, version))
	return u
}

// expire applies what happens by time alone.
func (t *topics) expire(now time.Time) cache.Update {
	u := t.newUpdate()
	for k := range t.each {
		merge(&u, k.expire(now))
	}
	return u
}

// nextDue returns when that is.
func (t *topics) nextDue() (at time.Time, ok bool) {
	for k := range t.each {
		next, _ := k.nextDue()
		at = earlier(at, next)
	}
	return at, !at.IsZero()
}

// oldest returns since when the first of those that wait for an answer has been waiting.
func (t *topics) oldest() (since time.Time, ok bool) {
	for k := range t.each {
		first, _ := k.common().oldest()
		since = earlier(since, first)
	}
	return since, !since.IsZero()
}

// waitAgain restarts the time that unanswered subscriptions wait for an answer.
func (t *topics) waitAgain(now time.Time) {
	for k := range t.each {
		k.waitAgain(now)
	}
}

// needStream reports whether the control plane can answer only on a new stream. begun says
// that the type was requested on the present one.
func (t *topics) needStream(begun bool) (need bool) {
	for k := range t.each {
		need = need || k.needStream(begun)
	}
	return need
}

// seed takes over what another server with the same versions has said.
func (t *topics) seed(now time.Time, held func(cache.Key, func(string, *cache.Resource))) {
	for k := range t.each {
		k.seed(now, held)
	}
}

// recall notes what the relay had before it was started. See recall.go.
func (t *topics) recall(had func(cache.Key, func(string, *cache.Resource))) {
	for k := range t.each {
		k.recall(had)
	}
	if !t.both() {
		return
	}
	for name := range t.names.subs {
		t.shareRecalled(name)
	}
}

// takeNudged returns the names and globs that are to be given up and subscribed to again.
func (t *topics) takeNudged() (nudged []string) {
	if t.names != nil {
		nudged = t.names.nudges.take(t.names.get)
	}
	if t.sets != nil {
		nudged = append(nudged, t.sets.nudges.take(t.sets.get)...)
	}
	return nudged
}

// resend returns everything that is held or has failed.
func (t *topics) resend() cache.Update {
	u := t.newUpdate()
	for k := range t.each {
		merge(&u, k.resend())
	}
	return u
}

// ends returns when the TTLs of what an update has expire.
func (t *topics) ends(u *cache.Update) (at map[string]time.Time) {
	for k := range t.each {
		ends := k.ends(u)
		if at == nil {
			at = ends
		} else {
			maps.Copy(at, ends)
		}
	}
	return at
}

// takeRefusals returns what the cache does not know yet of what was refused, and of how many
// names and sets that is.
func (t *topics) takeRefusals() (cache.Update, int) {
	u := t.newUpdate()
	for k := range t.each {
		merge(&u, k.common().takeRefusals())
	}
	return u, len(u.Changes) + len(u.Sets)
}

// takeWarnings returns the names of which several variants match, once for each time that it
// comes to that.
func (t *topics) takeWarnings() []string {
	warnings := t.core().variants.takeWarnings()
	if t.both() { // which have the same, where both have a resource
		warnings = append(warnings, t.names.variants.takeWarnings()...)
		slices.Sort(warnings)
		warnings = slices.Compact(warnings)
	}
	return warnings
}

// forgetFailures forgets why what is wanted could not be had.
func (t *topics) forgetFailures() {
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
func (t *topics) holds(key string) (r *cache.Resource) {
	if t.names != nil {
		r = t.names.held(key)
	}
	if r == nil && t.sets != nil {
		r = t.sets.member(key)
	}
	return r
}
