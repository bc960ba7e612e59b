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

// Aggregated feeds the topics of one scope from a control plane over one aggregated stream. It is
// the [cache.Source] of that scope.
//
// Some control planes end a stream on which a type is requested that they do not have. All
// clients of the scope share the stream, and any of them can request any type. So once the control
// plane has ended a stream on which a type was requested that it has never answered, each such type
// gets a stream of its own. When the control plane answers the type, it returns to the shared stream.
type Aggregated struct {
	*Stream // the shared one
	open    func(typeURL string) *Stream
	watch   func(delivery.Event)
	plane   *planeTypes
	refused *refusal
	done    chan struct{}

	// mu comes after Stream.mu and the cache's locks, and before the inbox of a Stream,
	// refusal.mu and planeTypes.mu.
	mu      sync.Mutex
	types   map[string]*unanswered // that the control plane has never answered, by type URL
	room    cache.Room             // of types
	alone   int                    // types that have a stream of their own
	closed  bool
	closing sync.WaitGroup // streams of types that are not requested any more
}

// maxAlone bounds the streams of single types in a scope. If there are that many, a further type
// takes the place of a type whose stream the control plane has ended. If there is none, the
// further type is refused.
const maxAlone = 16

// unanswered is a type that the control plane has never answered.
type unanswered struct {
	typeURL string
	topics  map[cache.Key]struct{}
	room    cache.Room
	stream  *Stream // its own; nil if it is on the shared one, or refused
	refused bool
	failed  bool // the control plane has ended its own stream
}

// NewAggregated begins to feed a scope. The connection belongs to the caller, who may share it. The streams send node,
// which must not be changed any more. Close ends them.
func NewAggregated(scope cache.Scope, conn grpc.ClientConnInterface, node *corev3.Node, o Options, to delivery.Receiver, log *slog.Logger) *Aggregated {
	log = withScope(log, scope)
	o.watch, o.peers = mergeEvents(to), new(peers)
	if o.Presence == nil {
		o.Presence = NewPresence("", log)
	}
	a := &Aggregated{
		watch: o.watch, plane: &o.Presence.types, refused: newRefusal(to, log),
		done: make(chan struct{}), types: map[string]*unanswered{},
	}
	o.typeAnswered, o.typesBlamed = a.answered, a.isolate
	forms := o.Protocol.forms()
	a.open = func(typeURL string) *Stream {
		own := o
		own.peers, own.Presence = new(peers), NewPresence("", slog.New(slog.DiscardHandler))
		own.Presence.forms.inherit(&o.Presence.forms)
		own.typesBlamed = a.failed
		own.watch = func(e delivery.Event) {
			e.TypeURL = typeURL
			o.watch(e)
		}
		return newStream(forms, scope, conn, node, own, to, log)
	}
	a.Stream = newStream(forms, scope, conn, node, o, to, log)
	return a
}

// Start begins to feed a topic. It neither blocks nor calls the cache.
func (a *Aggregated) Start(k cache.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.types[k.TypeURL]
	if t == nil && a.plane.hasAnswered(k.TypeURL) {
		a.Stream.Start(k)
		return
	}
	if t == nil {
		t = &unanswered{typeURL: k.TypeURL, topics: map[cache.Key]struct{}{}}
		a.types[k.TypeURL] = t
		if a.plane.ends() {
			a.place(t)
		}
	}
	t.topics[k] = struct{}{}
	a.start(t, k)
}

// Refresh requests a topic that is fed once more. It neither blocks nor calls the cache.
func (a *Aggregated) Refresh(k cache.Key) { a.of(k).Refresh(k) }

// Resume is [Stream.Resume].
func (a *Aggregated) Resume(k cache.Key) { a.of(k).Resume(k) }

// Adopt is [Stream.Adopt].
func (a *Aggregated) Adopt(k cache.Key) { a.of(k).Adopt(k) }

// Stop ends the feeding of a topic. It neither blocks nor calls the cache.
func (a *Aggregated) Stop(k cache.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.types[k.TypeURL]
	if t == nil {
		a.Stream.Stop(k)
		return
	}
	a.stop(t, k)
	if t.topics = cache.Without(t.topics, &t.room, k); len(t.topics) == 0 {
		a.forget(t)
	}
}

// of returns the stream of a topic.
func (a *Aggregated) of(k cache.Key) *Stream {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.types[k.TypeURL]; t != nil && t.stream != nil {
		return t.stream
	}
	return a.Stream
}

// start starts a topic on the stream of its type. The caller holds mu, also for the functions from here
// to forget.
func (a *Aggregated) start(t *unanswered, k cache.Key) {
	switch {
	case t.stream != nil:
		t.stream.Start(k)
	case t.refused:
		a.refused.start(k, tooManyAlone(t.typeURL))
	default:
		a.Stream.Start(k)
	}
}

func (a *Aggregated) stop(t *unanswered, k cache.Key) {
	switch {
	case t.stream != nil:
		t.stream.Stop(k)
	case t.refused:
		a.refused.stop(k)
	default:
		a.Stream.Stop(k)
	}
}

func tooManyAlone(typeURL string) *cache.Error {
	return &cache.Error{
		Code: codes.ResourceExhausted,
		Message: "type " + loglines.Clip(typeURL) + " is not requested: the control plane ends streams because of types that it does not have, " +
			"and there are too many that it has never answered",
	}
}

