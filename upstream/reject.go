package upstream

import (
	"maps"
	"slices"

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

// Reject is [Stream.Reject], on the stream of the type.
func (a *Aggregated) Reject(typeURL, version, words string) {
	a.mu.Lock()
	st := a.Stream
	if t := a.types[typeURL]; t != nil && t.stream != nil {
		st = t.stream
	}
	a.mu.Unlock()
	st.Reject(typeURL, version, words)
}

// Reject is [Stream.Reject], on the stream of the type.
func (s *Streams) Reject(typeURL, version, words string) {
	s.mu.Lock()
	streams := slices.Collect(maps.Values(s.streams))
	s.mu.Unlock()
	for _, st := range streams {
		st.Reject(typeURL, version, words)
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
