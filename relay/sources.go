package relay

import (
	"sync"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/collections"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/rollout/gate"
	"github.com/xds-relay/xds-relay/store"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/directory"
)

// source is a cache.Source for the topics of one scope. A new kind of source implements it,
// and origins.open returns it.
type source interface {
	cache.Source
	// Drain waits, for a bounded time, until the control plane knows that the relay
	// has unsubscribed from everything.
	Drain()
	// Mute stops the source's updates of the cache. It waits for an update that is being stored.
	Mute()
	// Close ends the source, and waits until it no longer calls the cache.
	Close()
}

// valve is between a source and the cache. Once it is closed, it drops all updates.
type valve struct {
	to     gate.Sink
	mu     sync.RWMutex // held for reading while an update is stored
	closed bool
}

// Apply passes updates on.
func (v *valve) Apply(updates ...cache.Update) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !v.closed {
		v.to.Apply(updates...)
	}
}

// close closes the valve, and waits for an update that is being stored.
func (v *valve) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
}

// directorySource is a directory and its guard.
type directorySource struct {
	*directory.Source
	guard *guard.Guard
	valve *valve
	once  sync.Once
}

// end ends the reading of the directory, and waits until it has ended.
func (s *directorySource) end() {
	s.once.Do(func() {
		s.Source.Close()
		s.guard.Close()
	})
}

// directoryScope is a scope's part of a directory, which outlives the scope.
type directoryScope struct {
	*directorySource
	origin  *origin
	origins *origins
}

// Stop implements cache.Source.
func (s *directoryScope) Stop(k cache.Key) {
	s.Source.Stop(k)
	s.guard.Stop(k)
}

// Drain implements source.
func (*directoryScope) Drain() {}

// Mute implements source. All scopes of a directory are replaced together.
func (s *directoryScope) Mute() { s.valve.close() }

// Close implements source. After another directory has replaced this one, its updates are dropped, also for topics
// that continue.
func (s *directoryScope) Close() {
	if !s.origins.isNewest(s.origin) {
		s.directorySource.end()
	}
	s.origins.leave(s.origin)
}

// keptSource is a source from servers whose scope has a keeper. The keeper starts a topic before the servers do.
type keptSource struct {
	serverSource
	keeper *store.Keeper
}

// Start implements cache.Source.
func (s *keptSource) Start(k cache.Key) {
	s.keeper.Start(k)
	s.serverSource.Start(k)
}

// Stop implements cache.Source.
func (s *keptSource) Stop(k cache.Key) {
	s.serverSource.Stop(k)
	s.keeper.Stop(k)
}

// Resume implements cache.Resumer.
func (s *keptSource) Resume(k cache.Key) { cache.Resume(s.serverSource, k) }

// Adopt implements cache.Adopter.
func (s *keptSource) Adopt(k cache.Key) { cache.Adopt(s.serverSource, k) }

// Close implements source.
func (s *keptSource) Close() {
	s.serverSource.Close()
	s.keeper.Close()
}

// guardedSource is a source from servers with its guard.
type guardedSource struct {
	serverSource
	guard  *guard.Guard
	valve  *valve
	answer *firstAnswer
}

// Answered implements answering.
func (s *guardedSource) Answered() <-chan struct{} { return s.answer.came }

// Mute implements source.
func (s *guardedSource) Mute() { s.valve.close() }

// Stop implements cache.Source.
func (s *guardedSource) Stop(k cache.Key) {
	s.serverSource.Stop(k)
	s.guard.Stop(k)
}

// Resume implements cache.Resumer.
func (s *guardedSource) Resume(k cache.Key) { cache.Resume(s.serverSource, k) }

// Adopt implements cache.Adopter.
func (s *guardedSource) Adopt(k cache.Key) { cache.Adopt(s.serverSource, k) }

// Close implements source.
func (s *guardedSource) Close() {
	s.serverSource.Close()
	s.guard.Close()
}

// guardedDerived is the source of derived topics with its guard.
type guardedDerived struct {
	*collections.Resolver
	guard *guard.Guard
}

// Stop implements cache.Source.
func (s guardedDerived) Stop(k cache.Key) {
	s.Resolver.Stop(k)
	s.guard.Stop(k)
}

// gatedSource is a source whose scope has a rollout.
type gatedSource struct {
	source
	rollouts *gate.Controller
	scope    cache.Scope
}

// Resume implements cache.Resumer.
func (s *gatedSource) Resume(k cache.Key) { cache.Resume(s.source, k) }

// Adopt implements cache.Adopter.
func (s *gatedSource) Adopt(k cache.Key) { cache.Adopt(s.source, k) }

// Close implements source.
func (s *gatedSource) Close() {
	s.source.Close()
	s.rollouts.Closed(s.scope)
}

// serverSource is the source of a scope whose authority has servers.
type serverSource interface {
	cache.Source
	Drain()
	Close()
	// Reject sends the control plane a NACK, because its state of a type was refused: see gate.Rejecter.
	Reject(typeURL, version, words string)
	// PassOn sends the control plane a NACK, because a client has rejected a resource of a type. It does so only if
	// the control plane is a relay.
	PassOn(typeURL, words string)
	statuses() []serverStatus
}

// serverStatus is the status of a stream to a server.
type serverStatus struct {
	upstream.Status
	server *configs.Server
	active bool // the cache stores the server's updates
}

// streams are the streams of one scope to one server, the ServerSource: an upstream.Stream for all types, or
// upstream.Streams with one for each type.
type streams interface {
	failover.ServerSource
	// Reject answers the newest response of a type with a NACK, and the last version that was
	// accepted. The response was acknowledged when it came.
	Reject(typeURL, version, words string)
	// PassOn does the same once, if the control plane is a relay.
	PassOn(typeURL, words string)
	Statuses() []upstream.Status
}

func statusesOf(of streams, server *configs.Server, active bool) (all []serverStatus) {
	for _, st := range of.Statuses() {
		all = append(all, serverStatus{Status: st, server: server, active: active})
	}
	return all
}
