package upstream

import (
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"google.golang.org/grpc"

	"github.com/xds-relay/xds-relay/upstream/session"
)

// form is how a stream speaks one protocol.
type form struct {
	name   Protocol
	method string
	// typeURL is the type of everything on the stream, which responses may leave out.
	// It is empty for the aggregated service.
	typeURL string
	// spoken is the form of requests and responses.
	spoken session.Form
}

// begin begins the session of a type on a new stream.
func (f *form) begin(t *session.Topics) session.Session { return f.spoken.Begin(t) }

// forms returns the forms that an aggregated stream may have, in the order in
// which they are tried.
func (p Protocol) forms() []*form {
	switch p {
	case Delta:
		return []*form{deltaForm}
	case SotW:
		return []*form{sotwForm}
	case AutoSotW:
		return []*form{sotwForm, deltaForm}
	default:
		return []*form{deltaForm, sotwForm}
	}
}

var streamDesc = &grpc.StreamDesc{StreamName: "ADS", ClientStreams: true, ServerStreams: true}

// Protocol is the form of the protocol that a stream speaks.
type Protocol string

var (
	deltaForm = &form{
		name:   Delta,
		method: xdstype.AggregatedV3.Method(xdstype.AggregatedV3.Delta),
		spoken: session.Delta,
	}
	sotwForm = &form{
		name:   SotW,
		method: xdstype.AggregatedV3.Method(xdstype.AggregatedV3.Stream),
		spoken: session.SotW,
	}
)

// The protocols.
const (
	// Auto is delta, or SotW if the control plane does not implement delta.
	Auto Protocol = "auto"
	// AutoSotW is SotW, or delta if the control plane does not implement SotW.
	AutoSotW Protocol = "auto, SotW first"
	// Delta is the incremental form.
	Delta Protocol = "delta"
	// SotW is the state-of-the-world form.
	SotW Protocol = "sotw"
	// REST is SotW by polling, in JSON. It needs a connection of DialREST, and
	// Streams: there is no aggregated form.
	REST Protocol = "rest"
)
