// Package configs is the relay's configuration: the keys with their defaults and meanings, the checks,
// and errors that say what is wrong, where, and what would be right.
//
// Load and Parse return a Config; the methods of the same names of Overrides also apply the environment
// and the command line. They check the configuration, fill in the defaults and compile the expressions.
// Nothing changes a Config afterwards, so any number of goroutines may read it.
package configs

import (
	"crypto/sha256"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// A key is declared once, by a field of these structs, and explained once, by the field's comment. `make
// generate` derives everything else from that: the JSON Schema, the comments in examples/reference.yaml
// and the tables in docs/configure.md. So the comments are for people who write the YAML, and call keys
// by their YAML names. The tags:
//
//	yaml      the key
//	default   its value if it is left out, in YAML; of a map, those of its keys
//	absent    what holds if it is left out, in words, if that is not a value
//	required  it cannot be left out
//	with      the protocols of the listener or server with which the key has a meaning
//	allow     zero, empty or off: a value that other keys of its type refuse
//
// In a comment, {types} stands for the words of all types.

// Config is a whole configuration.
type Config struct {
	// Where clients connect. At least one.
	Listeners []Listener `yaml:"listeners" required:"true"`
	// The operator's listener: health, metrics, and what the relay serves to whom.
	Admin Admin `yaml:"admin" absent:"there is none"`
	// The Node that the relay sends to control planes when it requests xdstp names. For old-style names
	// it sends fields of a client's Node instead (`old_style_names[].node_fields`).
	Node Node `yaml:"node"`
	// Where resources come from. At least one.
	Authorities []Authority `yaml:"authorities" required:"true"`
	// Which authority and partition old-style names belong to: names that do not begin with xdstp://.
	// The first rule that matches the client decides. Expressions are CEL over `node`, the client's
	// envoy.config.core.v3.Node; `identity`, the client's authenticated identity; and `type_url`.
	OldStyleNames []Rule `yaml:"old_style_names" absent:"the relay serves xdstp names only"`
	// Unions of collections, for clients that request a wildcard, a glob or a list collection. The relay
	// keeps them up to date (views.md). The first view that matches the client and its request decides.
	Views []View `yaml:"views" absent:"clients receive what the authorities have"`
	// Which clients may have what (security.md). For each name that a client requests, the first rule
	// whose `when` is true decides. If there is none, the client may not have the resource. Expressions
	// are CEL over `authority`; `type_url`, in version 3 of the API; `name`, which is in canonical
	// spelling, or a glob, or `*`; and `identity`, the client's authenticated identity. They do not see
	// the client's Node, because a client can claim anything there.
	Rights []Right `yaml:"rights" absent:"every client may have everything"`
	// Files with the definitions of message types that the relay does not know, such as those of your own
	// Envoy filters: binary FileDescriptorSets, also compressed with gzip, as `protoc --include_imports
	// --descriptor_set_out=FILE` and `buf build -o FILE` write them. The relay reads them at the
	// start and on a reload.
	Descriptors []string `yaml:"descriptors" absent:"the relay knows Envoy's types, with those of its contrib extensions"`
	// What the relay keeps while no client uses it.
	Cache Cache `yaml:"cache"`
	// Where the relay stores the resources that it has accepted from control planes. After a restart it
	// can serve them while the control planes are unreachable (store.md).
	Store Store `yaml:"store" absent:"the relay stores nothing"`
	// How the relay shuts down after SIGTERM, and how it closes a listener that a reload removes
	// (drain.md).
	Drain Drain `yaml:"drain"`
	// The relays that share the streams to the control planes: each scope has one stream, whichever of
	// the relays its clients use (fleet.md).
	Fleet *Fleet `yaml:"fleet" absent:"the relay is alone"` // nil then

	source source
	hash   string
	text   [sha256.Size]byte // the hash of the text that was read
}

// Node is the relay's own Node, which it sends to control planes.
type Node struct {
	// The relay's own id, of at most 256 bytes. Relays detect loops of relays by it, so each relay needs
	// its own.
	ID string `yaml:"id" absent:"the host's name"`
	// The relay's cluster, for control planes whose answers depend on it.
	Cluster string `yaml:"cluster" default:"xds-relay"`
	// Where the relay runs, for control planes whose answers depend on it.
	Locality Locality `yaml:"locality"`
	// Metadata, with any keys and values. Keys keep their case.
	Metadata *structpb.Struct `yaml:"metadata" absent:"none"` // nil if there is none
}

// Proto returns n as a new message, without the relay's build and features: the caller adds these.
func (n Node) Proto() *corev3.Node {
	node := &corev3.Node{Id: n.ID, Cluster: n.Cluster, Metadata: n.Metadata}
	if n.Locality != (Locality{}) {
		node.Locality = &corev3.Locality{
			Region:  n.Locality.Region,
			Zone:    n.Locality.Zone,
			SubZone: n.Locality.SubZone,
		}
	}
	return node
}

// Locality is where the relay runs.
type Locality struct {
	// The region, as the cloud or the company calls it.
	Region string `yaml:"region" absent:"none"`
	// A part of the region.
	Zone string `yaml:"zone" absent:"none"`
	// A part of the zone.
	SubZone string `yaml:"sub_zone" absent:"none"`
}

// Rule says what old-style names mean to the clients that it matches. rule.go evaluates its
// expressions.
type Rule struct {
	// Which clients the rule matches: an expression that gives a bool. If the relay cannot
	// evaluate it for a client, the rule does not match that client.
	When string `yaml:"when" absent:"all clients"`
	// The authority of the names: one of `authorities`, or one that a pattern there covers.
	Authority string `yaml:"authority" required:"true" allow:"empty"`
	// An expression that gives a text of at most 1 KiB. Clients with the same text share one copy of the
	// resources, and one stream to the control plane. If the relay cannot evaluate it for a client, it
	// refuses the client's request.
	Partition string `yaml:"partition" absent:"all clients of the rule see the same"`
	// Fields of the client's Node that the relay sends to the control plane, in addition to the id, the
	// cluster and what `partition` reads. The relay takes them from the partition's first client. An
	// entry is a path such as locality, locality.zone, metadata.ROLE, metadata["a.b"],
	// dynamic_parameters or user_agent_name. `["*"]` is the whole Node, which the relay also sends if
	// `partition` is node.id (partitions.md).
	NodeFields []string `yaml:"node_fields" absent:"no others"`

	when, partition program
	upstream        NodeFields
	joins           bool // see Joins
}

// Cache says what the relay keeps while no client uses it.
type Cache struct {
	// How long the relay keeps a subscription after its last client has left. 0s ends it at
	// once. It keeps one to a name that was never answered for 2s at most, unless no control plane can be reached.
	Linger time.Duration `yaml:"linger" default:"5m" allow:"zero"`
	// How many resources the relay keeps that no client uses. At most 256 of these are names that have
	// no resource.
	IdleEntries int `yaml:"idle_entries" default:"10000"`
	// How many scopes the relay keeps that no client uses. A scope is an authority, a partition, or one
	// of these with a set of dynamic parameters. Each costs a stream to the control plane. Beyond this
	// number, the relay drops the scope that has been unused for the longest time.
	IdleScopes int `yaml:"idle_scopes" default:"100"`
	// Which names of removed members the relay remembers for each glob collection, as long as it keeps
	// the collection. Delta clients that reconnect do not send which members they have. So the relay
	// sends a client that subscribes to the glob all removals that it may have missed.
	Tombstones Tombstones `yaml:"tombstones"`
}

// Tombstones bound which names of removed members the relay remembers for a glob collection.
type Tombstones struct {
	// How long the relay remembers a name. This has to be longer than clients take to reconnect.
	TTL time.Duration `yaml:"ttl" default:"10m"`
	// How many names the relay remembers for each collection. It keeps the newest, at some 200 bytes
	// each.
	Limit int `yaml:"limit" default:"10000"`
}
