package relay

import (
	"sync"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/feed"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/upstream/directory"
)

// source is the cache.Source of one scope, with all that a reload needs. origins.open returns it.
type source interface {
	cache.Source
	cache.Resumer
	cache.Adopter
	// Drain waits, for a bounded time, until the control plane knows that the relay
	// has unsubscribed from everything.
	Drain()
	// Mute stops the source's updates of the cache. It waits for an update that is being stored.
	Mute()
	// Answered is closed once the control plane has answered, or could not be reached. It is nil if that is not known.
	Answered() <-chan struct{}
	// Close ends the source, and waits until it no longer calls the cache.
	Close()
}

// serverSource is the source of a scope whose authority has servers. It is in origins.streams while it is open.
type serverSource struct {
	*feed.Feed
	scope   cache.Scope
	origins *origins
	origin  *origin
	servers []originServer // those of the origin, or a member of the fleet
	route                  // the member, or the authority's servers
}

// Close implements source.
func (f *serverSource) Close() {
	f.Feed.Close()
	s := f.origins
	s.mu.Lock()
	if s.streams[f.scope] == f { // the scope may have another source by now
		s.streams = cache.Without(s.streams, &s.room, f.scope)
		s.patterns = cache.Without(s.patterns, &s.patternsRoom, f.scope)
	}
	s.mu.Unlock()
	s.leave(f.origin)
	if f.origin.rollout != nil {
		s.rollouts.Closed(f.scope)
	}
}

func (f *serverSource) statuses() (all []operator.ServerStatus) {
	for _, s := range f.Sources() {
		for _, st := range s.Source.Statuses() {
			all = append(all, operator.ServerStatus{Status: st, Server: f.servers[s.Server].config, Active: s.Active})
		}
	}
	return all
}

// directorySource is a directory and its way to the cache, for all scopes.
type directorySource struct {
	*directory.Source
	feed *feed.Feed
	once sync.Once
}

// end ends the reading of the directory, and waits until it has ended.
func (s *directorySource) end() {
	s.once.Do(func() {
		s.Source.Close()
		s.feed.Close()
	})
}

// directoryScope is a scope's part of a directory, which outlives the scope.
type directoryScope struct {
	*directorySource
	scope   cache.Scope
	origin  *origin
	origins *origins
}

// Resume implements cache.Resumer. The state is always that of the files.
func (*directoryScope) Resume(cache.Key) {}

// Adopt implements cache.Adopter.
func (*directoryScope) Adopt(cache.Key) {}

// Stop implements cache.Source.
func (s *directoryScope) Stop(k cache.Key) {
	s.Source.Stop(k)
	s.feed.Stop(k)
}

// Drain implements source.
func (*directoryScope) Drain() {}

// Answered implements source.
func (*directoryScope) Answered() <-chan struct{} { return nil }

// Mute implements source. All scopes of a directory are replaced together.
func (s *directoryScope) Mute() { s.feed.Mute() }

// Close implements source. After another directory has replaced this one, its updates are dropped, also for topics
// that continue.
func (s *directoryScope) Close() {
	if !s.origins.isNewest(s.origin) {
		s.end()
	}
	s.origins.leave(s.origin)
	if s.origin.rollout != nil {
		s.origins.rollouts.Closed(s.scope)
	}
}
