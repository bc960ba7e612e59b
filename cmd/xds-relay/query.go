package main

// The flags of `get` and `watch` for the server and the query.

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/pflag"

	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/internal/envoyjson"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// defaultServer is the address of the demo, and of most examples.
const defaultServer = "127.0.0.1:18000"

type queryFlags struct {
	server   string
	typeName string
	form     formFlags
	node     nodeFlags
	tls      tlsFlags
	print    printFlags
}

func (f *queryFlags) register(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVarP(&f.server, "server", "s", defaultServer, "the xDS server, `HOST:PORT`")
	flags.StringVarP(&f.typeName, "type", "t", "", "the `TYPE` of the resources; xdstp names contain it")
	f.form.register(flags)
	f.print.register(flags)
	f.node.register(flags)
	f.tls.register(flags)
}

// parse returns the server and the query. Its errors are usage errors.
func (f *queryFlags) parse(names []string) (client.Server, client.Query, error) {
	server, query, err := f.build(names)
	if err != nil {
		return server, query, usageError(err)
	}
	return server, query, nil
}

func (f *queryFlags) build(names []string) (server client.Server, query client.Query, err error) {
	if _, port, splitErr := net.SplitHostPort(f.server); splitErr != nil || port == "" {
		return server, query, fmt.Errorf("--server %q: want host:port", f.server)
	}
	server.Address = f.server
	if server.Credentials, err = f.tls.credentials(); err != nil {
		return server, query, err
	}
	if err := f.form.set(&query); err != nil {
		return server, query, err
	}
	if query.TypeURL, err = typeOf(f.typeName, names); err != nil {
		return server, query, err
	}
	if query.Node, err = f.node.node(); err != nil {
		return server, query, err
	}
	query.Names = names
	return server, query, f.print.check()
}

// formFlags say in which form of xDS a server is asked.
type formFlags struct {
	protocol   string
	aggregated bool
}

func (f *formFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.protocol, "protocol", client.Delta.String(), "the `FORM` of xDS, delta or sotw")
	flags.BoolVar(&f.aggregated, "aggregated", true, "use the aggregated discovery service (ADS); with =false, that of the type (CDS, EDS, ...)")
}

func (f *formFlags) set(query *client.Query) (err error) {
	query.Services = !f.aggregated
	if query.Protocol, err = client.ParseProtocol(f.protocol); err != nil {
		return fmt.Errorf("--protocol: %w", err)
	}
	return nil
}

// typeOf returns the type URL of --type or, without it, that of the names.
func typeOf(word string, names []string) (string, error) {
	typeURL := ""
	if word != "" {
		var err error
		if typeURL, err = xdstype.Parse(word); err != nil {
			return "", fmt.Errorf("--type: %w", err)
		}
	}
	for _, name := range names {
		if name == "" {
			return "", errors.New("a name is empty; for all resources of the type, give no name")
		}
		own, err := client.TypeOfName(name)
		switch {
		case err != nil && typeURL == "":
			return "", err
		case own == "" || own == typeURL:
		case own == typeURL+"Collection":
			// A list collection, or an entry of one, may be requested with the type of its members.
		case typeURL == "":
			typeURL = own
		default:
			return "", fmt.Errorf("%q is of type %s, not %s; request one type at a time",
				name, xdstype.Word(own), xdstype.Word(typeURL))
		}
	}
	if typeURL == "" {
		return "", fmt.Errorf("--type is missing (one of %s, or a type URL)", xdstype.Words())
	}
	return typeURL, nil
}

// nodeFlags are the flags for the Node.
type nodeFlags struct {
	id, cluster string
	file        string
}

// features are the client features that the client announces.
var features = []string{
	"xds.config.resource-in-sotw",          // the spelling of gRPC
	"xds.config.supports-resource-in-sotw", // the spelling of the xDS documents
}

func (f *nodeFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.id, "node-id", "", "the `ID` of the Node (default \""+client.NodeID+"\")")
	flags.StringVar(&f.cluster, "node-cluster", "", "the `CLUSTER` of the Node")
	flags.StringVar(&f.file, "node", "", "read the Node from this `FILE`, an envoy.config.core.v3.Node in JSON or YAML")
}

func (f *nodeFlags) node() (*corev3.Node, error) {
	node := &corev3.Node{Id: client.NodeID, UserAgentName: "xds-relay", ClientFeatures: slices.Clone(features)}
	if f.file != "" {
		text, err := os.ReadFile(f.file)
		if err != nil {
			return nil, fmt.Errorf("--node: %w", err)
		}
		if node, err = parseNode(text); err != nil {
			return nil, fmt.Errorf("--node %s: %w", f.file, err)
		}
	}
	if f.id != "" {
		node.Id = f.id
	}
	if f.cluster != "" {
		node.Cluster = f.cluster
	}
	node.ClientFeatures = append(node.ClientFeatures, client.ErrorsAlone)
	return node, nil
}

// parseNode parses an envoy.config.core.v3.Node in JSON or YAML.
func parseNode(text []byte) (*corev3.Node, error) {
	documents, wrong := envoyjson.YAML(text) // of which JSON is a part
	if wrong != nil {
		return nil, fmt.Errorf("line %d: %w", wrong.Line, wrong)
	}
	if len(documents) != 1 {
		return nil, fmt.Errorf("%d documents (want one)", len(documents))
	}
	node := new(corev3.Node)
	ignored, _, err := documents[0].Unmarshal(node)
	if err == nil && len(ignored) > 0 { // an error, as in Envoy's bootstrap
		err = fmt.Errorf("line %d: %s: %s", ignored[0].Line, envoyjson.Join(ignored[0].Path, ignored[0].Field), ignored[0].Text)
	}
	if err != nil {
		return nil, fmt.Errorf("not an envoy.config.core.v3.Node: %w", err)
	}
	return node, nil
}
