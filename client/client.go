// Package client is an xDS client for people. It requests resources over the aggregated discovery
// service or that of the type, in delta or SotW form, and reports what it receives. `xds-relay get` and `xds-relay watch`
// use it. It works with any xDS server.
//
// Two values implement the protocol, deltaSession and sotwSession. They take responses and return
// requests and events, without I/O. Get and Watch run them on streams.
package client

import (
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Server is an xDS server.
type Server struct {
	Address     string                           // host:port
	Credentials credentials.TransportCredentials // nil for plaintext
	// Conn, if not nil, is a connection to the server, which belongs to the caller. Its credentials are its own.
	Conn grpc.ClientConnInterface
}

// Protocol is a form of xDS.
type Protocol int

// The two forms of xDS.
const (
	Delta Protocol = iota // incremental: resources are added and removed one by one
	SotW                  // state of the world
)

// ParseProtocol returns the protocol that is named delta or sotw.
func ParseProtocol(name string) (Protocol, error) {
	for _, p := range []Protocol{Delta, SotW} {
		if name == p.String() {
			return p, nil
		}
	}
	return 0, fmt.Errorf("unknown protocol %q (want delta or sotw)", name)
}

// String returns the name that ParseProtocol reads.
func (p Protocol) String() string {
	if p == SotW {
		return "sotw"
	}
	return "delta"
}

// other returns the protocol to try if the server does not serve p.
func (p Protocol) other() Protocol {
	if p == SotW {
		return Delta
	}
	return SotW
}

// Query is a subscription.
type Query struct {
	Protocol Protocol
	Services bool // on the type's own discovery service (CDS, EDS, ...), not on the aggregated one
	TypeURL  string
	Names    []string     // none for the wildcard
	Node     *corev3.Node // the Node to send
}

// Kind is the kind of an Event.
type Kind int

// The kinds of events about a resource and about the connection.
const (
	Added        Kind = iota + 1 // Resource is new
	Changed                      // the content of Resource is different
	Removed                      // Resource was removed; it has the last content
	Missing                      // the server says that Name does not exist; Err is its reason, or nil
	Failed                       // the server sent Err for Name
	Rejected                     // the client rejected (NACK) what the server sent for Name; Err says why
	Unrequested                  // the server sent resources that were not requested; Name is one of them
	Connected                    // a stream is open
	Disconnected                 // the stream or the connection was lost (Err); the client reconnects after Retry
)

// Event is a change of a resource or of the connection.
type Event struct {
	Kind     Kind
	Name     string                // as the server spells it
	Resource *discoveryv3.Resource // with Added, Changed and Removed; read only
	Err      error
	Retry    time.Duration
}
