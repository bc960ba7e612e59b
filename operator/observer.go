package operator

import (
	"context"
	"log/slog"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/health"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/feed"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/internal/fleet"
	"github.com/xds-relay/xds-relay/internal/history"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/internal/partition"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/rollout/gate"
	"github.com/xds-relay/xds-relay/store"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/directory"
)

// Observer answers an operator's questions: pages and their JSON documents, and the actions of the admin listener. It
// reads the relay, and keeps answers that cost much for a while, which all operators share.
type Observer struct {
	Readers
	overviews  overviews
	fleetViews overviews // of the whole fleet
	references references
	affectedBy affectedAnswers
	// unchanged bounds the audit lines about reloads that changed nothing, of which an operator's program may want any
	// number.
	unchanged loglines.Shared
}

// Readers are what an Observer reads.
type Readers struct {
	Log         *slog.Logger
	Admin       *admin.Server
	Cache       *cache.Cache
	Server      *downstream.Server
	Rollouts    *gate.Controller
	Changes     *propagation.Tracker
	History     *history.History
	Credentials *certs.Store
	Health      *health.Server
	// Nodes are the Nodes of partitions, and Reachability has the scopes of which no server can be reached.
	Nodes        *partition.Nodes
	Reachability *feed.Reachability
	Sources      Sources
	Process      Process
}

// Sources are the sources of resources that are in use.
type Sources interface {
	// Statuses returns the status of every stream, and Stale how many topics are served from the store.
	Statuses() map[cache.Scope][]ServerStatus
	Stale() map[cache.Scope]int
	// Held returns the sets that have held members, by the name of their authority.
	Held() map[string][]guard.Held
	// Fleet returns the status of the relay's fleet, and Members the fleet, whose members the operator asks: nil if the
	// relay is in none.
	Fleet() *FleetStatus
	Members() *fleet.Fleet
}

// Process is the running relay: its configuration and its listeners.
type Process interface {
	Settings() *Settings
	Config() ConfigStatus
	// Began returns when the relay was started, and Missing why an authority has nothing to serve yet, "" if it has.
	Began() time.Time
	Missing(authority string) string
	// Lost iterates over all listeners, each with the reason why it accepts no connections, nil if it accepts them.
	// Listeners returns those for clients and for other members of the fleet.
	Lost(yield func(address string, why error))
	Listeners() []ListenerStatus
	// Load reads the configuration file and replaces the running configuration. Check returns what a document would
	// change.
	Load(ctx context.Context, by string) error
	Check(ctx context.Context, name string, document []byte) (*Changes, error)
}

// Settings are what follows from the running configuration. They do not change: another configuration has others.
type Settings struct {
	Config *configs.Config
	Router *authority.Router
	Rights *naming.Rights
	Node   *corev3.Node // the relay's own
	Store  *store.Store // nil if nothing is stored
	// By the authority's name in the configuration: the options of rollouts, the resources that clients would reject,
	// and directories.
	Rollouts    map[string]*gate.Options
	Tallies     map[string]*taster.Tally
	Directories map[string]*directory.Source
}

// ServerStatus is the status of a stream to a server.
type ServerStatus struct {
	upstream.Status
	Server *configs.Server
	Active bool // the cache stores the server's updates
}

// ListenerStatus is a listener, and what happens at its door.
type ListenerStatus struct {
	Address string
	Door    *downstream.Door
	CSDS    bool // the configuration has CSDS for its clients
}

// New returns the observer of a relay.
func New(r Readers) *Observer { return &Observer{Readers: r} }

// Register adds the pages and documents to the admin listener.
func (r *Observer) Register() {
	r.Admin.GRPC(r.operatorGRPC())
	admin.List(r.Admin, "/clients", "clients, their subscriptions, and their last NACK", r.Clients)
	r.observeRollouts()
	r.observeReloads()
	r.observeBuild()
	r.observeLint()
	r.observePages()
	r.Admin.JSON("/authorities", "streams to control planes and directories, with their errors", func() any { return r.Authorities() })
}

// Close forgets what the observer keeps.
func (r *Observer) Close() { r.references.close() }

// now returns the settings of the running configuration.
func (r *Observer) now() *Settings { return r.Process.Settings() }
