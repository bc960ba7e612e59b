package relay

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/partition"
)

// How sources are replaced when the configuration changes. A scope whose authority has other servers now, or is gone,
// gets another source for the same topics. That removes nothing from the cache: clients keep what they have until the
// new source sends something else, and its first answers are guarded like those of another server.

// outdating is the cache, which marks topics as outdated.
type outdating interface {
	Outdate(cache.Scope)
	Renew(cache.Scope)
}

// renewAfter is how long clients that move to an outdated topic keep what they have while the new source has not
// answered for it. Control planes answer within that time. After it, the relay sends these clients what the topic has
// from the previous source.
const renewAfter = 15 * time.Second

// mute stops the updates of the sources that the newest generation would open differently: replaceOutdated replaces
// them. It outdates their topics: clients that watch these keep their content, but clients that move there because of
// the newest generation do not get it. mute waits for updates that are being stored.
func (f *scopes) mute(fingerprint func(cache.Scope) string) {
	muted := map[cache.Scope]source{}
	f.mu.Lock()
	for scope, of := range f.sources {
		if originPart(of.fingerprint) != originPart(fingerprint(scope)) {
			muted[scope] = of.source
			of.muted++
		}
	}
	f.mu.Unlock()
	for scope, s := range muted {
		if s != nil {
			s.Mute()
		}
		f.topics.Outdate(scope)
	}
}

// renewLater renews the topics of a scope, which are outdated, after renewAfter. The caller holds mu.
func (f *scopes) renewLater(scope cache.Scope, of *scopeSource) {
	n := of.muted
	if n == 0 {
		return
	}
	time.AfterFunc(renewAfter, func() {
		f.mu.Lock()
		over := f.closed || f.sources[scope] != of || of.muted != n
		f.mu.Unlock()
		if !over {
			f.topics.Renew(scope)
		}
	})
}

// start starts a topic. The caller holds scopes.mu.
func (of *scopeSource) start(k cache.Key) {
	switch {
	case of.source == nil: // the next source will start all topics
	case of.started == nil:
		of.source.Start(k)
	default:
		if _, known := of.started[k]; !known {
			of.started[k] = struct{}{}
			of.source.Start(k)
		}
	}
}

// feeds reports whether the source has started a topic. The caller holds scopes.mu. of may be nil.
func (of *scopeSource) feeds(k cache.Key) bool {
	if of == nil || of.source == nil {
		return false
	}
	_, started := of.started[k]
	return of.started == nil || started
}

// replaceOutdated replaces the sources that the newest generation would open differently. fingerprint returns the fingerprint of
// the source that it would open for a scope. It does not wait. each is cache.Cache.EachTopic.
func (f *scopes) replaceOutdated(fingerprint func(cache.Scope) string, each func(cache.Scope, func(cache.Key))) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for scope, of := range f.sources {
		if !of.replacing && of.fingerprint != fingerprint(scope) {
			f.replaceLater(scope, of, fingerprint, each)
		}
	}
}

// replaceIfOutdated is replaceOutdated for the source of one scope.
func (f *scopes) replaceIfOutdated(scope cache.Scope, fingerprint func(cache.Scope) string, each func(cache.Scope, func(cache.Key))) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if of := f.sources[scope]; of != nil && !of.replacing && of.fingerprint != fingerprint(scope) {
		f.replaceLater(scope, of, fingerprint, each)
	}
}

// replaceLater replaces a source. The caller holds mu.
func (f *scopes) replaceLater(scope cache.Scope, of *scopeSource, fingerprint func(cache.Scope) string, each func(cache.Scope, func(cache.Key))) {
	if f.closed {
		return
	}
	of.replacing = true
	f.closing.Go(func() {
		for f.replaceInTurn(scope, of, fingerprint, each) {
		}
	})
}

// replaceInTurn calls replace once it is the scope's turn, if the source is still to be replaced after try. The turn ends
// with the first answer to the new source, or at once if that resumes.
func (f *scopes) replaceInTurn(scope cache.Scope, of *scopeSource, fingerprint func(cache.Scope) string, each func(cache.Scope, func(cache.Key))) (again bool) {
	f.mu.Lock()
	present, _ := of.source.(*serverSource)
	resumes := f.resumes(scope, of.fingerprint)
	f.mu.Unlock()
	f.try(f.ctx, scope, present)
	if f.stays(scope, of, fingerprint) {
		return false
	}
	end := f.turns.take(f.planeOf(scope), f.ctx.Done())
	if end == nil {
		return false // Close was called
	}
	defer end()
	if again = f.replace(scope, of, fingerprint, each); again {
		return true
	}
	f.mu.Lock()
	is, topics := of.source, of.topics
	f.mu.Unlock()
	if topics > 0 && is != nil && !resumes { // nil: Close was called
		awaitAnswer(is, f.ctx.Done())
	}
	return false
}

// stays ends the replacement of a source that the newest generation would open in the same way again.
func (f *scopes) stays(scope cache.Scope, of *scopeSource, fingerprint func(cache.Scope) string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if of.source == nil || of.muted > of.replacedMuted || of.fingerprint != fingerprint(scope) {
		return false
	}
	of.replacing = false
	if of.topics == 0 {
		f.retireLater(scope, of)
	}
	return true
}

// replace closes a source, opens another one, and starts all topics of the scope on it. It returns true if that
// source is already outdated. Between the two sources no update reaches the cache, so their updates never mix.
func (f *scopes) replace(scope cache.Scope, of *scopeSource, fingerprint func(cache.Scope) string, each func(cache.Scope, func(cache.Key))) (again bool) {
	f.mu.Lock()
	old := of.source
	of.source = nil
	f.mu.Unlock()
	if old == nil {
		return false // Close was called
	}
	old.Close()
	f.mu.Lock()
	muted := of.muted > of.replacedMuted
	of.replacedMuted = of.muted
	f.mu.Unlock()
	if muted {
		f.topics.Outdate(scope) // also updates that were accepted while the source closed
	}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return false
	}
	var node *corev3.Node
	if of.node != nil {
		node = f.nodes.NodeOf(of.node)
	}
	before := of.fingerprint
	of.source, of.fingerprint = f.open(scope, node)
	if isHandover(before, of.fingerprint) {
		f.handovers.Add(1)
	}
	of.started = map[cache.Key]struct{}{}
	of.noteChange()
	f.mu.Unlock()
	each(scope, func(k cache.Key) {
		f.mu.Lock()
		defer f.mu.Unlock()
		of.start(k)
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	of.started = nil
	switch {
	case of.source == nil: // Close was called
		return false
	case of.fingerprint != fingerprint(scope):
		return true
	}
	of.replacing = false
	f.renewLater(scope, of)
	if of.topics == 0 {
		f.retireLater(scope, of)
	}
	return false
}

// outdated is the fingerprint of a source that must be replaced although its authority has not changed.
const outdated = "outdated"

// renewNode replaces the sources of a partition whose Node has changed.
func (f *scopes) renewNode(changed cache.Scope, fingerprint func(cache.Scope) string, each func(cache.Scope, func(cache.Key))) {
	f.mu.Lock()
	defer f.mu.Unlock()
	renew := func(scope cache.Scope) {
		of := f.sources[scope]
		if of == nil {
			return
		}
		if of.node == nil {
			of.node = f.nodes.Open(changed)
		}
		if of.fingerprint = outdated; !of.replacing {
			f.replaceLater(scope, of, fingerprint, each)
		}
	}
	renew(changed)
	if f.variants == 0 {
		return
	}
	for scope := range f.sources {
		if scope.Params != "" && partition.Of(scope) == changed {
			renew(scope)
		}
	}
}
