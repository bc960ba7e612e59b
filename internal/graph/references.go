package graph

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// ID identifies a resource: its type URL, in version 3 of the API, and its name in any spelling.
type ID struct{ TypeURL, Name string }

// canonical returns the ID with the canonical spelling of its name, for comparisons.
func (id ID) canonical() ID {
	if !urn.IsXdstp(id.Name) {
		return id
	}
	if key, err := urn.KeyOf(id.Name); err == nil {
		id.Name = key.Name
	} else if url, err := urn.ParseURL(id.Name); err == nil {
		id.Name = url.Key().Name // directives do not count
	}
	return id
}

// String returns the resource for people: Cluster "foo".
func (id ID) String() string { return fmt.Sprintf("%s %q", xdstype.Message(id.TypeURL), id.Name) }

// Source is the place where a client looks for a resource that it needs.
type Source uint8

const (
	// Stream is the client's own control plane: the config source is ads or self, or the type has no config source,
	// like clusters.
	Stream Source = iota
	// Elsewhere is a file, or another control plane.
	Elsewhere
	// Bootstrap is the client's bootstrap.
	Bootstrap
)

// Reference is one place in a resource that names another.
type Reference struct {
	To ID
	// Path is the field, such as filter_chains[0].filters[0].typed_config.rds.route_config_name. It is empty if the
	// earlier paths are very long in total.
	Path   string
	Source Source
	// Many: the name stands for several resources, which need not exist: "*", a glob or a list collection, or
	// "routes/*" for the VirtualHosts of a RouteConfiguration.
	Many bool
	// Optional: the resource works without the named one. There is a default, or the name is a cluster that does not
	// carry the requests themselves (gRPC and HTTP services, access logs, tracing).
	Optional bool
}

// mostRead is the length of the longest resource that is searched, in bytes.
const mostRead = 16 << 20

var (
	errTooLarge = errors.New("it is larger than 16 MiB")
	errTooMany  = fmt.Errorf("it has more than %d references", mostReferences)
)

// References returns the references of a resource, in the order of its fields. It returns none for a type that the
// binary does not know. The error is the reason why the resource, or a part of it, could not be read.
func References(typeURL string, value []byte) ([]Reference, error) {
	message, _ := descriptors.Types{}.FindMessageByURL(typeURL)
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

// ReferencesIn returns the references of a decoded resource. If there are too many, it returns the first ones and an
// error.
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
