package relay

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// Sources while the configuration changes. A scope whose authority has other servers now, or is gone,
// gets another source over the same topics. Nothing is removed from the cache for that: clients keep
// what they have until the new source says otherwise, and its first answers are guarded like those of
// another server.

// outdating are the topics of a cache.
type outdating interface {
	Outdate(cache.Scope)
	Renew(cache.Scope)
}

// renewAfter is how long clients that move to a topic keep what they have until the new source has answered for it.
// Control planes answer in that time. After it the clients are sent what the topic has from the source before.
const renewAfter = 15 * time.Second

// mute has those sources say nothing more that the newest generation would not open like that: replaceOutdated
// replaces them. What their topics have is for those who watch them, and not for clients that move there by the
// newest generation. It waits for updates that are being stored.
func (f *scopes) mute(print func(cache.Scope) string) {
	muted := map[cache.Scope]source{}
	f.mu.Lock()
	for scope, of := range f.sources {
		if of.print != print(scope) {
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

// renewLater ends after a while that the topics of a scope are outdated. The caller holds mu.
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

// start begins a topic. The caller holds scopes.mu.
func (of *scopeSource) start(k cache.Key) {
	switch {
	case of.source == nil: // the next source is given all topics
	case of.started == nil:
		of.source.Start(k)
	default:
		if _, known := of.started[k]; !known {
			of.started[k] = struct{}{}
			of.source.Start(k)
		}
	}
}

// feeds reports whether the source was given a topic that has begun. The caller holds scopes.mu. of
// may be nil.
func (of *scopeSource) feeds(k cache.Key) bool {
	if of == nil || of.source == nil {
		return false
	}
	_, started := of.started[k]
	return of.started == nil || started
}

// replaceOutdated replaces the sources that the newest generation would not open like that. print
// returns that of a scope's source. It does not wait. each is cache.Cache.EachTopic.
func (f *scopes) replaceOutdated(print func(cache.Scope) string, each func(cache.Scope, func(cache.Key))) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for scope, of := range f.sources {
		if !of.replacing && of.print != print(scope) {
			f.replaceLater(scope, of, print, each)
		}
	}
}

// replaceLater replaces a source. The caller holds mu.
func (f *scopes) replaceLater(scope cache.Scope, of *scopeSource, print func(cache.Scope) string, each func(cache.Scope, func(cache.Key))) {
	if f.closed {
		return
	}
	of.replacing = true
	f.closing.Go(func() {
		for f.replaceInTurn(scope, of, print, each) {
		}
	})
}

// replaceInTurn is replace, once it is the scope's turn. The turn ends with the first answer to the new source.
func (f *scopes) replaceInTurn(scope cache.Scope, of *scopeSource, print func(cache.Scope) string, each func(cache.Scope, func(cache.Key))) (again bool) {
	end := f.turns.take(f.planeOf(scope), f.ended)
	if end == nil {
		return false // Close was called
	}
	defer end()
	if again = f.replace(scope, of, print, each); again {
		return true
	}
	f.mu.Lock()
	is, topics := of.source, of.topics
	f.mu.Unlock()
	if topics > 0 {
		awaitAnswer(is, f.ended)
	}
	return false
}

// replace closes a source, opens another one, and gives it all topics of the scope. It returns whether
// that one is outdated by now. While there is none, nothing comes to the cache; so the two never mix.
func (f *scopes) replace(scope cache.Scope, of *scopeSource, print func(cache.Scope) string, each func(cache.Scope, func(cache.Key))) (again bool) {
	f.mu.Lock()
	old := of.source
	of.source = nil
	f.mu.Unlock()
	if old == nil {
		return false // Close was called
	}
	old.Close()
	f.mu.Lock()
	muted := of.muted > 0
	f.mu.Unlock()
	if muted {
		f.topics.Outdate(scope) // also what was accepted when the source was closed
	}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return false
	}
	var node *corev3.Node
	if of.node != nil {
		node = f.nodes.nodeOf(of.node)
	}
	of.source, of.print = f.open(scope, node)
	of.started = map[cache.Key]struct{}{}
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
	case of.print != print(scope):
		return true
	}
	of.replacing = false
	f.renewLater(scope, of)
	if of.topics == 0 {
		f.retireLater(scope, of)
	}
	return false
}

// outdated is the print of a source that has to be replaced, though its authority has not changed.
const outdated = "outdated"

// renewNode replaces the sources of a partition, which has another Node now.
func (f *scopes) renewNode(partition cache.Scope, print func(cache.Scope) string, each func(cache.Scope, func(cache.Key))) {
	f.mu.Lock()
	defer f.mu.Unlock()
	renew := func(scope cache.Scope) {
		of := f.sources[scope]
		if of == nil {
			return
		}
		if of.node == nil {
			of.node = f.nodes.open(partition)
		}
		if of.print = outdated; !of.replacing {
			f.replaceLater(scope, of, print, each)
		}
	}
	renew(partition)
	if f.variants == 0 {
		return
	}
	for scope := range f.sources {
		if scope.Params != "" && partitionOf(scope) == partition {
			renew(scope)
		}
	}
}
