package downstream

import (
	"iter"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// What clients hold, for CSDS and the admin listener. It is computed from the sessions for each request: no state is kept
// for it.

// heldPiece is how many resources are read of a stream at a time, while it is locked.
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
	// Sent is when the response was sent that has not been ACKed; zero if there is none.
	Sent time.Time
	// KeptBack: a rollout keeps something newer back from the client.
	KeptBack bool
}

// Inspect yields the open streams in the order in which they came, those whose ID is greater than after. Each
// is described when it is its turn.
func (s *Server) Inspect(after uint64) iter.Seq[*Inspected] {
	return func(yield func(*Inspected) bool) {
		for st := range s.streamsAfter(after) {
			if !yield(&Inspected{st.describe(), st}) {
				return
			}
		}
	}
}

// InspectStream returns the open stream with an ID, nil if there is none.
func (s *Server) InspectStream(id uint64) *Inspected {
	if st := s.streamOf(id); st != nil {
		return &Inspected{st.describe(), st}
	}
	return nil
}

// Held yields what the client holds of a type, or of all types if that is empty, a subscription after the other.
// The stream is locked for a piece at a time, and not while this yields. What changes meanwhile may come twice, and
// what the client gives up may be left out.
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

// Subscribed yields the topics that the client watches of a type: those of its names, wildcards and globs, without
// the members of these.
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

// Scopes are those that the stream uses.
func (i *Inspected) Scopes() []cache.Scope {
	i.stream.mu.Lock()
	defer i.stream.mu.Unlock()
	return slices.Collect(i.stream.scopes.all())
}

// walks begins a walk through what the client holds of each type.
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

// noteKeptBack notes of what a rollout keeps newer versions back.
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

// sameTopics reports whether both are names of a scope and type.
func sameTopics(a, b cache.Key) bool {
	return a.Scope == b.Scope && a.TypeURL == b.TypeURL && !a.IsSet() && a != (cache.Key{})
}
