// Package client is an xDS client for people. It requests resources over the
// aggregated discovery service, in delta or SotW form, and reports the responses.
// `xds-relay get` and `xds-relay watch` use it. It works with any xDS server.
//
// The protocol is in two values, deltaSession and sotwSession, which take
// responses and give requests and events, with no I/O inside. Get and Watch put
// a stream around them.
package client

import (
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/credentials"
)

// Server is where to ask.
type Server struct {
	Address     string                           // host:port
	Credentials credentials.TransportCredentials // nil is plaintext
}

// Protocol is the form of the protocol to speak.
type Protocol int

// The two forms of xDS.
const (
	Delta Protocol = iota // incremental: resources are added and removed one by one
	SotW                  // state of the world
)

// ParseProtocol gives the protocol of that name, delta or sotw.
func ParseProtocol(name string) (Protocol, error) {
	for _, p := range []Protocol{Delta, SotW} {
		if name == p.String() {
			return p, nil
		}
	}
	return 0, fmt.Errorf("unknown protocol %q (want delta or sotw)", name)
}

// String gives the name that ParseProtocol reads.
func (p Protocol) String() string {
	if p == SotW {
		return "sotw"
	}
	return "delta"
}

// other is what to try where p is not served.
func (p Protocol) other() Protocol {
	if p == SotW {
		return Delta
	}
	return SotW
}

// Query is what to ask for.
type Query struct {
	Protocol Protocol
	TypeURL  string
	Names    []string     // none is the wildcard
	Node     *corev3.Node // whom to ask as
}

// Kind says what an Event is.
type Kind int

// What can be heard about a resource, and about the connection.
const (
	Added        Kind = iota + 1 // Resource is new
	Changed                      // Resource has other content than before
	Removed                      // Resource was there, as it was last, and is gone
	Missing                      // the server says that Name does not exist; Err is why, if it says that
	Failed                       // the server says that it cannot give Name, Err says why
	Rejected                     // the server sent something for Name that was not accepted, Err says why
	Unasked                      // the server sent resources that were not asked for, Name is one of them
	Connected                    // a stream is open
	Disconnected                 // the stream or the connection is lost (Err), and tried again after Retry
)

// Event is one thing that happened.
type Event struct {
	Kind     Kind
	Name     string                // as the server gives it
	Resource *discoveryv3.Resource // with Added, Changed and Removed; not to be changed
	Err      error
	Retry    time.Duration
}
