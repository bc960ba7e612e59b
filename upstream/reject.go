package upstream

import (
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/loglines"
)

// What the relay says of a state that it had acknowledged, and that its clients have refused since.

// Reject answers the newest response of a type with a NACK, in the words of those who refused it.
// version is the last one that was accepted. A control plane that sends the same once more is
// answered with an ACK: it was told, and one that sends it after each NACK must not be kept
// busy.
func (s *Stream) Reject(typeURL, version, words string) {
	s.mu.Lock()
	f, b := s.feeds[typeURL], s.namesStream
	if f != nil && f.begun() {
		f.session.reject(version, loglines.Clip(words))
		s.agenda.add(f)
	}
	s.mu.Unlock()
	s.wakeUp()
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
		f.session.passOn(loglines.Clip(words))
		s.agenda.add(f)
	}
	s.mu.Unlock()
	s.wakeUp()
	if b != nil {
		b.PassOn(typeURL, words)
	}
}

// learnRelay learns from a stream's headers whether the control plane is a relay. There was a response,
// so they have come. The caller holds mu.
func (s *Stream) learnRelay(c *call) {
	headers, err := c.stream.Header()
	s.ofRelay = err == nil && len(headers.Get(chain.RelayHeader)) > 0
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

// passOn implements session.
func (s *sotwSession) passOn(words string) {
	if s.nonce != s.passed {
		s.passed = s.nonce
		s.reject(s.before, words)
	}
}

// passOn implements session.
func (d *deltaSession) passOn(words string) {
	if d.nonce != d.passed {
		d.passed = d.nonce
		d.reject("", words)
	}
}

// reject implements session.
func (s *sotwSession) reject(version, words string) {
	if s.nonce == "" {
		return // there was no response
	}
	s.version = version
	s.queue(answer{nonce: s.nonce, version: version, nack: words})
}

// reject implements session.
func (d *deltaSession) reject(_, words string) {
	if d.nonce == "" {
		return
	}
	a := answer{nonce: d.nonce, nack: words}
	d.answers = append(d.answers, a)
	d.size += a.size()
}
