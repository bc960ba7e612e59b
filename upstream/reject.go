package upstream

import "github.com/xds-relay/xds-relay/loglines"

// What the relay says of a state that it had acknowledged, and that its clients have refused since.

// Reject answers the newest response of a type with a NACK, in the words of those who refused it.
// version is the last one that was accepted. A control plane that sends the same once more is
// answered with an ACK: it was told, and one that sends it after each NACK must not be kept
// busy.
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

// PassOn answers the newest response of a type with a NACK, once, if the control plane is another
// relay: a client has rejected something of that type.
func (s *Stream) PassOn(typeURL, words string) {
	s.mu.Lock()
	f, b := s.feeds[typeURL], s.namesStream
	if s.ofRelay && f != nil && f.begun() {
		f.session.PassOn(loglines.Clip(words))
		s.agenda.add(f)
	}
	s.mu.Unlock()
	s.inbox.Wake()
	if b != nil {
		b.PassOn(typeURL, words)
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
func (a *Aggregated) PassOn(typeURL, words string) { a.ofType(typeURL).PassOn(typeURL, words) }

// Reject is [Stream.Reject], on the stream of the type.
func (s *Streams) Reject(typeURL, version, words string) {
	for _, st := range s.all() {
		st.Reject(typeURL, version, words)
	}
}

// PassOn is [Stream.PassOn], on the stream of the type.
func (s *Streams) PassOn(typeURL, words string) {
	for _, st := range s.all() {
		st.PassOn(typeURL, words)
	}
}
