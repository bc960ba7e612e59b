package main

// `xds-relay check --connect` tries the control planes of a configuration.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/relay"
)

// connectWithin bounds each answer of a server, unless --timeout does.
const connectWithin = 5 * time.Second

// firstTypes are the types of which a server is asked, as Envoy begins with them.
var firstTypes = []string{xdstype.ClusterV3, xdstype.ListenerV3}

// tried is what became of one server.
type tried struct {
	path, address string
	result        string
	failed        bool
}

// connect tries all servers of the configuration at the same time, and prints what became of each. It reports whether all of them
// could be used.
func connect(ctx context.Context, cfg *configs.Config, node *corev3.Node, within time.Duration, stdout, stderr io.Writer) (fine bool) {
	var all []*tried
	done := make(chan struct{})
	for i := range cfg.Authorities {
		for j := range cfg.Authorities[i].Servers {
			server := cfg.Authorities[i].Servers[j]
			t := &tried{path: fmt.Sprintf("authorities[%d].servers[%d]", i, j), address: server.Address}
			all = append(all, t)
			go func() {
				var err error
				if t.result, err = try(ctx, server, node, within); err != nil {
					t.result, t.failed = err.Error(), true
				}
				done <- struct{}{}
			}()
		}
	}
	for range all {
		<-done
	}
	fine = true
	for _, t := range all {
		if t.failed {
			fine = false
			fmt.Fprintf(stderr, "%s: %s: %s\n", t.path, t.address, t.result)
			continue
		}
		fmt.Fprintf(stdout, "%s: %s: %s\n", t.path, t.address, t.result)
	}
	return fine
}

// try connects to a server as the relay does, and asks for its first resources. It returns what the server has answered.
func try(ctx context.Context, server configs.Server, node *corev3.Node, within time.Duration) (string, error) {
	conn, err := relay.DialServer(server)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	reaching, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := conn.Reach(reaching); err != nil {
		return "", fmt.Errorf("cannot connect: %s", reasonWithin(err, within))
	}
	security := "plaintext"
	if server.TLS != nil {
		security = "TLS"
	}
	a := &asking{conn: conn, server: server, node: node, within: within, protocol: client.Delta, services: !server.Aggregated}
	if server.Protocol == configs.ProtocolSotW {
		a.protocol = client.SotW
	}
	var answers []string
	for _, typeURL := range firstTypes {
		answer, err := a.first(ctx, typeURL)
		if err != nil {
			return "", fmt.Errorf("connected (%s), but %w", security, err)
		}
		answers = append(answers, answer)
	}
	return fmt.Sprintf("connected (%s, %s): %s", security, a.form(), strings.Join(answers, ", ")), nil
}

// reasonWithin returns why a server could not be reached in time.
func reasonWithin(err error, within time.Duration) string {
	var late net.Error
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded || errors.As(err, &late) && late.Timeout() {
		return fmt.Sprintf("no connection within %v: nothing accepts it there, a firewall drops it, or the server is none of gRPC", within)
	}
	return relay.ReasonOf(err)
}

// asking asks one server in the form of its configuration.
type asking struct {
	conn     *relay.ServerConn
	server   configs.Server
	node     *corev3.Node
	within   time.Duration
	protocol client.Protocol
	services bool
}

// form returns the form of xDS in which the server has answered.
func (a *asking) form() string {
	switch {
	case a.conn.REST != nil:
		return "rest"
	case a.services:
		return a.protocol.String() + ", a stream for each type"
	}
	return a.protocol.String() + ", aggregated"
}

// first asks for all resources of a type, and returns what the server has answered.
func (a *asking) first(ctx context.Context, typeURL string) (string, error) {
	word := xdstype.Word(typeURL)
	if a.conn.REST != nil {
		ctx, cancel := context.WithTimeout(ctx, a.within)
		defer cancel()
		n, err := a.conn.REST.Ask(ctx, typeURL, a.node)
		if errors.Is(err, context.DeadlineExceeded) {
			return "no answer for " + word + "s", nil
		}
		if err != nil && strings.Contains(err.Error(), `malformed HTTP response "\x00\x00`) { // a frame of HTTP/2
			return "", errors.New("it is a gRPC server, and the configuration has protocol: rest")
		}
		if err != nil {
			return "", err
		}
		return count(n, word), nil
	}
	query := client.Query{Protocol: a.protocol, Services: a.services, TypeURL: typeURL, Node: a.node}
	answer, err := client.Get(ctx, client.Server{Address: a.server.Address, Conn: a.conn}, query, a.within)
	if unimplemented := (*client.UnimplementedError)(nil); errors.As(err, &unimplemented) {
		protocol, services, ok := unimplemented.Serves()
		if ok && services == a.services && a.server.Protocol == configs.ProtocolAuto && protocol != a.protocol {
			a.protocol = protocol
			return a.first(ctx, typeURL)
		}
		return "", a.wrongForm(protocol, services, ok)
	}
	switch {
	case err != nil:
		return "", err
	case len(answer.Failed) > 0 && len(answer.Resources) == 0:
		return "", fmt.Errorf("it answers for %ss: %w", word, answer.Failed[0].Err)
	case !answer.Answered:
		return fmt.Sprintf("no answer for %ss within %v (it may know no Node %q: --node has one that it knows)", word, a.within, a.node.GetId()), nil
	}
	return count(len(answer.Resources), word), nil
}

// wrongForm returns the error for a form that the server does not serve, in the keys of the configuration.
func (a *asking) wrongForm(protocol client.Protocol, services, ok bool) error {
	if !ok {
		return errors.New("it serves no form of xDS: it is another gRPC server, such as the admin listener of a relay")
	}
	var keys []string
	if services != a.services {
		keys = append(keys, fmt.Sprintf("aggregated: %t", !services))
	}
	if protocol != a.protocol && a.server.Protocol != configs.ProtocolAuto {
		keys = append(keys, "protocol: "+protocol.String())
	}
	return fmt.Errorf("it does not serve the form that the configuration has: %s", strings.Join(keys, ", "))
}
