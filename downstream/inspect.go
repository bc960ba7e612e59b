package downstream

import (
	"iter"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// What clients hold, for CSDS and the admin listener. The relay computes it from the sessions for each request, and
// keeps no state for it.

// heldPiece is how many resources are read from a stream at a time, while the stream is locked.
const heldPiece = 256

// Inspected is one client's stream, and what it holds.
type Inspected struct {
	ClientStatus
	stream *stream
}

// Held is what a client holds under one subscription.
type Held struct {
	session.Held
	// NACK is set where State is Nacked; it may be nil there if that was long ago.
	NACK *LastNACK
	// Sent is the time of the response that has not been ACKed; zero if there is none.
	Sent time.Time
	// KeptBack: a rollout withholds something newer from the client.
	KeptBack bool
}

// Inspect iterates over the open streams whose ID is greater than after, oldest first. Each is described when its turn
// comes.
func (s *Server) Inspect(after uint64) iter.Seq[*Inspected] {
	return func(yield func(*Inspected) bool) {
		for st := range s.streamsAfter(after) {
			if !st.isPeer() && !yield(&Inspected{st.describe(), st}) {
				return
			}
		}
	}
}

// InspectStream returns the open stream with this ID, nil if there is none.
func (s *Server) InspectStream(id uint64) *Inspected {
	if st := s.streamOf(id); st != nil && !st.isPeer() {
		return &Inspected{st.describe(), st}
	}
	return nil
}

// Held iterates over what the client holds of a type, or of all types if typeURL is empty, subscription by
// subscription. It locks the stream for a piece at a time, and never while it yields. What changes during the iteration
// may come twice, and what the client unsubscribes from may be left out.
func (i *Inspected) Held(typeURL string) iter.Seq[Held] {
	return func(yield func(Held) bool) {
		st := i.stream
		var piece []session.Held
		var held []Held
		for _, w := range st.walks(typeURL) {
			for {
				st.mu.Lock()
				piece = w.Next(heldPiece, piece[:0])
				st.mu.Unlock()
				if len(piece) == 0 {
					break
				}
				held = held[:0]
				for _, h := range piece {
					held = append(held, Held{Held: h, NACK: nackOf(h.NACK), Sent: moment(h.SentAt).time()})
				}
				st.server.noteKeptBack(held)
				for _, h := range held {
					if !yield(h) {
						return
					}
				}
			}
		}
	}
}

// Subscribed iterates over the topics of a type that the client watches: those of its names, wildcards and globs,
// without the members of sets.
func (i *Inspected) Subscribed(typeURL string) iter.Seq[cache.Key] {
	return func(yield func(cache.Key) bool) {
		st := i.stream
		var piece []session.Held
		for _, w := range st.walks(typeURL) {
			w.LeaveOutMembers()
			for {
				st.mu.Lock()
				piece = w.Next(heldPiece, piece[:0])
				st.mu.Unlock()
				if len(piece) == 0 {
					break
				}
				for _, h := range piece {
					if h.Key != (cache.Key{}) && !yield(h.Key) {
						return
					}
				}
			}
		}
	}
}

// Scopes returns the scopes that the stream uses.
func (i *Inspected) Scopes() []cache.Scope {
	i.stream.mu.Lock()
	defer i.stream.mu.Unlock()
	return slices.Collect(i.stream.scopes.all())
}

// walks begins a walk through what the client holds, for each type.
func (st *stream) walks(typeURL string) (all []*session.Walk) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return nil
	}
	for _, s := range st.sessions {
		if typeURL == "" || s.TypeURL() == typeURL {
			all = append(all, s.Walk())
		}
	}
	return all
}

// noteKeptBack marks what a rollout withholds newer versions of.
func (s *Server) noteKeptBack(held []Held) {
	keeps := s.options.KeepsBack
	if keeps == nil {
		return
	}
	for at := 0; at < len(held); {
		key, end := held[at].Key, at
		var names []string
		for ; end < len(held) && end-at < heldPiece && (held[end].Key == key || !key.IsSet() && sameTopics(held[end].Key, key)); end++ {
			name := held[end].Name
			if !key.IsSet() {
				name = held[end].Key.Name
			} else if r := held[end].Resource; r != nil {
				name = r.Name()
			}
			names = append(names, name)
		}
		if key != (cache.Key{}) && !key.Scope.New {
			for i, is := range keeps(key, names) {
				held[at+i].KeptBack = is
			}
		}
		at = end
	}
}

// sameTopics reports whether both keys have the same scope and type.
func sameTopics(a, b cache.Key) bool {
	return a.Scope == b.Scope && a.TypeURL == b.TypeURL && !a.IsSet() && a != (cache.Key{})
}
