package relay

import (
	"context"
	"sync"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/rollout/gate"
)

// scopes is the cache's source: it passes each topic to the source of its scope, which it
// opens for the first topic and closes after the last. So each scope (authority, partition
// and dynamic parameters) has one stream upstream, however many clients and topics it has.
type scopes struct {
	// open opens a scope's source, and returns its fingerprint. It must not block.
	open func(scope cache.Scope, node *corev3.Node) (source, string)
	// takeOver is called before the first source of a scope is opened.
	takeOver func(cache.Scope)
	// try is called before a scope's source is replaced. It may wait.
	try func(ctx context.Context, scope cache.Scope, present *serverSource)
	// planeOf identifies the control plane of a scope's source in the newest generation: nil if there is none.
	planeOf func(cache.Scope) any
	// resumes reports whether the next source of a scope resumes where its present one, which has a fingerprint, ends: it
	// receives only what differs.
	resumes func(scope cache.Scope, present string) bool
	// derived is the source of the derived topics.
	derived cache.Source
	// rollouts is the source of topics in rollouts.
	rollouts *gate.Controller

	// topics are the topics of the cache.
	topics outdating
	// nodes are the Nodes for old-style names.
	nodes *partitionNodes
	// turns are the turns of sources that are being replaced.
	turns turns
	ctx   context.Context // ends with Close
	end   context.CancelFunc

	mu      sync.Mutex
	sources map[cache.Scope]*scopeSource
	room    cache.Room // of sources
	// variants is how many of the sources have dynamic parameters.
	variants  int
	closed    bool
	handovers atomic.Uint64 // counts the scopes that a fleet has moved
	// closing counts the sources that are being closed or replaced.
	closing sync.WaitGroup
}

type scopeSource struct {
	// source is nil while it is being replaced: see replace. fingerprint is that of its origin.
	source      source
	fingerprint string
	node        *partitionNode // nil for xdstp names
	topics      int
	idle        int // counts how often the last topic stopped
	// muted counts the reloads that replaced the source, and replacedMuted is what it was at the last replacement.
	muted, replacedMuted int
	// replacing: a goroutine replaces the source. started, if not nil, has the topics that the new source has started
	// so far.
	replacing bool
	started   map[cache.Key]struct{}
	// changed, if not nil, is closed when there is another source.
	changed chan struct{}
}

// noteChange wakes those who wait for another source. The caller holds scopes.mu.
func (of *scopeSource) noteChange() {
	if of.changed != nil {
		close(of.changed)
		of.changed = nil
	}
}

// newScopes returns scopes without open and derived. The caller sets these before the first topic is watched.
func newScopes() *scopes {
	f := &scopes{
		sources: map[cache.Scope]*scopeSource{}, nodes: newPartitionNodes(),
		planeOf: func(cache.Scope) any { return nil }, takeOver: func(cache.Scope) {},
		resumes: func(cache.Scope, string) bool { return false }, try: func(context.Context, cache.Scope, *serverSource) {},
	}
	f.ctx, f.end = context.WithCancel(context.Background())
	return f
}

// Start implements cache.Source.
func (f *scopes) Start(k cache.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.Scope.Derived != "" {
		if k.Scope.OldStyle {
			f.nodes.joinDerived(clientsOf(k.Scope))
		}
		f.derived.Start(k)
		return
	}
	if k.Scope.New {
		f.rollouts.Start(k)
		return
	}
	if f.closed {
		return // a stream looks up its names again while the relay shuts down
	}
	of := f.sources[k.Scope]
	if of == nil {
		var node *corev3.Node
		n := f.nodes.open(partitionOf(k.Scope))
		if n != nil {
			node = f.nodes.nodeOf(n)
		}
		of = &scopeSource{node: n}
		f.takeOver(k.Scope)
		of.source, of.fingerprint = f.open(k.Scope, node)
		f.sources[k.Scope] = of
		if k.Scope.Params != "" {
			f.variants++
		}
	}
	of.topics++
	of.start(k)
}

// Refresh implements cache.Source.
func (f *scopes) Refresh(k cache.Key) {
	if k.Scope.Derived != "" {
		f.derived.Refresh(k)
		return
	}
	k.Scope.New = false
	f.mu.Lock()
	defer f.mu.Unlock()
	if of := f.sources[k.Scope]; of.feeds(k) {
		of.source.Refresh(k)
	}
}

// Resume implements cache.Resumer. Derived topics do not resume.
func (f *scopes) Resume(k cache.Key) {
	if k.Scope.Derived != "" {
		return
	}
	k.Scope.New = false
	f.mu.Lock()
	defer f.mu.Unlock()
	if of := f.sources[k.Scope]; of.feeds(k) {
		of.source.Resume(k)
	}
}

// Adopt implements cache.Adopter. Only leaf topics are prefetched.
func (f *scopes) Adopt(k cache.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if of := f.sources[k.Scope]; of.feeds(k) {
		of.source.Adopt(k)
	}
}

// Refused implements cache.Refuser.
func (f *scopes) Refused(k cache.Key, name string, sent uint32) {
	if by, ok := f.derived.(cache.Refuser); ok {
		by.Refused(k, name, sent)
	}
}

// Stop implements cache.Source.
func (f *scopes) Stop(k cache.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.Scope.Derived != "" {
		f.derived.Stop(k)
		if k.Scope.OldStyle {
			f.nodes.leave(clientsOf(k.Scope), nil)
		}
		return
	}
	if k.Scope.New {
		f.rollouts.Stop(k)
		return
	}
	of := f.sources[k.Scope]
	if of == nil {
		return // Close was called
	}
	if of.feeds(k) {
		of.source.Stop(k)
		delete(of.started, k)
	}
	if f.rollouts != nil {
		f.rollouts.AcceptedStopped(k)
	}
	if of.topics--; of.topics == 0 {
		of.idle++
		f.retireLater(k.Scope, of)
	}
}

// retireLater retires a source without topics. The caller holds mu.
func (f *scopes) retireLater(scope cache.Scope, of *scopeSource) {
	idle, is := of.idle, of.source
	if of.replacing || f.closed {
		return // replace does it afterwards
	}
	// Use another goroutine: retire waits for a goroutine that may wait for a lock of the cache.
	f.closing.Go(func() { f.retire(scope, of, is, idle) })
}

// retire closes a source without topics, unless a topic started while the source drained.
// So a scope never has two sources.
func (f *scopes) retire(scope cache.Scope, of *scopeSource, is source, idle int) {
	is.Drain()
	f.mu.Lock()
	if of.topics > 0 || of.idle != idle || f.sources[scope] != of || of.replacing || of.source != is {
		f.mu.Unlock()
		return
	}
	f.sources = cache.Without(f.sources, &f.room, scope)
	of.noteChange()
	if scope.Params != "" {
		f.variants--
	}
	f.nodes.closed(partitionOf(scope), of.node)
	f.mu.Unlock()
	is.Close()
}

// Close closes all sources, and waits until they are closed.
func (f *scopes) Close() {
	f.mu.Lock()
	f.closed = true
	f.end()
	for _, of := range f.sources {
		if of.source != nil {
			f.closing.Go(of.source.Close)
			of.source = nil
		}
	}
	f.sources = map[cache.Scope]*scopeSource{}
	f.mu.Unlock()
	f.closing.Wait()
}

// clientsOf returns the scope that the clients of a derived topic's scope join.
func clientsOf(scope cache.Scope) cache.Scope {
	scope.Derived = ""
	return partitionOf(scope)
}
