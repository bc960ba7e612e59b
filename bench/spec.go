package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// What a system serves, and what its clients request. It is the same for all systems.

const (
	clusterType  = xdstype.ClusterV3
	endpointType = xdstype.EndpointsV3
)

// Spec is an argument of every process of a run.
type Spec struct {
	// Delta: clients speak delta, otherwise SotW.
	Delta bool `json:"delta"`
	// Full: clients request the wildcard of clusters. Otherwise they request endpoints by
	// name, or by a glob.
	Full bool `json:"full"`
	Glob bool `json:"glob"`
	// Resources is the number of resources, each of about Size bytes.
	Resources int `json:"resources"`
	Size      int `json:"size"`
	// PerClient is the number of names of a client. If Distinct, client i begins at
	// i*PerClient; otherwise all clients have the same.
	PerClient int  `json:"per_client"`
	Distinct  bool `json:"distinct"`
	// Stamped: resources contain the time when they were sent.
	Stamped bool `json:"stamped,omitempty"`
	// Shape is how requested names map to resources of the origin.
	Shape shape `json:"shape,omitempty"`
	// Neighbour is the address of the server of another authority.
	Neighbour string `json:"neighbour,omitempty"`
	// Named: clients with Full request the names instead of the wildcard.
	Named bool `json:"named,omitempty"`
	// Second is the address of another server of the authority.
	Second string `json:"second,omitempty"`
	// Tiers is the number of relays in a chain, if more than one.
	Tiers int `json:"tiers,omitempty"`
	// Polls: clients use REST-JSON, with long polls.
	Polls bool `json:"polls,omitempty"`
	// TTL is the TTL of resources, in whole seconds.
	TTL time.Duration `json:"ttl,omitempty"`
	// Certificates, if not empty, is the folder of certificates for mutual TLS with clients.
	Certificates string `json:"certificates,omitempty"`
	// Resume: clients resume TLS sessions.
	Resume bool `json:"resume,omitempty"`
	// Store, if not empty, is the folder in which the relay stores what it accepts, encrypted.
	Store string `json:"store,omitempty"`
	// Unseen: the relay has no admin listener. Env are more variables of its environment.
	Unseen bool     `json:"unseen,omitempty"`
	Env    []string `json:"env,omitempty"`
	// Rollout, if not empty, has the keys of the rollout of the main authority.
	Rollout string `json:"rollout,omitempty"`
	// Upstream is the origin's address, for the relay and for clients of the origin.
	Upstream string `json:"upstream,omitempty"`
}

func (s *Spec) typeURL() string {
	if s.Full {
		return clusterType
	}
	return endpointType
}

// names returns the names that client i requests; none for the wildcard.
func (s *Spec) names(client int) []string {
	switch {
	case s.Full && !s.Named:
		return nil
	case s.Glob:
		return []string{s.collection()}
	}
	names := make([]string, s.PerClient)
	for k, i := range s.indexes(client) {
		names[k] = s.requested(i)
	}
	return names
}

// indexes returns the numbers of the resources of client i.
func (s *Spec) indexes(client int) []int {
	n, first := s.PerClient, 0
	if s.Full && !s.Named || s.Glob {
		n = s.Resources
	} else if s.Distinct {
		first = client * n
	}
	all := make([]int, n)
	for k := range all {
		all[k] = (first + k) % s.Resources
	}
	return all
}

// marker returns bytes in the content of a resource of that version, so that clients find the
// version without decoding.
func marker(version int) string { return fmt.Sprintf("@@%08d@@", version) }

// stamp returns the bytes with the time of sending.
func stamp(t time.Time) string { return fmt.Sprintf("%s%019d", stampMark, t.UnixNano()) }

const stampMark = "@at@"

// stamps calls f for each stamp in a message.
func stamps(message []byte, f func(time.Time)) {
	const digits = 19
	for {
		at := bytes.Index(message, []byte(stampMark))
		if at < 0 || len(message) < at+len(stampMark)+digits {
			return
		}
		message = message[at+len(stampMark):]
		if ns, err := strconv.ParseInt(string(message[:digits]), 10, 64); err == nil {
			f(time.Unix(0, ns))
		}
	}
}

func version(v int) string { return fmt.Sprintf("v%d", v) }

// resource returns the i-th resource at a version.
func (s *Spec) resource(i, v int) proto.Message { return s.resourceNamed(s.name(i), v) }

func (s *Spec) resourceNamed(name string, v int) proto.Message {
	const around = 48 // for names and headers
	padding := marker(v)
	if s.Stamped {
		padding += stamp(time.Now())
	}
	padding += strings.Repeat("x", max(0, s.Size-around-len(name)))
	if s.Full {
		return &clusterv3.Cluster{Name: name, AltStatName: padding}
	}
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Hostname: padding,
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: "10.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80},
				}}},
			}},
		}}}},
	}
}
