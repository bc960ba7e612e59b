package operator

// What has changed, and what was done, as the operator sees it: the entries of package history, with differences that
// are made when somebody reads them.

import (
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/admin/page"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/client/render"
	"github.com/xds-relay/xds-relay/internal/history"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// ChangeList has changes and events, the oldest first, as /api/changes shows it.
type ChangeList struct {
	Changes []ChangeEntry `json:"changes"`
	// Newest is the `after` of what comes next. Older says that there are older ones that match.
	Newest uint64 `json:"newest"`
	Older  bool   `json:"older,omitempty"`
	// The following are the query's.
	Search    string    `json:"search,omitempty"`
	Type      string    `json:"type,omitempty"`
	Name      string    `json:"name,omitempty"`
	Authority string    `json:"authority,omitempty"`
	Client    string    `json:"client,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Types     []string  `json:"types"`
}

// ChangeEntry is what one response changed of one type for the clients of one partition, or an event. In a storm it has
// several responses.
type ChangeEntry struct {
	Number uint64    `json:"number"`
	At     time.Time `json:"at"`
	// Event is set if it is an event.
	Event      *EventStatus `json:"event,omitempty"`
	Authority  string       `json:"authority,omitempty"`
	Partition  string       `json:"partition,omitempty"`
	Parameters string       `json:"dynamic_parameters,omitempty"`
	Type       string       `json:"type,omitempty"`
	// Cause is response, rolled_out, released, stored, restated, silence, expired, known or outage.
	Cause string `json:"cause,omitempty"`
	// Server is the control plane, empty for a directory. Received, Version, Nonce and Response are of its response:
	// Response is the number on its stream. Responses counts them.
	Server    string     `json:"server,omitempty"`
	Received  *time.Time `json:"received,omitempty"`
	Version   string     `json:"version,omitempty"`
	Nonce     string     `json:"nonce,omitempty"`
	Response  uint64     `json:"response,omitempty"`
	Responses int        `json:"responses,omitempty"`
	// Added, Changed and Removed count resources, and FirstAnswers those that were the first answer to a request.
	Added        int `json:"added,omitempty"`
	Changed      int `json:"changed,omitempty"`
	Removed      int `json:"removed,omitempty"`
	FirstAnswers int `json:"first_answers,omitempty"`
	// Resources are those that have changed, and Unnamed counts the others.
	Resources []ChangedResource `json:"resources,omitempty"`
	Unnamed   int               `json:"unnamed,omitempty"`
	// KeptBack are resources of the response that clients do not get yet, and KeptBackUnnamed counts the others.
	KeptBack        []KeptBack `json:"kept_back,omitempty"`
	KeptBackUnnamed int        `json:"kept_back_unnamed,omitempty"`
	// Clients is how far the last response has come, nil if that was not measured.
	Clients *ReachedClients `json:"clients,omitempty"`
}

// EventStatus is something that was done, or that has happened: a line of the log.
type EventStatus struct {
	Kind     string `json:"kind"`
	Severity string `json:"severity"` // info, warning or error
	Text     string `json:"text"`
	// Details are the attributes of the line.
	Details []EventDetail `json:"details,omitempty"`
}

// EventDetail is an attribute of an event.
type EventDetail struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// ChangedResource is a resource before and after a change.
type ChangedResource struct {
	ResourceRef
	Set    string `json:"set,omitempty"` // the wildcard or glob that has it
	Change string `json:"change"`        // added, changed or removed
	Old    string `json:"old_version,omitempty"`
	New    string `json:"new_version,omitempty"`
	// Difference is the difference of the contents, line by line. Unshown is why there is none.
	Difference string `json:"difference,omitempty"`
	Unshown    string `json:"unshown,omitempty"`
}

// KeptBack is a resource that the guard or a rollout keeps back.
type KeptBack struct {
	By   string `json:"by"`
	Name string `json:"name"`
}

// ReachedClients counts the clients that get a change.
type ReachedClients struct {
	Clients int64 `json:"clients"`
	Sent    int64 `json:"sent"`
	ACKed   int64 `json:"acked"`
	NACKed  int64 `json:"nacked,omitempty"`
	// LastSent and LastACKed are when the last client was sent the change, and acknowledged it. LastNACKed is when a
	// client last rejected a response with it.
	LastSent   *time.Time `json:"last_sent,omitempty"`
	LastACKed  *time.Time `json:"last_acked,omitempty"`
	LastNACKed *time.Time `json:"last_nacked,omitempty"`
}

const (
	// mostEntries bounds the entries of a list, and listedEntries is how many there are if the query does not say.
	mostEntries, listedEntries = 1000, 200
	// comparedBytes bounds the bytes of the contents whose differences one answer has.
	comparedBytes = 2 << 20
	// listedNames is how many resources of an entry a list has, unless the query selects some.
	listedNames = 100
)

// changeQuery is a query for changes.
type changeQuery struct {
	list        *ChangeList
	typeURL     string
	of          *clientTopics // nil for all clients
	differences bool
	room        int // bytes that may still be compared
}

// changeList answers a query for changes: search, type, name, authority, client or stream, since, after, limit,
// differences, settled.
func (r *Observer) changeList(q url.Values) (*ChangeList, error) {
	l := &ChangeList{
		Changes: []ChangeEntry{}, Search: loglines.ClipTo(strings.TrimSpace(q.Get("search")), 300), Type: q.Get("type"),
		Name: q.Get("name"), Authority: q.Get("authority"), Client: q.Get("client"), Types: typeWords(),
	}
	cq := &changeQuery{list: l, differences: q.Get("differences") == "true", room: comparedBytes}
	var err error
	if l.Type != "" {
		if cq.typeURL, err = xdstype.Parse(l.Type); err != nil {
			return nil, page.Unclear("type: " + err.Error())
		}
	}
	if l.Since, err = sinceOf(q.Get("since")); err != nil {
		return nil, err
	}
	after, err := number(q, "after", 0)
	if err != nil {
		return nil, err
	}
	limit, err := number(q, "limit", listedEntries)
	if err != nil {
		return nil, err
	}
	if l.Client != "" || q.Get("stream") != "" {
		if cq.of, err = r.topicsOf(q); err != nil {
			return nil, err
		}
	}
	most := int(max(min(limit, mostEntries), 1)) //nolint:gosec // at most mostEntries
	entries := r.History.After(after, l.Since, q.Get("settled") == "true")
	l.Newest = max(after, r.History.Newest())
	if len(entries) > 0 {
		l.Newest = entries[len(entries)-1].Number
	} else if q.Get("settled") == "true" {
		l.Newest = after
	}
	matching := slices.DeleteFunc(entries, func(e *history.Entry) bool { return !cq.matches(e) })
	switch n := len(matching) - most; {
	case n <= 0:
	case q.Has("after"): // the next ones
		matching = matching[:most]
		l.Newest = matching[most-1].Number
	default:
		matching, l.Older = matching[n:], true
	}
	for _, e := range slices.Backward(matching) { // the newest ones are compared first
		l.Changes = append(l.Changes, cq.view(e))
	}
	slices.Reverse(l.Changes)
	return l, nil
}

// changeNumbered answers a query for one entry, with all differences.
func (r *Observer) changeNumbered(q url.Values) (*ChangeEntry, error) {
	n, err := number(q, "number", 0)
	if err != nil {
		return nil, err
	}
	if n > 0 {
		if all := r.History.After(n-1, time.Time{}, false); len(all) > 0 && all[0].Number == n {
			cq := &changeQuery{list: &ChangeList{}, differences: true, room: comparedBytes}
			v := cq.view(all[0])
			return &v, nil
		}
	}
	return nil, page.Missing(fmt.Sprintf("the relay does not keep change %d (any more)", n))
}

func typeWords() (all []string) {
	for _, t := range xdstype.All() {
		if t.Word != "" {
			all = append(all, t.Word)
		}
	}
	return all
}

// sinceOf reads a time, or how long ago it was. It is zero for an empty text.
func sinceOf(text string) (at time.Time, err error) {
	if text == "" {
		return at, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), nil
	}
	if at, err = time.Parse(time.RFC3339, text); err != nil {
		return at, page.Unclear("since: want a duration such as 10m, or a time such as 2006-01-02T15:04:05Z")
	}
	return at, nil
}

// clientTopics are the topics that a client watches.
type clientTopics struct {
	topics      map[cache.Key]struct{}
	authorities map[string]struct{}
}

// topicsOf returns the topics of the client that a query selects.
func (r *Observer) topicsOf(q url.Values) (*clientTopics, error) {
	c, err := r.clientOf(q, "client")
	if err != nil {
		return nil, err
	}
	of := &clientTopics{map[cache.Key]struct{}{}, map[string]struct{}{}}
	for k := range c.Subscribed("") {
		k.Scope = k.Scope.Accepted()
		of.topics[k] = struct{}{}
		of.authorities[k.Scope.Authority] = struct{}{}
	}
	return of, nil
}

// concerns reports whether the client watches a resource.
func (t *clientTopics) concerns(e *history.Entry, c *history.Change) bool {
	k := cache.Key{Scope: e.Scope, TypeURL: e.TypeURL, Name: c.Name}
	if _, is := t.topics[k]; is {
		return true
	}
	k.Name = c.Set
	_, is := t.topics[k]
	return is && c.Set != ""
}

// matches reports whether the list has an entry.
func (cq *changeQuery) matches(e *history.Entry) bool {
	l := cq.list
	if v := e.Event; v != nil {
		if _, is := cq.topicAuthorities()[v.Authority]; cq.of != nil && v.Authority != "" && !is {
			return false
		}
		return l.Type == "" && l.Name == "" && (l.Authority == "" || l.Authority == v.Authority) && (l.Search == "" || eventContains(v, l.Search))
	}
	switch {
	case l.Authority != "" && l.Authority != e.Scope.Authority, cq.typeURL != "" && cq.typeURL != e.TypeURL:
		return false
	case cq.of == nil && l.Name == "" && l.Search == "":
		return true
	case l.Name == "" && cq.of == nil && cq.about(e):
		return true
	}
	return slices.ContainsFunc(e.Changes, func(c history.Change) bool { return cq.selects(e, &c) }) ||
		cq.of == nil && slices.ContainsFunc(e.Kept, func(k propagation.KeptBack) bool { return cq.names(k.Name) })
}

func (cq *changeQuery) topicAuthorities() map[string]struct{} {
	if cq.of == nil {
		return nil
	}
	return cq.of.authorities
}

// about reports whether what an entry says of its response has the text of the search.
func (cq *changeQuery) about(e *history.Entry) bool {
	for _, s := range []string{e.Server, e.Receipt.Version, e.Receipt.Nonce, e.Scope.Authority, e.Scope.Partition, typeWord(e.TypeURL)} {
		if containsFold(s, strings.ToLower(cq.list.Search)) {
			return true
		}
	}
	return false
}

func eventContains(v *history.Event, search string) bool {
	search = strings.ToLower(search)
	return containsFold(v.Kind, search) || containsFold(v.Text, search) || containsFold(v.Authority, search) ||
		slices.ContainsFunc(v.Attrs, func(a history.Attr) bool { return containsFold(a.Value, search) })
}

// names reports whether a name is one of those that the query selects.
func (cq *changeQuery) names(name string) bool {
	l := cq.list
	return (l.Name == "" || l.Name == name) && (l.Search == "" || containsFold(name, strings.ToLower(l.Search)))
}

// selects reports whether the query selects a resource of an entry.
func (cq *changeQuery) selects(e *history.Entry, c *history.Change) bool {
	return (cq.list.Name == "" || cq.list.Name == c.Name) &&
		(cq.list.Search == "" || cq.about(e) || containsFold(c.Name, strings.ToLower(cq.list.Search))) &&
		(cq.of == nil || cq.of.concerns(e, c))
}

// view returns an entry as the operator sees it.
func (cq *changeQuery) view(e *history.Entry) ChangeEntry {
	v := ChangeEntry{Number: e.Number, At: e.At}
	if event := e.Event; event != nil {
		v.Authority, v.Event = event.Authority, &EventStatus{Kind: event.Kind, Severity: severityOf(event.Level), Text: event.Text}
		for _, a := range event.Attrs {
			v.Event.Details = append(v.Event.Details, EventDetail(a))
		}
		return v
	}
	v.Authority, v.Partition, v.Parameters, v.Type = e.Scope.Authority, e.Scope.Partition, e.Scope.Params, typeWord(e.TypeURL)
	v.Cause, v.Server, v.Version, v.Nonce, v.Response, v.Responses = string(e.Cause), e.Server, e.Receipt.Version, e.Receipt.Nonce, e.Receipt.Response, e.Responses
	v.Received = timeOrNil(e.Receipt.At)
	v.Added, v.Changed, v.Removed, v.FirstAnswers = e.Added, e.Changed, e.Removed, e.First
	for i := range e.Changes {
		if c := &e.Changes[i]; cq.selects(e, c) && len(v.Resources) < listedNames {
			v.Resources = append(v.Resources, cq.resource(e, c))
		}
	}
	v.Unnamed = e.Added + e.Changed + e.Removed - len(v.Resources)
	for _, k := range e.Kept {
		v.KeptBack = append(v.KeptBack, KeptBack{k.By, loglines.ClipTo(k.Name, longestLink)})
	}
	v.KeptBackUnnamed = e.KeptMore
	if e.Progress != nil {
		reached := e.Progress.Reached()
		v.Clients = &ReachedClients{reached.Clients, reached.Sent, reached.ACKed, reached.NACKed, timeOrNil(reached.LastSent), timeOrNil(reached.LastACKed), timeOrNil(reached.LastNACKed)}
	}
	return v
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func severityOf(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return SeverityError
	case level >= slog.LevelWarn:
		return SeverityWarning
	}
	return "info"
}

// resource returns a changed resource as the operator sees it.
func (cq *changeQuery) resource(e *history.Entry, c *history.Change) ChangedResource {
	v := ChangedResource{
		ResourceRef: refOf(cache.Key{Scope: e.Scope, TypeURL: e.TypeURL, Name: loglines.ClipTo(c.Name, longestLink+1)}),
		Set:         loglines.ClipTo(c.Set, longestLink), Old: c.OldVersion, New: c.NewVersion, Change: ChangeChanged,
	}
	switch {
	case !c.Had && c.Has:
		v.Change = ChangeAdded
	case c.Had && !c.Has:
		v.Change = ChangeRemoved
	}
	switch {
	case c.Secret:
		v.Unshown = "it has a secret, so the relay keeps only that it changed"
		v.Old, v.New = "", "" // they may be hashes of the secret
	case c.Large:
		v.Unshown = "it is too large to be kept"
	case !cq.differences:
	default:
		cq.compare(&v, c)
	}
	return v
}

// compare makes the difference of the contents, if there is room for it.
func (cq *changeQuery) compare(v *ChangedResource, c *history.Change) {
	var old, is *VersionStatus
	for _, r := range []*cache.Resource{c.Old, c.New} {
		if r != nil {
			cq.room -= r.ValueSize()
		}
	}
	if cq.room < 0 {
		v.Unshown = "there is too much to compare at once: search for the name"
		return
	}
	if c.Old != nil {
		old = contentOf(c.Old)
	}
	if c.New != nil {
		is = contentOf(c.New)
	}
	v.Difference = difference("before", old, "after", is)
}

// contentOf returns the content of a resource, without its version.
func contentOf(r *cache.Resource) *VersionStatus {
	text, err := (render.Options{}).YAML(&discoveryv3.Resource{Resource: &anypb.Any{TypeUrl: r.TypeURL(), Value: r.Value()}})
	if err != nil {
		return &VersionStatus{Unshown: "it has no form as text"}
	}
	return &VersionStatus{YAML: string(text)}
}

// NewestFirst returns Changes, the newest first.
func (l *ChangeList) NewestFirst() []ChangeEntry {
	all := slices.Clone(l.Changes)
	slices.Reverse(all)
	return all
}

// Page returns the path and query of the entry's page.
func (e ChangeEntry) Page() string { return fmt.Sprintf("/ui/change?number=%d", e.Number) }

// Words says what has changed in a few words.
func (e ChangeEntry) Words() string {
	if e.Event != nil {
		return e.Event.Text
	}
	var parts []string
	for _, p := range []struct {
		n    int
		word string
	}{{e.Added, "added"}, {e.Changed, "changed"}, {e.Removed, "removed"}, {e.FirstAnswers, "first answered"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.word))
		}
	}
	by := map[string]int{}
	for _, k := range e.KeptBack {
		by[k.By]++
	}
	if n := by["guard"]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d held by the guard", n))
	}
	if n := by["rollout"]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d waiting in a rollout", n))
	}
	if e.KeptBackUnnamed > 0 {
		parts = append(parts, fmt.Sprintf("%d more kept back", e.KeptBackUnnamed))
	}
	return strings.Join(parts, ", ")
}

// Because says why it has changed, in words, if no response of a control plane simply brought it.
func (e ChangeEntry) Because() string {
	switch history.Cause(e.Cause) {
	case history.RolledOut:
		if e.Received != nil {
			return fmt.Sprintf("a rollout was accepted, %s after the response", e.At.Sub(*e.Received).Round(100*time.Millisecond))
		}
		return "a rollout was accepted"
	case history.Released:
		return "the guard held it long enough"
	case history.Stored:
		return "from the store, as no control plane has answered in time"
	}
	return map[string]string{
		"restated": "another control plane has become the active one",
		"silence":  "the control plane did not name it in time",
		"expired":  "its TTL has ended",
		"known":    "the relay had it from before",
	}[e.Cause]
}

// From says where it comes from.
func (e ChangeEntry) From() string {
	switch {
	case e.Server != "":
		return e.Server
	case e.Received != nil && e.Responses > 0:
		return "directory"
	}
	return ""
}

// Reached says in words how far it has come.
func (e ChangeEntry) Reached() string {
	c := e.Clients
	if c == nil || c.Clients == 0 && c.NACKed == 0 {
		return ""
	}
	begins := e.At
	if e.Received != nil {
		begins = *e.Received
	}
	after := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return fmt.Sprintf(", the last one after %s", t.Sub(begins).Round(time.Millisecond))
	}
	text := fmt.Sprintf("%d of %d clients have accepted it%s", c.ACKed, c.Clients, after(c.LastACKed))
	if c.NACKed > 0 {
		text += fmt.Sprintf("; %d have rejected it%s", c.NACKed, after(c.LastNACKed))
	}
	return text
}
