package graph

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/wire"
	"github.com/xds-relay/xds-relay/xdstype"
)

// ID is a resource: its type URL, in version 3 of the API, and its name in any spelling.
type ID struct{ TypeURL, Name string }

// canonical returns the ID with the name in the one spelling that all others are compared by.
func (id ID) canonical() ID {
	if !urn.IsXdstp(id.Name) {
		return id
	}
	if key, err := urn.KeyOf(id.Name); err == nil {
		id.Name = key.Name
	} else if url, err := urn.ParseURL(id.Name); err == nil {
		id.Name = url.Key().Name // its directives do not count
	}
	return id
}

// String names the resource for people: Cluster "foo".
func (id ID) String() string { return fmt.Sprintf("%s %q", xdstype.Message(id.TypeURL), id.Name) }

// Source is where a client looks for a resource that it needs.
type Source uint8

const (
	// Stream is the client's own control plane: the config source is ads or self, or the type
	// has no config source, as clusters.
	Stream Source = iota
	// Elsewhere is a file, or another control plane.
	Elsewhere
	// Bootstrap is the client's bootstrap.
	Bootstrap
)

// Reference is one place in a resource that names another.
type Reference struct {
	To ID
	// Path is the field, such as filter_chains[0].filters[0].typed_config.rds.route_config_name. It is empty if the paths of
	// the references before it are very long together.
	Path   string
	Source Source
	// Many says that the name stands for several resources, which need not be there: "*", a glob or
	// a list collection, or "routes/*" for the VirtualHosts of a RouteConfiguration.
	Many bool
	// Optional says that the resource does something without it: there is a default, or it is a
	// cluster that does not carry the requests themselves (gRPC and HTTP services, access logs, tracing).
	Optional bool
}

// mostRead is the length of the longest resource that is looked at, in bytes.
const mostRead = 16 << 20

var (
	errTooLarge = errors.New("it is larger than 16 MiB")
	errTooMany  = fmt.Errorf("it has more than %d references", mostReferences)
)

// References returns the references of a resource, in the order of its fields. A type that the
// binary does not know has none. The error says why the resource cannot be read, or not all of it.
func References(typeURL string, value []byte) ([]Reference, error) {
	message, _ := protoregistry.GlobalTypes.FindMessageByURL(typeURL)
	if message == nil || planOf(message.Descriptor()) == nil {
		return nil, nil
	}
	if len(value) > mostRead {
		return nil, errTooLarge
	}
	m := message.New().Interface()
	if err := decode(value, m); err != nil {
		return nil, fmt.Errorf("no %s: %s", xdstype.Message(typeURL), wire.ErrorText(err))
	}
	return ReferencesIn(m)
}

// ReferencesIn returns the references of a decoded resource. The error says that it has too many: those that are returned
// are the first.
func ReferencesIn(m proto.Message) ([]Reference, error) {
	p := planOf(m.ProtoReflect().Descriptor())
	if p == nil {
		return nil, nil
	}
	var w walk
	w.message(m.ProtoReflect(), p)
	if w.more {
		return w.found, errTooMany
	}
	return w.found, nil
}
