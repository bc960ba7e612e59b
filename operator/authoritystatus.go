package operator

// Authorities, as /authorities shows them: their streams or directory, held members, and rejected resources.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

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

// Authorities returns the status of the authorities, in the order of the configuration.
func (r *Observer) Authorities() []AuthorityStatus {
	now := r.now()
	views := make([]AuthorityStatus, len(now.Config.Authorities))
	index := map[string]int{}
	for i := range now.Config.Authorities {
		a := &now.Config.Authorities[i]
		index[a.Name] = i
		views[i].Authority, views[i].Check = a.Name, viewOfCheck(a, now.Tallies[a.Name])
		if d := now.Directories[a.Name]; d != nil {
			st := d.Status()
			v := &DirectoryStatus{Path: a.Directory, Checked: st.Checked, Files: st.Files, Resources: st.Resources}
			for _, e := range st.Errors {
				v.Errors = append(v.Errors, e.Error())
			}
			views[i].Directory = v
		}
	}
	for a, held := range r.Sources.Held() {
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
	stale := r.Sources.Stale()
	for scope, of := range r.Sources.Statuses() {
		a, ok := now.Router.Source(scope)
		if !ok {
			continue // the authority is no longer configured
		}
		v := &views[index[a.Name]]
		node, differ := r.Nodes.Describe(scope)
		for _, st := range of {
			view := StreamStatus{
				Authority: scope.Authority, Server: st.Server.Address, Active: st.Active, Partition: scope.Partition, OldStyleNames: scope.OldStyle,
				Parameters: loglines.Clip(scope.Params),
				Node:       node, NodeRefused: r.Nodes.Refused(scope), NodesDiffer: differ.Names(),
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

// HeldStatus is a set with members that the guard keeps, as /authorities shows it.
type HeldStatus struct {
	Authority  string `json:"authority"`
	Partition  string `json:"partition,omitempty"`
	Parameters string `json:"dynamic_parameters,omitempty"`
	Type       string `json:"type"`
	Set        string `json:"set"` // empty for names that clients request one by one
	Members    int    `json:"members"`
	// Contents: the members are not lost, but parts of their content, and the guard keeps the earlier content.
	Contents bool      `json:"contents,omitempty"`
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until"` // when the guard removes the first of them, unless the authority sends it again
	words    string    // what the control plane did to them
}

// heldWords says what the control plane did to members that the guard keeps, for the pages.
func heldWords(h *guard.Held) string {
	of := xdstype.Word(h.Key.TypeURL)
	if h.Key.Name != "" {
		of += fmt.Sprintf(" %q", loglines.Clip(h.Key.Name))
	}
	if h.Contents {
		return fmt.Sprintf("sent %d resources of %s without many parts of their content", h.Members, of)
	}
	return fmt.Sprintf("left out %d resources of %s at once", h.Members, of)
}

// CheckStatus counts the resources of an authority that clients would reject, as /authorities shows it.
type CheckStatus struct {
	Mode string `json:"mode"`
	// Refused and Warned count resources. Each content that the authority sent counts once.
	Refused uint64 `json:"refused"`
	Warned  uint64 `json:"warned"`
	// Last are the last resources that clients would reject, the newest first.
	Last []FailureStatus `json:"last,omitempty"`
}

// FailureStatus is a resource that clients would reject.
type FailureStatus struct {
	Type      string    `json:"type"`
	Name      string    `json:"name"`
	Partition string    `json:"partition,omitempty"`
	Refused   bool      `json:"refused"`
	Reason    string    `json:"reason"`
	At        time.Time `json:"at"`
}

func viewOfCheck(a *configs.Authority, tally *taster.Tally) CheckStatus {
	v := CheckStatus{Mode: string(a.Check)}
	v.Refused, v.Warned = tally.Totals()
	for _, f := range tally.Failures() {
		v.Last = append(v.Last, FailureStatus{xdstype.Word(f.TypeURL), f.Name, f.Partition, f.Refused, f.Reason, f.At})
	}
	return v
}
