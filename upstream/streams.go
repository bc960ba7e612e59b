package upstream

import (
	"log/slog"
	"maps"
	"slices"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Streams feeds the topics of one scope from a control plane, over a stream for
// each type, from the type's own service or by REST. It is the [cache.Source] of
// that scope. Each stream finds out for itself which form the control plane implements, and
// fails and recovers on its own.
//
// Between streams there is no order: an update that is make-before-break on an aggregated
// stream is not here. xDS: "Eventual consistency considerations".
type Streams struct {
	open    func(forms []*form) *Stream
	opts    Options
	refused *refusal
	done    chan struct{}

	// mu comes before the inbox of a Stream and refusal.mu, and after the cache's
	// locks.
	mu      sync.Mutex
	streams map[string]*Stream // by type URL
	closed  bool
}

// NewStreams begins to feed a scope. The connection belongs to the caller, who may
// share it. The streams send node, which must not be changed any more. Close ends them.
func NewStreams(scope cache.Scope, conn grpc.ClientConnInterface, node *corev3.Node, o Options, to delivery.Receiver, log *slog.Logger) *Streams {
	log = withScope(log, scope)
	o.watch, o.peers = mergeEvents(to), new(peers)
	if o.Presence == nil {
		o.Presence = NewPresence("", log)
	}
	return &Streams{
		open: func(forms []*form) *Stream {
			return newStream(forms, scope, conn, node, o, to, log)
		},
		opts:    o,
		refused: newRefusal(to, log),
		done:    make(chan struct{}),
		streams: map[string]*Stream{},
	}
}

// Start begins to feed a topic. It neither blocks nor calls the cache.
func (s *Streams) Start(k cache.Key) {
	if st := s.stream(k.TypeURL); st != nil {
		st.Start(k)
	} else {
		s.refused.start(k, s.refuse(k.TypeURL))
	}
}

// Refresh requests a topic that is fed once more. It neither blocks nor calls the cache.
func (s *Streams) Refresh(k cache.Key) {
	if st := s.stream(k.TypeURL); st != nil {
		st.Refresh(k)
	}
}

// Resume is [Stream.Resume].
func (s *Streams) Resume(k cache.Key) {
	if st := s.stream(k.TypeURL); st != nil {
		st.Resume(k)
	}
}

// Adopt is [Stream.Adopt].
func (s *Streams) Adopt(k cache.Key) {
	if st := s.stream(k.TypeURL); st != nil {
		st.Adopt(k)
	}
}

// Stop ends the feeding of a topic. It neither blocks nor calls the cache.
func (s *Streams) Stop(k cache.Key) {
	if st := s.stream(k.TypeURL); st != nil {
		st.Stop(k)
	} else {
		s.refused.stop(k)
	}
}

// Resend is [Stream.Resend] of each stream.
func (s *Streams) Resend() {
	for _, st := range s.all() {
		st.Resend()
	}
	s.refused.resend()
}

// stream returns the stream of a type, and makes it if there is none. It returns nil if the type
// cannot be requested. A stream of which nothing is wanted is not open, but is kept, as there
// are not many types.
func (s *Streams) stream(typeURL string) *Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.streams[typeURL]
	if st == nil && !s.closed {
		if forms := serviceForms(typeURL, s.opts.Protocol); len(forms) > 0 {
			st = s.open(forms)
			s.streams[typeURL] = st
		}
	}
	return st
}

// refuse returns why a type cannot be requested.
func (s *Streams) refuse(typeURL string) *cache.Error {
	how := "discovery service of its own"
	switch {
	case s.opts.Protocol == REST:
		how = "REST-JSON form"
	case len(serviceForms(typeURL, Auto)) > 0:
		how = "discovery service of its own in " + string(s.opts.Protocol)
	}
	return &cache.Error{
		Code:    codes.Unimplemented,
		Message: "type " + loglines.Clip(typeURL) + " has no " + how + ", and the relay requests each type from its control plane separately",
	}
}

// Drain is [Stream.Drain] of each stream.
func (s *Streams) Drain() {
	var wg sync.WaitGroup
	for _, st := range s.all() {
		wg.Go(st.Drain)
	}
	wg.Wait()
}

// Close ends the streams. It does not wait, and so may be called with the cache
// locked. Once Done is closed, nothing more is delivered.
func (s *Streams) Close() {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return
	}
	s.refused.close()
	streams := s.all()
	for _, st := range streams {
		st.Close()
	}
	go func() {
		defer close(s.done)
		for _, st := range streams {
			<-st.Done()
		}
		<-s.refused.done
	}()
}

// Done is closed when all streams have ended, after Close.
func (s *Streams) Done() <-chan struct{} { return s.done }

// all returns the streams, in the order of their types.
func (s *Streams) all() []*Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	streams := make([]*Stream, 0, len(s.streams))
	for _, typeURL := range slices.Sorted(maps.Keys(s.streams)) {
		streams = append(streams, s.streams[typeURL])
	}
	return streams
}

// Statuses returns a snapshot of each stream that is in use, and of each type that
// is wanted and has no stream. It must not be called with the cache locked.
func (s *Streams) Statuses() []Status {
	var all []Status
	for _, st := range s.all() {
		for _, status := range st.Statuses() {
			if status.inUse() {
				all = append(all, status)
			}
		}
	}
	return append(all, s.refused.statuses()...)
}
