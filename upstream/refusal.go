package upstream

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
)

// refusal feeds topics whose type cannot be requested with an error that says
// why. Without it, clients would wait for an answer of the control plane.
type refusal struct {
	to   delivery.Receiver
	log  *slog.Logger
	done chan struct{} // closed when nothing more is delivered

	// mu comes last in the order of locks.
	mu sync.Mutex
	// types are the refused types that are wanted.
	types map[string]*refused
	room  cache.Room // of types
	// pending are the topics whose error was not delivered yet, in order.
	pending []cache.Key
	// sending says that a goroutine is sending them. The caller of start cannot, because it
	// holds the cache's locks.
	sending bool
	closed  bool
	logged  int
}

// maxRefusedLogs bounds the lines of log about types, because clients may make up types.
const maxRefusedLogs = 16

type refused struct {
	err    *cache.Error
	since  time.Time
	topics map[cache.Key]struct{}
	room   cache.Room // of topics
}

func newRefusal(to delivery.Receiver, log *slog.Logger) *refusal {
	return &refusal{to: to, log: log, done: make(chan struct{}), types: map[string]*refused{}}
}

// start queues the error of a topic. It neither blocks nor calls the cache.
func (r *refusal) start(k cache.Key, why *cache.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	t := r.types[k.TypeURL]
	if t == nil {
		t = &refused{err: why, since: time.Now(), topics: map[cache.Key]struct{}{}}
		r.types[k.TypeURL] = t
		if r.logged++; r.logged <= maxRefusedLogs {
			r.log.Warn("a type cannot be requested", "type_url", k.TypeURL, "reason", why.Message)
		}
	}
	t.topics[k] = struct{}{}
	r.pending = append(r.pending, k)
	r.begin()
}

// begin starts the goroutine that sends the pending errors, unless it runs. The caller holds mu.
func (r *refusal) begin() {
	if !r.sending {
		r.sending = true
		go r.send()
	}
}

// resend queues the errors of all topics once more. It neither blocks nor calls
// the cache.
func (r *refusal) resend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || len(r.types) == 0 {
		return
	}
	for _, t := range r.types {
		r.pending = slices.AppendSeq(r.pending, maps.Keys(t.topics))
	}
	r.begin()
}

// stop ends the feeding of a topic.
func (r *refusal) stop(k cache.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.types[k.TypeURL]
	if t == nil {
		return
	}
	if t.topics = cache.Without(t.topics, &t.room, k); len(t.topics) == 0 {
		r.types = cache.Without(r.types, &r.room, k.TypeURL)
	}
}

// close ends the refusal. done is closed once nothing more is delivered.
func (r *refusal) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed, r.pending = true, nil
	if !r.sending {
		close(r.done)
	}
}

func (r *refusal) send() {
	for {
		r.mu.Lock()
		keys := r.pending
		r.pending = nil
		if len(keys) == 0 {
			r.sending = false
			if r.closed {
				close(r.done)
			}
			r.mu.Unlock()
			return
		}
		byType := map[string]int{} // indices in updates
		var updates []cache.Update
		for _, k := range keys {
			t := r.types[k.TypeURL]
			if t == nil {
				continue // stopped since
			}
			at, there := byType[k.TypeURL]
			if !there {
				at = len(updates)
				byType[k.TypeURL] = at
				updates = append(updates, cache.Update{Scope: k.Scope, TypeURL: k.TypeURL})
			}
			u := &updates[at]
			if k.IsSet() {
				u.Sets = append(u.Sets, cache.SetUpdate{Name: k.Name, Err: t.err})
			} else {
				u.Changes = append(u.Changes, cache.Change{Name: k.Name, Err: t.err})
			}
		}
		r.mu.Unlock()
		if len(updates) > 0 {
			r.to.Deliver(delivery.Event{Delivery: delivery.Delivery{Cause: delivery.Refused, Types: updates}})
		}
	}
}

// statuses returns a status for each refused type.
func (r *refusal) statuses() (all []Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, typeURL := range slices.Sorted(maps.Keys(r.types)) {
		t := r.types[typeURL]
		all = append(all, Status{TypeURL: typeURL, Since: t.since, LastError: t.err.Message, Subscriptions: len(t.topics)})
	}
	return all
}
