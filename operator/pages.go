package operator

// The list of the operator's pages, and of the JSON documents with the same content for commands. Package admin/page
// renders them.

import (
	"net/url"
	"time"

	"github.com/xds-relay/xds-relay/admin/page"
	"github.com/xds-relay/xds-relay/rollout/gate"
)

// observePages adds the pages to the admin listener.
func (r *Observer) observePages() {
	page.Register(r.Admin, []page.View{
		{Name: page.Front, Title: "Overview", About: "the relay, and what is wrong now", Read: func(q url.Values) (any, error) { return r.fleetOverview(q), nil }},
		{
			Name: "clients", Title: "Clients", About: "clients, in pages: ?search=TEXT, state=ok|rejects|refused, authority=NAME, unreachable=true, after=STREAM, limit=ROWS",
			Read: func(q url.Values) (any, error) { return r.fleetClients(q) },
		},
		{
			Name: "authorities", Title: "Authorities", About: "authorities, with their streams",
			Read: func(url.Values) (any, error) { return r.Authorities(), nil },
		},
		{
			Name: "authority", Title: "Authority", Part: "authorities", About: "one authority: ?name=AUTHORITY",
			Read: func(q url.Values) (any, error) { return r.authorityCalled(q.Get("name")) },
		},
		{
			Name: "resources", Title: "Resources", About: "what the cache has, in pages: ?search=TEXT, authority, partition, type, after, limit",
			Read: func(q url.Values) (any, error) { return r.resourceList(q) },
		},
		{
			Name: "unused", Title: "Unused resources", Part: "resources", About: "resources that nothing leads to, in pages: ?search=TEXT, authority, after, limit",
			Read: func(q url.Values) (any, error) { return r.unusedList(q) },
		},
		{
			Name: "resource", Title: "Resource", Part: "resources", About: "one resource: ?authority=A&type=TYPE&name=NAME, partition, dynamic_parameters",
			Read: func(q url.Values) (any, error) { return r.resourceCalled(q) },
		},
		{
			Name: "client", Title: "Client", Part: "clients", About: "one client and what it holds: ?client=NODE or stream=NUMBER, search, type, from, limit",
			Read: func(q url.Values) (any, error) { return r.clientView(q) },
		},
		{
			Name: "explain", Title: "Where a name comes from", Part: "clients", About: "where a name comes from: ?client=NODE or stream=NUMBER, name, type",
			Read: func(q url.Values) (any, error) { return r.fleetExplanation(q) },
		},
		{
			Name: "diff", Title: "Two clients", Part: "clients", About: "what two clients hold differently: ?a=NODE&b=NODE",
			Read: func(q url.Values) (any, error) { return r.fleetDifference(q) },
		},
		{
			Name: "propagation", Title: "Propagation", About: "how long changes took to reach clients in the last hour: ?authority=A&type=TYPE, rollout=true",
			Read: func(q url.Values) (any, error) { return r.propagationTimes(q) },
		},
		{
			Name: "changes", Title: "Changes", About: "what has changed, and what was done: ?since=10m, search, type, name, authority, client=NODE or stream=NUMBER, differences=true, after=NUMBER, settled=true, limit",
			Read: func(q url.Values) (any, error) { return r.changeList(q) },
		},
		{
			Name: "change", Title: "Change", Part: "changes", About: "one change, with the differences: ?number=NUMBER",
			Read: func(q url.Values) (any, error) { return r.changeNumbered(q) },
		},
		{Name: "rollouts", Title: "Rollouts", Path: "/rollout", Read: func(url.Values) (any, error) { return r.rolloutSheet(), nil }},
	}, []string{page.Front, "clients", "authorities", "resources", "changes", "rollouts", "propagation"})
}

// rolloutSheet returns the content of the page of rollouts.
func (r *Observer) rolloutSheet() any {
	var sheet struct {
		Configured bool
		Rollouts   []RolloutStatus
	}
	if sheet.Configured = len(r.now().Rollouts) > 0; sheet.Configured {
		sheet.Rollouts = r.rolloutViews(gate.Which{AnyPartition: true})
	}
	return sheet
}

// authorityCalled returns the status of one authority.
func (r *Observer) authorityCalled(name string) (*AuthorityStatus, error) {
	for _, a := range r.Authorities() {
		if a.Authority == name {
			a.Affected = r.affected(name)
			return &a, nil
		}
	}
	return nil, page.Missing("the configuration has no authority of that name")
}

// Connected counts the open streams.
func (a AuthorityStatus) Connected() (n int) {
	for i := range a.Streams {
		if a.Streams[i].Connected {
			n++
		}
	}
	return n
}

// Lost returns the first few streams that should be open and are not.
func (a AuthorityStatus) Lost() (lost []StreamStatus) {
	for _, st := range a.Streams {
		if !st.Connected && st.Subscriptions > 0 && st.LastError != "" && len(lost) < mostOfAKind {
			lost = append(lost, st)
		}
	}
	return lost
}

// clock returns a time of day as pages show it, and moment also the date.
func clock(t time.Time) string { return t.UTC().Format(time.TimeOnly) + " UTC" }

func moment(t time.Time) string { return t.UTC().Format(time.DateTime) + " UTC" }
