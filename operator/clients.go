package operator

// Clients on the operator's page: a list with search and pages, and the search for the client that an operator names.

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/admin/page"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

const (
	// listLength is the default number of rows on a page of a list, and mostRows the maximum.
	listLength, mostRows = 50, 1000
)

// clientHead is what a list shows of a client.
type clientHead struct {
	ClientStatus
	identity string
}

// name returns the name of the client for people.
func (c *clientHead) name() string {
	if c.Node != "" {
		return c.Node
	}
	return c.Peer
}

// ClientRow is a client in a list.
type ClientRow struct {
	ClientStatus
	// Who is the client's identity in words.
	Who string `json:"who"`
	// State is "rejects", "refused" or "ok".
	State string `json:"state"`
	// Subscriptions counts those of all types.
	Subscriptions int `json:"subscriptions"`
	// Relay is the relay of the fleet that has the client. Elsewhere: it is not this one.
	Relay     string `json:"relay,omitempty"`
	Elsewhere bool   `json:"-"`
}

// ClientList is a page of a list of clients, as /api/clients shows it.
type ClientList struct {
	Clients []ClientRow `json:"clients"`
	// Open counts all open streams of clients, whether the search matches them or not.
	Open int `json:"open"`
	// Next, if not 0, is the `after` of the next page.
	Next uint64 `json:"next,omitempty"`
	// More: other relays of the fleet have more clients that match. NoAnswer are relays that do not answer.
	More     bool       `json:"more,omitempty"`
	NoAnswer []NoAnswer `json:"no_answer,omitempty"`
	// Search and State are the query's.
	Search string `json:"search,omitempty"`
	State  string `json:"state,omitempty"`
	// Authority, if not "", restricts the list to clients that use the authority. Unreachable restricts it to clients
	// that use a part of the authority of which no server can be reached.
	Authority   string `json:"authority,omitempty"`
	Unreachable bool   `json:"unreachable,omitempty"`
}

// Rejected returns the client's rejection of the type that still stands, nil if there is none.
func (t *TypeStatus) Rejected() *RejectionStatus {
	return t.NACK
}

// RejectionStatus is a client's NACK that no later ACK has made up for.
type RejectionStatus struct {
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
	// Since is the time of the first of the NACKs in a row, and At of the last one.
	Since   time.Time `json:"since"`
	Version string    `json:"version,omitempty"`
	// Names are some of the names that were new in the rejected response.
	Names []string `json:"names,omitempty"`
}

func viewOfRejection(n *downstream.LastNACK) *RejectionStatus {
	if n == nil {
		return nil
	}
	v := &RejectionStatus{Reason: words(n.Reason), At: n.At, Since: n.Since, Version: loglines.Clip(n.Version)}
	for _, name := range n.Names.First {
		v.Names = append(v.Names, loglines.ClipTo(name, 200))
	}
	return v
}

// state returns the state of a client in one word.
func (c *clientHead) state() string {
	state := "ok"
	for i := range c.Types {
		switch t := &c.Types[i]; {
		case t.Rejected() != nil:
			return "rejects"
		case t.Refused > 0:
			state = "refused"
		}
	}
	return state
}

func headOf(c *downstream.ClientStatus) *clientHead {
	h := &clientHead{ClientStatus: viewOfClient(c)}
	if c.Identity != nil {
		h.identity = loglines.Clip(c.Identity.String())
	}
	return h
}

// eachClient calls f for each client, in the order in which they connected, until it returns false.
func (r *Observer) eachClient(f func(*clientHead) bool) {
	for c := range r.Server.Describe() {
		if !f(headOf(&c)) {
			return
		}
	}
}

// clientList answers a query for clients.
func (r *Observer) clientList(q url.Values) (*ClientList, error) {
	list := &ClientList{Clients: []ClientRow{}, Open: r.Server.Clients(), Search: loglines.ClipTo(strings.TrimSpace(q.Get("search")), 300), State: q.Get("state")}
	switch list.State {
	case "", "ok", "rejects", "refused":
	default:
		return nil, page.Unclear("state: want ok, rejects or refused")
	}
	after, err := number(q, "after", 0)
	if err != nil {
		return nil, err
	}
	rows, err := number(q, "limit", listLength)
	if err != nil {
		return nil, err
	}
	rows = max(min(rows, mostRows), 1)
	wanted := strings.ToLower(list.Search)
	list.Authority, list.Unreachable = q.Get("authority"), q.Get("unreachable") == "true"
	uses := r.usesAuthority(list.Authority, list.Unreachable)
	for c := range r.Server.Inspect(after) {
		if !matches(&c.ClientStatus, wanted) || !uses(c) {
			continue
		}
		h := headOf(&c.ClientStatus)
		row := ClientRow{ClientStatus: h.ClientStatus, Who: h.identity, State: h.state()}
		if list.State != "" && row.State != list.State {
			continue
		}
		if uint64(len(list.Clients)) == rows {
			list.Next = list.Clients[rows-1].Stream
			break
		}
		for _, t := range row.Types {
			row.Subscriptions += t.Subscriptions
		}
		list.Clients = append(list.Clients, row)
	}
	return list, nil
}

