package relay

import (
	"cmp"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// observe registers the metrics and the pages of the admin listener.
func (r *Relay) observe() error {
	r.admin = admin.New(r.metrics)
	r.checkReady()
	r.admin.GRPC(r.operatorGRPC())
	admin.List(r.admin, "/clients", "clients, their subscriptions, and their last NACK", r.clients)
	r.observeRollouts()
	r.observeReloads()
	r.observeBuild()
	r.observeStoreExport()
	r.observeLint()
	r.observePages()
	r.admin.JSON("/authorities", "streams to control planes and directories, with their errors", func() any { return r.authorities() })

	instruments := []instrument{
		{r.metrics.Gauge, "xds_relay.downstream.streams", "Open streams of clients, plus the requests of polling clients that wait for an answer.",
			one(func() int { return r.server.Clients() })},
		{r.metrics.Counter, "xds_relay.downstream.requests", "Requests from clients, including ACKs and NACKs.",
			one(func() uint64 { return r.server.Stats().Requests })},
		{r.metrics.Counter, "xds_relay.downstream.responses", "Responses sent to clients.",
			one(func() uint64 { return r.server.Stats().Responses })},
		{r.metrics.Counter, "xds_relay.downstream.nacks", "Responses that clients rejected (NACK).",
			one(func() uint64 { return r.server.Stats().NACKs })},
		{r.metrics.Counter, "xds_relay.downstream.unreachable_ends", "Streams that the relay ended because it has none of the requested resources and cannot reach their control planes.",
			one(func() uint64 { return r.server.Stats().Unreachable })},
		{r.metrics.Counter, "xds_relay.downstream.denied_ends", "Streams that the relay ended because the client is not allowed to have any of the resources that it requests.",
			one(func() uint64 { return r.server.Stats().Denied })},
		{r.metrics.Gauge, "xds_relay.downstream.clients_rejecting", "Streams of clients that reject what they were sent of a type, and have not accepted anything since that replaces it.", byLabel("grpc.xds.resource_type", func() map[string]int { return r.server.Stats().Rejecting })},
		{r.metrics.Gauge, "xds_relay.downstream.clients_with_refused_names", "Streams of clients that subscribe to names or wildcards that the relay refuses.", byLabel("reason", func() map[string]int { return r.server.Stats().WithRefused })},
		{r.metrics.Counter, "xds_relay.downstream.names_refused", "Requested names and wildcards that the relay refused.", byLabel("reason", func() map[string]uint64 { return r.server.Stats().Refusals })},
		{r.metrics.Counter, "xds_relay.downstream.clients_refused", "Streams and requests that the relay refused or ended because of the client's identity.", byLabel("reason", func() map[string]uint64 { return r.server.Stats().ClientsRefused })},
		{r.metrics.Counter, "xds_relay.downstream.connections_failed", "Connections to listeners that failed before their first request, because client and listener do not agree on TLS or on the protocol.", byLabel("reason", func() map[string]uint64 { return r.server.Stats().ConnFailures })},
		{r.metrics.Counter, "xds_relay.downstream.limits_exceeded", "Times that a client exceeded a limit.", byLabel("limit", func() map[string]uint64 { return r.server.Stats().Limits })},
		{r.metrics.Gauge, "xds_relay.downstream.admission_waiting", "New streams that wait in line for admission.",
			one(func() int { return r.server.Stats().Admission.Waiting })},
		{r.metrics.Counter, "xds_relay.downstream.admission_waited", "Streams that waited in line for admission until it was their turn.",
			one(func() uint64 { return r.server.Stats().Admission.Waited })},
		{r.metrics.Counter, "xds_relay.downstream.admission_refused", "Streams that the relay refused at admission.", byLabel("reason", func() map[string]uint64 { return r.server.Stats().Admission.Refused })},
		{r.metrics.Counter, "xds_relay.downstream.connections_sent_away", "Connections that the relay ended gracefully, because it was draining or because of their age.", byLabel("reason", func() map[string]uint64 { return r.server.Stats().SentAway })},
		{r.metrics.Gauge, "xds_relay.downstream.lost_listeners", "Listeners that accept no connections because their sockets have failed. The admin listener counts, too.", r.lostListeners},
		{r.metrics.Gauge, "xds_relay.cache.entries", "Resource names in the cache, including those for which the relay has no resource.",
			one(func() int { return r.cache.Stats().Entries })},
		{r.metrics.Gauge, "xds_relay.cache.sets", "Wildcards and globs in the cache.",
			one(func() int { return r.cache.Stats().Sets })},
		{r.metrics.Gauge, "xds_relay.cache.idle", "Names, wildcards and globs in the cache that have no subscriber.",
			one(func() int { return r.cache.Stats().Idle })},
		{r.metrics.Counter, "xds_relay.collections.loops", "Loops that the relay found in redirects and collections.",
			one(r.derived.Loops)},
		{r.metrics.Counter, "xds_relay.collections.duplicate_members", "Members that the relay left out of a view or list because an earlier collection has a different member of the same name.",
			one(r.derived.Clashes)},
		{r.metrics.Counter, "xds_relay.collections.failures", "Times that the relay could not read a collection for a view, or could not use an entry of a collection.",
			one(r.derived.Failures)},
		{r.metrics.Gauge, "xds_relay.upstream.streams", "Streams to control planes, including those that the relay tries to open.", r.upstreamStreams},
		{r.metrics.Gauge, "grpc.xds_client.resources", "Resources that the relay has requested as an xDS client, by cache state.", r.requestedResources},
		{r.metrics.Counter, "xds_relay.upstream.switches", "Times that the relay switched to another server of an authority.",
			func() []admin.Sample { return r.byAuthority(func(c *counts) *atomic.Uint64 { return c.switches }) }},
		{r.metrics.Gauge, "xds_relay.upstream.unreachable", "Partitions for which the relay can reach no server of the authority. A partition counts once for each set of dynamic parameters in use.", r.unreachable},
		{r.metrics.Counter, "xds_relay.upstream.resource_errors", "Errors that control planes sent in the field resource_errors of responses.",
			func() []admin.Sample { return r.byAuthority(func(c *counts) *atomic.Uint64 { return c.errors }) }},
		{r.metrics.Counter, "xds_relay.propagation.not_reached", "Clients that had not been sent a change, or had not acknowledged it, when the relay stopped measuring the change.", r.propagation.notReached},
		{r.metrics.Counter, "xds_relay.check.failures", "Resources from control planes and directories that clients would reject.", r.rejectable},
		{r.metrics.Gauge, "xds_relay.certificate.expiry_timestamp_seconds", "When a certificate expires, as a Unix timestamp in seconds.", r.certificateExpiries},
		{r.metrics.Counter, "xds_relay.certificate.reload_failures", "Failed attempts to read a certificate, a CA, a token or keys.", r.reloadFailures},
		{r.metrics.Gauge, "xds_relay.directory.errors", "Errors in the files of a directory when the relay last read them.", r.directoryErrors},
	}
	for _, i := range slices.Concat(instruments, r.guardInstruments(), r.storeInstruments(), r.rolloutInstruments(), r.reloadInstruments(), r.buildInstruments(), r.loadInstruments(), r.prefetchInstruments(), r.fleetInstruments()) {
		if err := i.add(i.name, i.about, i.read); err != nil {
			return err
		}
	}
	return nil
}

// instrument is a metric.
type instrument struct {
	add         func(string, string, func() []admin.Sample) error
	name, about string
	read        func() []admin.Sample
}

// one returns a function that reads an instrument with a single value.
func one[N int | uint64](read func() N) func() []admin.Sample {
	return func() []admin.Sample { return []admin.Sample{{Value: int64(read())}} }
}

// byLabel returns a function that reads an instrument with a single label. read returns the instrument's values by the
// label's value.
func byLabel[N int | uint64](label string, read func() map[string]N) func() []admin.Sample {
	return func() []admin.Sample {
		var samples []admin.Sample
		for value, n := range read() {
			samples = append(samples, admin.Sample{Value: int64(n), Labels: []attribute.KeyValue{attribute.String(label, value)}})
		}
		return samples
	}
}

func (r *Relay) upstreamStreams() []admin.Sample {
	type kind struct {
		authority string
		connected bool
	}
	count := map[kind]int64{}
	for scope, of := range r.origins.statuses() {
		for _, st := range of {
			if st.Protocol != "" { // the server has the type
				count[kind{r.labelOf(scope.Authority), st.Connected}]++
			}
		}
	}
	samples := make([]admin.Sample, 0, len(count))
	for k, n := range count {
		samples = append(samples, admin.Sample{Value: n, Labels: []attribute.KeyValue{
			authorityLabel(k.authority), attribute.Bool("connected", k.connected),
		}})
	}
	return samples
}

// labelOf returns the label of an authority in metrics: its name in the configuration. Authorities under a pattern have
// the pattern as their label, because clients can make up any number of their names.
func (r *Relay) labelOf(authority string) string {
	a, ok := r.now().router.Source(cache.Scope{Authority: authority})
	if !ok {
		return "" // the authority is no longer configured
	}
	return a.Name
}

// byAuthority returns the values of a counter, one for each authority that has servers.
func (r *Relay) byAuthority(of func(*counts) *atomic.Uint64) []admin.Sample {
	var samples []admin.Sample
	for name, o := range r.now().origins {
		if o.directory != nil {
			continue
		}
		samples = append(samples, admin.Sample{
			Value:  int64(of(o.counts).Load()),
			Labels: []attribute.KeyValue{authorityLabel(name)},
		})
	}
	return samples
}

func (r *Relay) unreachable() []admin.Sample {
	count := map[string]int{}
	for authority, n := range r.origins.reachability.Count() {
		count[r.labelOf(authority)] += n
	}
	var samples []admin.Sample
	for authority, n := range count {
		samples = append(samples, admin.Sample{
			Value:  int64(n),
			Labels: []attribute.KeyValue{authorityLabel(authority)},
		})
	}
	return samples
}

func (r *Relay) directoryErrors() []admin.Sample {
	var samples []admin.Sample
	for name, o := range r.now().origins {
		if o.directory == nil {
			continue
		}
		samples = append(samples, admin.Sample{
			Value:  int64(len(o.directory.Status().Errors)),
			Labels: []attribute.KeyValue{authorityLabel(name)},
		})
	}
	return samples
}

// ClientStatus is one client's stream, as /clients shows it.
type ClientStatus struct {
	Stream  uint64    `json:"stream"`
	Node    string    `json:"node"`
	Cluster string    `json:"cluster"`
	Peer    string    `json:"peer"`
	Form    string    `json:"form"`
	Since   time.Time `json:"since"`
	// Identity is the identity that the client has proven.
	Identity IdentityStatus `json:"identity"`
	Types    []TypeStatus   `json:"types"`
}

// IdentityStatus is an identity as /clients shows it. It leaves out the claims of tokens.
type IdentityStatus struct {
	Source   string   `json:"source"`
	SPIFFEID string   `json:"spiffe_id,omitempty"`
	DNSNames []string `json:"dns_names,omitempty"`
	Subject  string   `json:"subject,omitempty"`
	UID      *uint32  `json:"uid,omitempty"`
}

func viewOfIdentity(id *identity.Identity) IdentityStatus {
	return IdentityStatus{Source: string(id.Source), SPIFFEID: id.SPIFFEID, DNSNames: id.DNSNames, Subject: loglines.Clip(id.Subject), UID: id.UID}
}

// TypeStatus has a client's subscriptions to one type.
type TypeStatus struct {
	Type          string `json:"type"`
	Subscriptions int    `json:"subscriptions"`
	LastRejection string `json:"last_rejection,omitempty"`
	// NACK is the last rejection, unless the client has accepted a later version of what it rejected.
	NACK *RejectionStatus `json:"nack,omitempty"`
	// Refused counts the names that the relay refused, and LastRefused is the last of them.
	Refused     uint64         `json:"refused,omitempty"`
	LastRefused *RefusedStatus `json:"last_refused,omitempty"`
}

// RefusedStatus is a name that the relay refused to serve a client.
type RefusedStatus struct {
	Name   string `json:"name"`
	Reason string `json:"reason"` // the label reason of xds_relay_downstream_names_refused_total
	Error  string `json:"error"`
}

func viewOfType(t downstream.TypeStatus) TypeStatus {
	v := TypeStatus{Type: xdstype.Word(t.TypeURL), Subscriptions: t.Subscriptions, LastRejection: t.LastRejection, NACK: viewOfRejection(t.NACK), Refused: t.Refused.Total}
	if t.Refused.Total > 0 {
		v.LastRefused = &RefusedStatus{t.Refused.Last, t.Refused.Refusal.String(), t.Refused.Reason}
	}
	return v
}

// clients returns the clients as a sequence, because there may be very many.
func (r *Relay) clients() iter.Seq[ClientStatus] {
	return func(yield func(ClientStatus) bool) {
		for c := range r.server.Describe() {
			if !yield(viewOfClient(&c)) {
				return
			}
		}
	}
}

func viewOfClient(c *downstream.ClientStatus) ClientStatus {
	v := ClientStatus{
		Stream: c.Stream, Node: loglines.Clip(c.Node.GetId()), Cluster: loglines.Clip(c.Node.GetCluster()),
		Peer: c.Peer, Form: c.Form, Since: c.Since, Identity: viewOfIdentity(c.Identity), Types: []TypeStatus{},
	}
	for _, t := range c.Types {
		v.Types = append(v.Types, viewOfType(t))
	}
	return v
}

// AuthorityStatus has the sources of one authority, as /authorities shows them.
type AuthorityStatus struct {
	Authority string           `json:"authority"`
	Check     CheckStatus      `json:"check"`
	Streams   []StreamStatus   `json:"streams,omitempty"`
	Directory *DirectoryStatus `json:"directory,omitempty"`
	// Held are the sets that have held members.
	Held []HeldStatus `json:"held,omitempty"`
	// Affected are the clients that an outage of the authority affects, in /api/authority.
	Affected *Affected `json:"affected,omitempty"`
}

// StreamStatus is one stream to a control plane.
type StreamStatus struct {
	Authority     string    `json:"authority"` // the authority's own name, even if the configuration has a pattern
	Server        string    `json:"server"`
	Active        bool      `json:"active"` // the cache stores its updates: it is neither on trial nor replaced by another server
	Partition     string    `json:"partition"`
	Parameters    string    `json:"dynamic_parameters,omitempty"`
	OldStyleNames bool      `json:"old_style_names"`
	Node          string    `json:"node,omitempty"`         // the Node id that the relay sends for old-style names
	NodeRefused   bool      `json:"node_refused,omitempty"` // a control plane may refuse the Nodes of the partition's clients
	NodesDiffer   []string  `json:"nodes_differ,omitempty"` // the Node fields in which the partition's clients differ
	Type          string    `json:"type,omitempty"`         // for a stream of one type
	NamesStream   bool      `json:"names_stream,omitempty"` // a stream for names only: the type's wildcard has another one
	Connected     bool      `json:"connected"`
	Stored        int       `json:"stored,omitempty"` // names and sets of the partition that are served from the store
	Since         time.Time `json:"since"`
	Protocol      string    `json:"protocol,omitempty"` // empty if the server does not have the type
	Subscriptions int       `json:"subscriptions"`
	Responses     uint64    `json:"responses"`
	NACKs         uint64    `json:"nacks"`
	Errors        uint64    `json:"resource_errors"`
	LastError     string    `json:"last_error,omitempty"`
	// LastErrorAt is when LastError occurred, and Failures counts the failures in a row since the stream was last
	// open.
	LastErrorAt *time.Time `json:"last_error_at,omitempty"`
	Failures    int        `json:"failures,omitempty"`
	// Quarantined is how many names and wildcards are requested apart, because the server may have ended the stream for
	// them, and QuarantineReason why it has ended a stream for one of them alone.
	Quarantined      int    `json:"quarantined,omitempty"`
	QuarantineReason string `json:"quarantine_reason,omitempty"`
	// Unsaid is how many resources the server has not sent again on a new stream, without saying that they are gone, and
	// UnsaidSince since when there are any. The relay keeps them until the server's answer is complete.
	Unsaid      int        `json:"unsaid,omitempty"`
	UnsaidSince *time.Time `json:"unsaid_since,omitempty"`
	// Unanswered is what the server does not answer, by type, for some types.
	Unanswered []UnansweredStatus `json:"unanswered,omitempty"`
}

// UnansweredStatus is what of a type a server does not answer.
type UnansweredStatus struct {
	Type string `json:"type"`
	// Names counts names and wildcards. LeftOut counts those of them that are left out of requests, because the server
	// answers only requests of which it has every name.
	Names   int `json:"names"`
	LeftOut int `json:"left_out,omitempty"`
	// Newest has some of them.
	Newest []string  `json:"newest"`
	Since  time.Time `json:"since"`
}

// DirectoryStatus is a directory of resource files.
type DirectoryStatus struct {
	Path      string    `json:"path"`
	Checked   time.Time `json:"checked"`
	Files     int       `json:"files"`
	Resources int       `json:"resources"`
	Errors    []string  `json:"errors,omitempty"`
}

func (r *Relay) authorities() []AuthorityStatus {
	now := r.now()
	views := make([]AuthorityStatus, len(now.cfg.Authorities))
	index := map[string]int{}
	for i := range now.cfg.Authorities {
		a := &now.cfg.Authorities[i]
		index[a.Name] = i
		views[i].Authority, views[i].Check = a.Name, viewOfCheck(a, now.counts[a.Name].tally)
		if d := now.origins[a.Name].directory; d != nil {
			st := d.Status()
			v := &DirectoryStatus{Path: a.Directory, Checked: st.Checked, Files: st.Files, Resources: st.Resources}
			for _, e := range st.Errors {
				v.Errors = append(v.Errors, e.Error())
			}
			views[i].Directory = v
		}
	}
	for a, held := range r.held() {
		i, ok := index[a]
		if !ok {
			continue
		}
		for _, h := range held {
			views[i].Held = append(views[i].Held, HeldStatus{
				Authority: h.Key.Scope.Authority, Partition: h.Key.Scope.Partition, Parameters: loglines.Clip(h.Key.Scope.Params),
				Type: xdstype.Word(h.Key.TypeURL), Set: loglines.Clip(h.Key.Name), Members: h.Members, Contents: h.Contents, Since: h.Since, Until: h.Until,
				words: heldWords(&h),
			})
		}
	}
	stale := r.origins.stale()
	for scope, of := range r.origins.statuses() {
		a, ok := now.router.Source(scope)
		if !ok {
			continue // the authority is no longer configured
		}
		v := &views[index[a.Name]]
		node, differ := r.scopes.nodes.describe(scope)
		for _, st := range of {
			view := StreamStatus{
				Authority: scope.Authority, Server: st.server.Address, Active: st.active, Partition: scope.Partition, OldStyleNames: scope.OldStyle,
				Parameters: loglines.Clip(scope.Params),
				Node:       node, NodeRefused: r.scopes.nodes.isRefused(scope), NodesDiffer: differ.fields(),
				NamesStream: st.NamesStream, Connected: st.Connected, Stored: stale[scope], Since: st.Since, Protocol: string(st.Protocol),
				Subscriptions: st.Subscriptions, Responses: st.Responses, NACKs: st.Nacks, Errors: st.ResourceErrors, LastError: st.LastError, Failures: st.Failures,
				Quarantined: st.Quarantined, QuarantineReason: st.QuarantineReason,
			}
			if view.Unsaid = st.Unsaid; st.Unsaid > 0 {
				view.UnsaidSince = &st.UnsaidSince
			}
			if !st.LastErrorAt.IsZero() {
				view.LastErrorAt = &st.LastErrorAt
			}
			if st.TypeURL != "" {
				view.Type = xdstype.Word(st.TypeURL)
			}
			for _, q := range st.Quiet {
				view.Unanswered = append(view.Unanswered, UnansweredStatus{
					Type: xdstype.Word(q.TypeURL), Names: q.Topics, LeftOut: q.LeftOut, Newest: q.Newest, Since: q.Since,
				})
			}
			v.Streams = append(v.Streams, view)
		}
	}
	for _, v := range views {
		slices.SortStableFunc(v.Streams, func(a, b StreamStatus) int {
			return cmp.Or(cmp.Compare(a.Authority, b.Authority), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Parameters, b.Parameters), cmp.Compare(a.Type, b.Type))
		})
	}
	return views
}
