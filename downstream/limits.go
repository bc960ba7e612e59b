package downstream

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What one client may cost, whatever the configuration says. The Node of one client stands for its whole partition
// upstream, so it goes out in requests that have a limit of their own.
const (
	maxTypes = 64
	// maxTypeURLBytes is several times the length of any type's name.
	maxTypeURLBytes = 1 << 10
	maxNodeBytes    = 256 << 10
	// maxNodeValues bounds the memory of a decoded Node, which is far more than its length if its values are small. An
	// Envoy with all of its extensions has 5000.
	maxNodeValues   = 16 << 10
	maxPendingNames = 1 << 20
	// maxParameters bounds the different dynamic parameters: each is a stream upstream.
	maxParameters = 16
	// maxAlternatives bounds the different alternatives of one name, and the globs with an alternative: the relay keeps
	// copies of the result for each.
	maxAlternatives = 16
	// maxRefusedStreams is how many refused streams per second an identity may have, in the long run, before its
	// connections are read more slowly.
	maxRefusedStreams = 100
)

// limit is one of the limits, configured or fixed.
type limit uint8

const (
	limitSubscriptions limit = iota
	limitNameBytes
	limitRequests
	limitStreams
	limitConnections
	limitConnectionsPerSecond
	limitControlFrames
	limitStreamsPerSecond
	limitRequestBytes
	limitTypes
	limitTypeURLBytes
	limitNodeBytes
	limitNodeValues
	limitPendingNames
	limitParameters
	limitAlternatives
	limitScopes
	limitConnScopes
	limitIdentityStreams
	limitIdentityScopes
	limitIdentityTypes
	limitIdentitySubscriptions
	limitIdentityRequests
	limitRefusedStreams
	limitLoadParts
	limitMemoryNames
	limitMemoryStreams
	limitArriving
	numLimits
)

var limitNames = [numLimits]string{
	limitSubscriptions:         "subscriptions",
	limitNameBytes:             "name_bytes",
	limitRequests:              "requests_per_second",
	limitStreams:               "streams",
	limitConnections:           "connections",
	limitConnectionsPerSecond:  "connections_per_second",
	limitControlFrames:         "control_frames",
	limitStreamsPerSecond:      "streams_per_second",
	limitRequestBytes:          "max_request_bytes",
	limitTypes:                 "types",
	limitTypeURLBytes:          "type_url_bytes",
	limitNodeBytes:             "node_bytes",
	limitNodeValues:            "node_values",
	limitPendingNames:          "pending_names",
	limitParameters:            "dynamic_parameters",
	limitAlternatives:          "alternatives",
	limitScopes:                "scopes",
	limitConnScopes:            "scopes_per_connection",
	limitIdentityStreams:       "streams_per_identity",
	limitIdentityScopes:        "scopes_per_identity",
	limitIdentityTypes:         "types_per_identity",
	limitIdentitySubscriptions: "subscriptions_per_identity",
	limitIdentityRequests:      "requests_per_second_per_identity",
	limitRefusedStreams:        "refused_streams",
	limitLoadParts:             "load_report_parts",
	limitMemoryNames:           "memory_names",
	limitMemoryStreams:         "memory_streams",
	limitArriving:              "incomplete_requests",
}

// String returns the limit's name in metrics and logs.
func (l limit) String() string { return limitNames[l] }

// place returns where an operator finds the limit: its key below the listener, if it has one.
func (l limit) place() string {
	switch l {
	case limitTypes, limitTypeURLBytes, limitNodeBytes, limitNodeValues, limitPendingNames, limitParameters, limitAlternatives, limitControlFrames, limitRefusedStreams, limitLoadParts, limitArriving:
		return "the fixed limit " + l.String()
	case limitRequestBytes:
		return l.String()
	default:
		return "limits." + l.String()
	}
}

// excess says that a client exceeds a limit. It is the error that ends the client's stream.
type excess struct {
	limit     limit
	got, most int
	what      string // a format for got
	unit      string // of most, with a space before it
}

// Error returns what was requested, and the limit.
func (e *excess) Error() string {
	return fmt.Sprintf(e.what, e.got) + fmt.Sprintf(", but %s is %d%s", e.limit.place(), e.most, e.unit)
}

// GRPCStatus returns RESOURCE_EXHAUSTED.
func (e *excess) GRPCStatus() *status.Status { return status.New(codes.ResourceExhausted, e.Error()) }

// over returns the excess if got is more than most, and nil otherwise. A most of 0 means no limit.
func over(l limit, got, most int, what string) *excess {
	if most == 0 || got <= most {
		return nil
	}
	return &excess{limit: l, got: got, most: most, what: what}
}
