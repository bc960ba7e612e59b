package downstream

import (
	queue "container/heap"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/identity"
)

// Clients whose certificate or token expires while they have a stream.

// Expiries are when the certificates of a listener's clients expire that have a stream, or a
// request that waits. The zero value is ready. Its methods may be called concurrently.
type Expiries struct {
	mu   sync.Mutex
	heap expiryHeap
}

// expiry is that of one stream.
type expiry struct {
	at    time.Time
	place int // in the heap
}

// First returns the first of them, false if there are none.
func (e *Expiries) First() (time.Time, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.heap) == 0 {
		return time.Time{}, false
	}
	return e.heap[0].at, true
}

func (e *Expiries) add(at time.Time) *expiry {
	of := &expiry{at: at}
	e.mu.Lock()
	defer e.mu.Unlock()
	queue.Push(&e.heap, of)
	return of
}

func (e *Expiries) remove(of *expiry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	queue.Remove(&e.heap, of.place)
}

// expiryHeap implements heap.Interface: the first to expire is the first.
type expiryHeap []*expiry

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *expiryHeap) Push(of any) {
	e, _ := of.(*expiry)
	e.place = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	of := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return of
}

// expires notes when the certificate of the stream's client expires, and has the stream end when
// it is time, unless it is a request that is answered once. stop undoes that. It is nil if nothing
// expires.
func (st *stream) expires(g *gate) (stop func()) {
	once := st.form == formUnary || st.form == formREST // its wait ends then, and it is answered
	return g.expires(st.identity, once, st.expire)
}

// expires is that of a stream whose client is id: expire ends it.
func (g *gate) expires(id *identity.Identity, once bool, expire func()) (stop func()) {
	if id == nil || id.Expires.IsZero() && id.Ends.At.IsZero() {
		return nil
	}
	var noted *expiry
	if g.expiries != nil && !id.Expires.IsZero() {
		noted = g.expiries.add(id.Expires)
	}
	var timer *time.Timer
	if !id.Ends.At.IsZero() && !once {
		timer = time.AfterFunc(time.Until(id.Ends.At), expire)
	}
	return func() {
		if timer != nil {
			timer.Stop()
		}
		if noted != nil {
			g.expiries.remove(noted)
		}
	}
}

// expire ends the stream, because what its client has shown has expired.
func (st *stream) expire() {
	st.mu.Lock()
	client := st.client()
	st.mu.Unlock()
	st.byRelay.Store(true)
	st.server.expire(st.grpc.Context(), st.gate, st.identity, st.server.options.Log.With("stream", st.id, "client", client))
}

// expire ends a stream with this context, because what its client has shown has expired.
func (s *Server) expire(ctx context.Context, g *gate, id *identity.Identity, log *slog.Logger) {
	why := &identity.RefusedError{Reason: id.Ends.Because, Message: id.Ends.Because.Ended()}
	s.stats.clientsRefused[why.Reason].Add(1)
	if log, ok := g.line(eventExpired, log); ok {
		log.Info("stream of a client ends: what proves who it is has expired, or does so soon",
			"identity", id.String(), "refused", why.Reason.String())
	}
	if why.Reason == identity.CertificateExpired {
		sendAway(ctx)
	}
	finish(ctx, why)
}

// sendAway has a gRPC client open its next stream on another connection: on the one of the call
// with this context, it cannot show another certificate.
func sendAway(ctx context.Context) {
	if conn := connOf(ctx); conn != nil {
		if g := conn.goAway.Load(); g != nil {
			g.want()
		}
	}
}
