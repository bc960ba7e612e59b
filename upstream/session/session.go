package session

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// Session is the state of the protocol of one type on one stream: what was sent to
// the control plane, and what has yet to be sent. The Topics that it was begun for have
// the subscriptions.
type Session interface {
	// Requests returns the requests to send now: first the answers to responses,
	// then the changes of the subscriptions. No request is longer than limit, if
	// that is possible. They count as sent.
	Requests(now time.Time, limit int) []proto.Message
	// ForceAnswer makes the control plane answer the first request even if it has nothing
	// new. It is for a control plane that could not be reached, as its stream may be open and
	// silent. It returns whether that is possible.
	ForceAnswer() bool
	// Begun reports whether the first request was sent.
	Begun() bool
	// Response processes a response, and queues its ACK or NACK. It returns what the
	// cache must store, and the reasons if the response was not accepted as a whole.
	Response(now time.Time, r *Response) (u cache.Update, nack string)
	// Reject queues a NACK of the newest response, which was answered before. version is the last
	// one that was accepted.
	Reject(version, words string)
	// PassOn queues a NACK of the newest response, which clients have rejected. It does so once for each response, and
	// again when very many more clients reject it. In SotW, a response with the version of the last one counts as that
	// one, unless clients give another reason.
	PassOn(Rejection)
	// Conclude applies what follows from the control plane's silence. It must be called
	// before Requests.
	Conclude(now time.Time, timeout time.Duration, what Silence) cache.Update
	// Heard notes that the control plane has sent a response of another type. It reports whether that changes what is due.
	Heard(now time.Time) bool
	// ClustersChanged notes that the control plane has sent all of its Clusters. It reports whether that changes what is due.
	ClustersChanged(now time.Time, clusters *Topics) bool
	// Pending returns the approximate memory of unsent answers, in bytes.
	Pending() int
	// Unfit returns what did not fit into requests since it was last called, in words. It is
	// empty if everything did.
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

// Parse parses a response. An error concerns the response as a whole; errors of single resources
// are in the resources.
func (f Form) Parse(b []byte) (*Response, error) {
	r := &Response{}
	if err := f.ParseInto(r, b); err != nil {
		return nil, err
	}
	return r, nil
}

// ParseInto is Parse into an existing response, to whose former resources nothing may refer any more.
// After an error the response has what was parsed until then.
func (f Form) ParseInto(r *Response, b []byte) error {
	if f == Delta {
		return parseDelta(r, b)
	}
	return parseSotW(r, b)
}