// usesAuthority returns a function that reports whether a client uses an authority, or a part of it of which no
// server can be reached. If name is "", it is true of all clients.
func (r *Observer) usesAuthority(name string, unreachable bool) func(*downstream.Inspected) bool {
	if name == "" {
		return func(*downstream.Inspected) bool { return true }
	}
	if unreachable {
		down := r.cutOff()[name]
		return func(c *downstream.Inspected) bool { return uses(c, down) }
	}
	router := r.now().Router
	return func(c *downstream.Inspected) bool {
		return slices.ContainsFunc(c.Scopes(), func(s cache.Scope) bool {
			a, ok := router.Source(plainScope(s))
			return ok && a.Name == name
		})
	}
}

// matches reports whether a client matches an operator's search: by a part of its node id, cluster, address or
// identity, or by the number of its stream.
func matches(c *downstream.ClientStatus, wanted string) bool {
	if wanted == "" {
		return true
	}
	for _, text := range []string{c.Node.GetId(), c.Node.GetCluster(), c.Peer} {
		if containsFold(text, wanted) {
			return true
		}
	}
	return c.Identity != nil && c.Identity.Authenticated() && containsFold(c.Identity.String(), wanted) || wanted == "#"+strconv.FormatUint(c.Stream, 10)
}

// containsFold reports whether a text contains another one, which must be in lower case.
func containsFold(text, lower string) bool {
	if len(text) > loglines.MaxText {
		text = text[:loglines.MaxText]
	}
	return strings.Contains(strings.ToLower(text), lower)
}

// number returns a number from a query.
func number(q url.Values, key string, otherwise uint64) (uint64, error) {
	text := q.Get(key)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, page.Unclear(fmt.Sprintf("%s: want a number", key))
	}
	return n, nil
}

// clientCalled returns the stream of the one client that an operator names: by node id, by stream number (#12), or by
// a text that matches no other client.
func (r *Observer) clientCalled(name string) (stream uint64, err error) {
	if name == "" {
		return 0, page.Unclear("client is missing: want a node id, or #NUMBER of a stream")
	}
	var exact, similar []*clientHead
	number := strings.TrimPrefix(name, "#")
	const mostNamed = 5 // in the error
	for c := range r.Server.Describe() {
		if len(exact) > mostNamed {
			break
		}
		switch {
		case c.Node.GetId() == name, strings.HasPrefix(name, "#") && strconv.FormatUint(c.Stream, 10) == number:
			exact = append(exact, headOf(&c))
		case len(similar) < 2 && len(exact) == 0 && matches(&c, strings.ToLower(name)):
			similar = append(similar, headOf(&c))
		}
	}
	found := exact
	if len(found) == 0 {
		found = similar
	}
	switch {
	case len(found) == 0:
		return 0, page.Missing(fmt.Sprintf("no client has the node id %q, or anything like it", loglines.ClipTo(name, 200)))
	case len(found) > 1:
		var streams []string
		for _, c := range found[:min(len(found), mostNamed)] {
			streams = append(streams, fmt.Sprintf("#%d (node %q, %s, %s)", c.Stream, c.Node, c.Peer, c.Form))
		}
		return 0, &page.Error{Status: 409, Text: fmt.Sprintf("%q is more than one stream: say which, %s", loglines.ClipTo(name, 200), strings.Join(streams, ", "))}
	}
	return found[0].Stream, nil
}

func clientPage(stream uint64) string { return "/ui/client?stream=" + strconv.FormatUint(stream, 10) }

func clientsPage(state string) string { return "/ui/clients?state=" + state }

func authorityPage(name string) string {
	return "/ui/authority?" + url.Values{"name": {name}}.Encode()
}