// move stops the topics of a type, calls to, which gives the type another place, and starts them there.
func (a *Aggregated) move(t *unanswered, to func()) {
	for k := range t.topics {
		a.stop(t, k)
	}
	a.end(t)
	t.refused, t.failed = false, false
	to()
	for k := range t.topics {
		a.start(t, k)
	}
}

// place gives a type a stream of its own, or refuses it.
func (a *Aggregated) place(t *unanswered) {
	if a.alone >= maxAlone && !a.makeRoom() {
		t.refused = true
		return
	}
	a.alone++
	t.stream = a.open(t.typeURL)
}

// makeRoom refuses a type whose own stream the control plane has ended. It returns false if there is
// none.
func (a *Aggregated) makeRoom() bool {
	for _, other := range a.types {
		if other.failed {
			a.move(other, func() { other.refused = true })
			return true
		}
	}
	return false
}

// end ends the stream of a type, if it has one. From then on it delivers nothing: the shared stream may have brought
// something newer.
func (a *Aggregated) end(t *unanswered) {
	if t.stream == nil {
		return
	}
	st := t.stream
	t.stream = nil
	a.alone--
	st.Close()
	a.closing.Go(func() {
		<-st.Done()
		a.watch(delivery.Event{Kind: delivery.Ended, TypeURL: t.typeURL})
	})
}

// forget forgets a type, and gives its place to a refused one.
func (a *Aggregated) forget(t *unanswered) {
	had := t.stream != nil
	a.end(t)
	a.types = cache.Without(a.types, &a.room, t.typeURL)
	if !had || a.closed {
		return
	}
	for _, other := range a.types {
		if other.refused {
			a.move(other, func() { a.place(other) })
			return
		}
	}
}

// answered notes that the control plane has answered a type for the first time. It is called with
// the lock of a stream.
func (a *Aggregated) answered(typeURL string) {
	a.plane.add(typeURL)
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.types[typeURL]
	if t == nil || a.closed {
		return
	}
	if t.stream != nil {
		a.move(t, func() {})
	}
	a.forget(t)
}

// isolate gives each of the types a stream of its own, as one of them may be why the control plane
// has ended the shared stream. It returns false if none of them gets one. It is called with the lock
// of the shared stream.
func (a *Aggregated) isolate(types []string, why string) (any bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	for _, typeURL := range types {
		t := a.types[typeURL]
		if t == nil || t.stream != nil || t.refused || a.plane.hasAnswered(typeURL) {
			continue
		}
		any = true
		a.move(t, func() { a.place(t) })
		if log, ok := a.plane.lines.Next(a.log); ok {
			log.Warn("control plane has ended a stream, perhaps because of a type that it has never answered: the type gets a stream of its own",
				"type_url", shown(typeURL), "reason", why)
		}
	}
	if any {
		a.plane.hasEnded()
	}
	return any
}

// failed notes that the control plane has ended the stream of a single type. It is called with the
// lock of that stream.
func (a *Aggregated) failed(types []string, _ string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, typeURL := range types {
		if t := a.types[typeURL]; t != nil && t.stream != nil {
			t.failed = true
			a.plane.hasEnded()
		}
	}
	return false
}

// Resend is [Stream.Resend] of each stream.
func (a *Aggregated) Resend() {
	a.Stream.Resend()
	for _, t := range a.own() {
		t.stream.Resend()
	}
	a.refused.resend()
}

// Drain is [Stream.Drain] of each stream.
func (a *Aggregated) Drain() {
	var wg sync.WaitGroup
	for _, t := range a.own() {
		wg.Go(t.stream.Drain)
	}
	a.Stream.Drain()
	wg.Wait()
}

// Close is [Stream.Close] of each stream.
func (a *Aggregated) Close() {
	a.mu.Lock()
	again := a.closed
	a.closed = true
	for _, t := range a.types {
		a.end(t)
	}
	a.mu.Unlock()
	if again {
		return
	}
	a.refused.close()
	a.Stream.Close()
	go func() {
		defer close(a.done)
		<-a.Stream.Done()
		a.closing.Wait()
		<-a.refused.done
	}()
}

// Done is closed when all streams have ended, after Close.
func (a *Aggregated) Done() <-chan struct{} { return a.done }

// own returns the types that have a stream of their own, in order.
func (a *Aggregated) own() (types []unanswered) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, typeURL := range slices.Sorted(maps.Keys(a.types)) {
		if t := a.types[typeURL]; t.stream != nil {
			types = append(types, unanswered{typeURL: typeURL, stream: t.stream})
		}
	}
	return types
}

// Statuses returns the status of each stream, and of each type that is refused.
func (a *Aggregated) Statuses() []Status {
	all := a.Stream.Statuses()
	for _, t := range a.own() {
		for _, st := range t.stream.Statuses() {
			st.TypeURL = t.typeURL
			if !st.Connected {
				st.Protocol = "" // as far as the relay knows, the server does not have the type
			}
			all = append(all, st)
		}
	}
	return append(all, a.refused.statuses()...)
}

var (
	_ cache.Resumer = (*Aggregated)(nil)
	_ cache.Adopter = (*Aggregated)(nil)
)
