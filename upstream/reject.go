package upstream

import (
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// NACKs for a state that the relay had acknowledged, and that its clients have rejected since.

// Reject sends a NACK of the newest response of a type. words are those of the clients that rejected
// it, version is the last one that was accepted. If the control plane sends the same state once more,
// the relay answers with an ACK: the control plane has had the NACK, and one that sends the state
// again after each NACK must not be kept busy.
func (s *Stream) Reject(typeURL, version, words string) {
	s.mu.Lock()
	f, b := s.feeds[typeURL], s.namesStream
	if f != nil && f.begun() {
		f.session.Reject(version, loglines.Clip(words))
		s.agenda.add(f)
	}
	s.mu.Unlock()
	s.inbox.Wake()
	if b != nil {
		b.Reject(typeURL, version, words)
	}
}

// PassOn sends a NACK of the newest response of a type, because clients have rejected it. The relay had
// acknowledged it when it came. How often a response gets a NACK is bounded: see [session.Session].
func (s *Stream) PassOn(typeURL string, r session.Rejection) {
	s.mu.Lock()
	f, b := s.feeds[typeURL], s.namesStream
	if f != nil && f.begun() {
		r.Words = loglines.Clip(r.Words)
		if s.relay {
			r.Words = r.By.Words(r.Words)
		} else {
			r.By = chain.Rejecters{}
		}
		f.session.PassOn(r)
		s.agenda.add(f)
	}
	s.mu.Unlock()
	s.inbox.Wake()
	if b != nil {
		b.PassOn(typeURL, r)
	}
}

// ofType returns the stream of a type.
func (a *Aggregated) ofType(typeURL string) *Stream {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.types[typeURL]; t != nil && t.stream != nil {
		return t.stream
	}
	return a.Stream
}

// Reject is [Stream.Reject], on the stream of the type.
func (a *Aggregated) Reject(typeURL, version, words string) {
	a.ofType(typeURL).Reject(typeURL, version, words)
}

// PassOn is [Stream.PassOn], on the stream of the type.
func (a *Aggregated) PassOn(typeURL string, r session.Rejection) {
	a.ofType(typeURL).PassOn(typeURL, r)
}

// Reject is [Stream.Reject] of each stream. Only the stream of the type has it.
func (s *Streams) Reject(typeURL, version, words string) {
	for _, st := range s.all() {
		st.Reject(typeURL, version, words)
	}
}

// PassOn is [Stream.PassOn] of each stream. Only the stream of the type has it.
func (s *Streams) PassOn(typeURL string, r session.Rejection) {
	for _, st := range s.all() {
		st.PassOn(typeURL, r)
	}
}
