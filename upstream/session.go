package upstream

import (
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/wire"
)

// session is the protocol of one type on one stream: of what is wanted, what
// the control plane has been sent, and what it is still to be sent. What is wanted
// is in subscriptions.
type session interface {
	// requests returns what is to be sent now: first the answers to responses,
	// then what has changed about the subscriptions. None is longer than limit, if
	// that can be had. It counts as sent.
	requests(now time.Time, limit int) []proto.Message
	// forceAnswer has the control plane answer the first request also if there is nothing
	// new: a stream to one that could not be reached may be open and silent. It says
	// whether that could be done.
	forceAnswer() bool
	// begun says whether the first request was sent.
	begun() bool
	// response takes a response and queues the answer to it. It returns what the
	// cache is to store, and why if the response was not accepted as a whole.
	response(now time.Time, r *response) (u cache.Update, nack string)
	// reject queues the rejection of the newest response, which was answered before.
	reject(version, words string)
	// passOn queues the rejection of the newest response, once.
	passOn(words string)
	// conclude applies what follows from the control plane's silence. It is called
	// before requests.
	conclude(now time.Time, timeout time.Duration, what silence) cache.Update
	// pending returns the memory that unsent answers take, in bytes, about.
	pending() int
	// unfit says what did not fit into requests of the limit's length since it
	// was last called, empty if everything did.
	unfit() string
}

// silence is what is known of a control plane that does not answer a request.
type silence int

const (
	// mute: it has sent nothing on this stream, and may not work at all.
	mute silence = iota
	// selective: it has sent something, of whichever type.
	selective
	// polledSince: it was polled, and has answered the poll for what is wanted now.
	polledSince
)

// answer is an ACK or NACK to be sent.
type answer struct {
	nonce   string
	version string // SotW: the last accepted, this one's if this is an ACK
	nack    string // why not; empty in an ACK
}

// size is the memory that an answer takes, about.
func (a *answer) size() int {
	const overhead = 64
	return overhead + len(a.nonce) + len(a.version) + len(a.nack)
}

// errorDetail returns what makes a request a NACK. xDS: "NACK".
func (a *answer) errorDetail() *status.Status {
	if a.nack == "" {
		return nil
	}
	return &status.Status{Code: int32(codes.InvalidArgument), Message: a.nack}
}

// locator returns a name with parameters, nil if there are none: then the name
// alone does. xDS: TP2, resource_locators.
func locator(name string, params cache.Params) *discoveryv3.ResourceLocator {
	if params == nil {
		return nil
	}
	return &discoveryv3.ResourceLocator{Name: name, DynamicParameters: params}
}

// sizeMessage is the length of a message in a request.
func sizeMessage(m proto.Message) int {
	return wire.SizeBytes(proto.Size(m))
}
