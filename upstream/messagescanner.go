package upstream

import (
	"encoding/binary"
	"math"
)

const (
	// largeResponse is the length in bytes from which a response is announced to DialOptions.LargeResponse.
	largeResponse = 1 << 20
	// messagePrefix is the length of what precedes each message of gRPC: whether it is compressed, and its length.
	messagePrefix = 5
	// maxHalfMessages bounds the streams of which a part of a message has come. A server that cuts more short is
	// not scanned any more.
	maxHalfMessages = 4096
)

// messageScanner finds the lengths of gRPC messages in the DATA frames of a connection. It learns of a large message when
// its first bytes come, and gRPC reports it only when all of it has been read.
type messageScanner struct {
	large func(bytes int) // nil: no scanning

	// half has the streams of which a part of a message has come. Most frames bring whole messages.
	half   map[uint32]halfMessage
	stream uint32 // of the present frame
	last   bool   // the present frame ends its stream
	now    halfMessage
}

// halfMessage is a part of a message, without its content.
type halfMessage struct {
	prefix [messagePrefix]byte
	headed int    // bytes of prefix
	rest   uint32 // bytes of the content to come, once the prefix is whole
}

// begin begins a DATA frame.
func (s *messageScanner) begin(stream uint32, last bool) {
	s.stream, s.last, s.now = stream, last, halfMessage{}
	if len(s.half) > 0 {
		s.now = s.half[stream]
	}
}

// take takes the next bytes of the frame's data.
func (s *messageScanner) take(b []byte) {
	m := &s.now
	for len(b) > 0 {
		if m.headed < messagePrefix {
			n := copy(m.prefix[m.headed:], b)
			m.headed += n
			b = b[n:]
			if m.headed < messagePrefix {
				return
			}
			// gRPC refuses lengths that an int of 32 bits does not hold.
			if m.rest = binary.BigEndian.Uint32(m.prefix[1:]); m.rest >= largeResponse && m.rest <= math.MaxInt32 {
				s.large(int(m.rest))
			}
		}
		n := int(min(int64(m.rest), int64(len(b))))
		m.rest -= uint32(n)
		b = b[n:]
		if m.rest == 0 {
			m.headed = 0
		}
	}
}

// end ends the frame.
func (s *messageScanner) end() {
	if s.now.headed == 0 || s.last {
		s.forget(s.stream)
		return
	}
	if len(s.half) >= maxHalfMessages {
		s.large, s.half = nil, nil
		return
	}
	if s.half == nil {
		s.half = map[uint32]halfMessage{}
	}
	s.half[s.stream] = s.now
}

// forget ends a stream.
func (s *messageScanner) forget(stream uint32) {
	if len(s.half) > 0 {
		delete(s.half, stream)
	}
}
