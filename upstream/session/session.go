package session

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// Session is the protocol of one type on one stream: of what is wanted, what
// the control plane has been sent, and what it is still to be sent. What is wanted
// is in the Topics that it was begun for.
type Session interface {
	// Requests returns what is to be sent now: first the answers to responses,
	// then what has changed about the subscriptions. None is longer than limit, if
	// that can be had. It counts as sent.
	Requests(now time.Time, limit int) []proto.Message
	// ForceAnswer has the control plane answer the first request also if there is nothing
	// new: a stream to one that could not be reached may be open and silent. It says
	// whether that could be done.
	ForceAnswer() bool
	// Begun says whether the first request was sent.
	Begun() bool
	// Response takes a response and queues the answer to it. It returns what the
	// cache is to store, and why if the response was not accepted as a whole.
	Response(now time.Time, r *Response) (u cache.Update, nack string)
	// Reject queues the rejection of the newest response, which was answered before.
	Reject(version, words string)
	// PassOn queues the rejection of the newest response, once.
	PassOn(words string)
	// Conclude applies what follows from the control plane's silence. It is called
	// before requests.
	Conclude(now time.Time, timeout time.Duration, what Silence) cache.Update
	// Pending returns the memory that unsent answers take, in bytes, about.
	Pending() int
	// Unfit says what did not fit into requests of the limit's length since it
	// was last called, empty if everything did.
	Unfit() string
}

// Form is a form of the protocol.
type Form uint8

const (
	// Delta is the incremental form.
	Delta Form = iota
	// SotW is the state-of-the-world form.
	SotW
)

// String returns the word for the form.
func (f Form) String() string {
	if f == Delta {
		return "delta"
	}
	return "sotw"
}

// Begin begins the session of a type on a new stream.
func (f Form) Begin(t *Topics) Session {
	if f == Delta {
		return newDelta(t)
	}
	return newSotW(t)
}

// newSotW begins the session of names or of sets. In SotW they never share a stream.
func newSotW(t *Topics) Session {
	if t.Sets != nil {
		return newSotWSets(t.Sets)
	}
	return newSotWNames(t.Names)
}

// Parse parses a response. An error is of the response as a whole; errors of single resources
// are in them.
func (f Form) Parse(b []byte) (*Response, error) {
	r := &Response{}
	if err := f.ParseInto(r, b); err != nil {
		return nil, err
	}
	return r, nil
}

// ParseInto is Parse into a response whose former resources nothing refers to any more. After an
// error the response has a part of what was parsed.
func (f Form) ParseInto(r *Response, b []byte) error {
	if f == Delta {
		return parseDelta(r, b)
	}
	return parseSotW(r, b)
}
