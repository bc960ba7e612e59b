package operator

// One client on the operator's page: the resources that it holds, their references, and what is wrong with them.

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/admin/page"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// ClientView is one client and what it holds, as /api/client shows it.
type ClientView struct {
	ClientRow
	// Held are the resources that it holds or has requested, those with a problem first. Total counts all of them,
	// and Wrong those with a problem.
	Held  []HeldResource `json:"held"`
	Total int            `json:"total"`
	Wrong int            `json:"wrong"`
	// Search and Type are the query's, and Next, if not 0, is the `from` of the next page.
	Search string `json:"search,omitempty"`
	Type   string `json:"type,omitempty"`
	Next   int    `json:"next,omitempty"`
	// Tree has the resources that it holds, from the listeners on. Cut says that there are too many for a tree.
	Tree []*TreeNode `json:"tree,omitempty"`
	Cut  bool        `json:"tree_cut,omitempty"`
	// Missing counts the references to resources that the client does not hold.
	Missing int `json:"missing"`
}

// HeldResource is a client's state of one name.
type HeldResource struct {
	Type string `json:"type"`
	// Name is the client's spelling, empty for a wildcard or glob itself. Subscription is the name, wildcard or glob
	// through which the client has it.
	Name         string `json:"name"`
	Subscription string `json:"subscription"`
	// State is requested, unanswered, acked, nacked, does_not_exist, failed or timed_out.
	State string `json:"state"`
	// Has says whether the client has a resource.
	Has     bool   `json:"has"`
	Version string `json:"version,omitempty"`
	Bytes   int    `json:"bytes,omitempty"`
	// Rejected is the version that the client rejected, and Reason the words of its NACK.
	Rejected string `json:"rejected_version,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Blame says whether these words blame this resource: named, only (it was alone in the response), other (they
	// name Blamed of the same response, and not this resource) or unclear.
	Blame  string   `json:"blame,omitempty"`
	Blamed []string `json:"blamed,omitempty"`
	// Accepted is the version of the type that a SotW client states it has accepted last.
	Accepted string     `json:"accepted,omitempty"`
	At       *time.Time `json:"rejected_at,omitempty"`
	Error    string     `json:"error,omitempty"`
	Sent     *time.Time `json:"sent,omitempty"`
	Pending  bool       `json:"pending,omitempty"`
	Stale    bool       `json:"stale,omitempty"`
	KeptBack bool       `json:"kept_back,omitempty"`
	Members  int        `json:"members,omitempty"`
	// Resource is the authority's resource behind it.
	Resource *ResourceRef `json:"resource,omitempty"`
}

// Bad reports whether something is wrong.
func (h *HeldResource) Bad() bool {
	switch h.State {
	case "nacked", "does_not_exist", "failed", "timed_out":
		return true
	}
	return h.Stale || h.KeptBack
}

// Notes returns remarks in addition to the state.
func (h *HeldResource) Notes() (notes []string) {
	if h.Reason != "" {
		notes = append(notes, h.rejection())
	}
	if h.Error != "" {
		notes = append(notes, h.Error)
	}
	if h.Pending {
		notes = append(notes, "something newer waits to be sent")
	}
	if h.Stale {
		notes = append(notes, "stale: from the store, and no control plane has confirmed it since the relay started")
	}
	if h.KeptBack {
		notes = append(notes, "a rollout keeps a newer version back from this client")
	}
	return notes
}

// Words describes the state in a sentence.
func (h *HeldResource) Words() string {
	text := map[string]string{
		"requested":      "the client has requested it, and the relay has sent nothing yet",
		"unanswered":     fmt.Sprintf("the client was sent version %q, and has not answered", h.Version),
		"acked":          fmt.Sprintf("the client has version %q, and has acknowledged it", h.Version),
		"nacked":         fmt.Sprintf("the client has rejected version %q", h.Rejected),
		"does_not_exist": "the client was sent that it does not exist",
		"failed":         "the client was sent an error",
		"timed_out":      "the control plane has not answered in time",
	}[h.State]
	if h.Name == "" && h.State == "acked" {
		text = fmt.Sprintf("the client has %d members of it, and has acknowledged them", h.Members)
	}
	if h.Reason != "" {
		text += ": it " + h.rejection()
	}
	if h.Error != "" {
		text += ": " + h.Error
	}
	for _, more := range []struct {
		is   bool
		text string
	}{{h.Pending, "something newer waits to be sent"}, {h.Stale, "it is stale, from the store"}, {h.KeptBack, "a rollout keeps a newer version back"}} {
		if more.is {
			text += "; " + more.text
		}
	}
	return text
}

func viewOfHeld(h *downstream.Held) HeldResource {
	v := HeldResource{
		Type: typeWord(h.TypeURL), Name: loglines.ClipTo(h.Name, longestLink), Subscription: loglines.ClipTo(h.Subscription, longestLink), State: h.State.String(),
		Has: h.Resource != nil || h.State == session.Acked && h.Version != "", Version: loglines.Clip(h.Version), Error: errorText(h.Err), Pending: h.Pending, Stale: h.Stale, KeptBack: h.KeptBack, Members: h.Members,
	}
	if h.Resource != nil {
		v.Bytes = h.Resource.ValueSize()
	}
	if h.Rejected != nil {
		v.Rejected = loglines.Clip(h.Rejected.Version())
	}
	if n := h.NACK; n != nil {
		v.Reason, v.At, v.Accepted = words(n.Reason), &n.At, n.Accepted
		v.Rejected = cmp.Or(v.Rejected, loglines.Clip(n.Version))
	}
	if !h.Sent.IsZero() {
		v.Sent = &h.Sent
	}
	if k := keyOfHeld(h); k.Name != "" && h.Name != "" && k.Scope.Authority != "" {
		ref := refOf(k)
		v.Resource = &ref
	}
	return v
}

// keyOfHeld returns the authority's resource behind a client's resource, as far as that is clear.
func keyOfHeld(h *downstream.Held) cache.Key {
	k := h.Key
	k.Scope = k.Scope.Accepted()
	if h.Key.IsSet() && h.Name != "" {
		k.Name = h.Name
		if h.Resource != nil {
			k.Name = h.Resource.Name()
		}
	}
	return k
}

// clientOf returns the client of a query: by `stream`, or by the text that `key` has.
func (r *Observer) clientOf(q url.Values, key string) (*downstream.Inspected, error) {
	var stream uint64
	var err error
	if q.Get("stream") != "" && key != "a" && key != "b" {
		stream, err = number(q, "stream", 0)
	} else {
		stream, err = r.clientCalled(q.Get(key))
	}
	if err != nil {
		return nil, err
	}
	if c := r.Server.InspectStream(stream); c != nil {
		return c, nil
	}
	return nil, page.Missing(fmt.Sprintf("stream %d of a client is not open (any more)", stream))
}

// mostHeld bounds the resources of one client that are read for a page.
const mostHeld = 200_000

// heldUnder returns what a client holds under a name, a wildcard or a glob, nil if it has no such subscription. A
// client may be denied a name, but have it as a member of a wildcard or glob.
func (r *Observer) heldUnder(c *downstream.Inspected, typeURL, name string) (found *HeldResource) {
	n, blame := 0, newBlamed(c)
	for h := range c.Held(typeURL) {
		if n++; n > mostHeld {
			break
		}
		if h.Covered || h.Name != name && (h.Name != "" || h.Subscription != name) {
			continue
		}
		if v := blame.view(&h); v.Has || found == nil {
			found = &v
		}
		if found.Has {
			break
		}
	}
	return found
}

// clientView answers a query for one client: stream or client, search, type, from, limit.
func (r *Observer) clientView(q url.Values) (*ClientView, error) {
	c, err := r.clientOf(q, "client")
	if err != nil {
		return nil, err
	}
	from, err := number(q, "from", 0)
	if err != nil {
		return nil, err
	}
	rows, err := number(q, "limit", listLength)
	if err != nil {
		return nil, err
	}
	typeURL := ""
	if q.Get("type") != "" {
		if typeURL, err = xdstype.Parse(q.Get("type")); err != nil {
			return nil, page.Unclear("type: " + err.Error())
		}
	}
	head := headOf(&c.ClientStatus)
	v := &ClientView{
		ClientRow: ClientRow{ClientStatus: head.ClientStatus, Who: head.identity, State: head.state()},
		Held:      []HeldResource{}, Search: loglines.ClipTo(strings.TrimSpace(q.Get("search")), 300), Type: q.Get("type"),
	}
	for _, t := range v.Types {
		v.Subscriptions += t.Subscriptions
	}
	first, last := int(min(from, mostHeld)), int(min(from, mostHeld)+max(min(rows, mostRows), 1)) //nolint:gosec // they are small
	var wrong, fine []HeldResource
	blame := newBlamed(c)
	tree := newClientTree(r, blame)
	wanted := strings.ToLower(v.Search)
	n := 0
	for h := range c.Held("") {
		if n++; n > mostHeld {
			v.Cut = true
			break
		}
		if h.Covered {
			continue
		}
		tree.add(&h)
		if typeURL != "" && h.TypeURL != typeURL || wanted != "" && !containsFold(h.Name, wanted) && !containsFold(h.Subscription, wanted) {
			continue
		}
		v.Total++
		bad := h.Stale || h.KeptBack || h.State == session.Nacked || h.State == session.DoesNotExist || h.State == session.Failed || h.State == session.TimedOut
		switch {
		case bad:
			if v.Wrong++; len(wrong) <= last {
				wrong = append(wrong, blame.view(&h))
			}
		case len(fine) <= last:
			fine = append(fine, viewOfHeld(&h))
		}
	}
	all := append(wrong, fine...)
	v.Held = slices.Clone(all[min(first, len(all)):min(last, len(all))])
	if len(all) > last {
		v.Next = last
	}
	v.Tree, v.Missing = tree.build()
	v.Cut = v.Cut || tree.cut
	return v, nil
}

// TreeNode is a resource of a client, with the resources that it names.
type TreeNode struct {
	Type string `json:"type"`
	Name string `json:"name"`
	// State is the state of HeldResource, or missing (the client cannot have it), not_requested, elsewhere, optional
	// or seen (it occurs further up).
	State string        `json:"state"`
	Held  *HeldResource `json:"held,omitempty"`
	// Path is the place of the reference in the parent resource.
	Path     string       `json:"path,omitempty"`
	Detail   string       `json:"detail,omitempty"`
	Resource *ResourceRef `json:"resource,omitempty"`
	Below    []*TreeNode  `json:"below,omitempty"`
	// Wrong says that this resource, or one below it, has a problem.
	Wrong bool `json:"wrong,omitempty"`
	// NamesAbsent counts the resources that it names and that do not exist.
	NamesAbsent int `json:"names_absent,omitempty"`
}

const (
	// mostInTree bounds the resources of a tree, and mostNodes its nodes.
	mostInTree, mostNodes = 2000, 3000
	// treeDepth is more than the levels that resources have.
	treeDepth = 12
)

// clientTree builds the tree of a client's resources.
type clientTree struct {
	observer *Observer
	blame    *blamed
	held     map[graph.ID]*downstream.Held
	// spelled has the client's spelling of xdstp names, by their canonical spelling.
	spelled map[graph.ID]graph.ID
	order   []graph.ID
	// wilds has the types of which the client has a wildcard that was answered.
	wilds map[string]bool
	graph *graph.Graph
	shown map[graph.ID]bool
	nodes int
	cut   bool
	lacks int
}

func newClientTree(r *Observer, blame *blamed) *clientTree {
	return &clientTree{observer: r, blame: blame, held: map[graph.ID]*downstream.Held{}, spelled: map[graph.ID]graph.ID{}, wilds: map[string]bool{}, shown: map[graph.ID]bool{}}
}

// add adds a resource of the client.
func (t *clientTree) add(h *downstream.Held) {
	if h.Name == "" {
		t.wilds[h.TypeURL] = t.wilds[h.TypeURL] || h.Subscription == cache.Wildcard && h.State == session.Acked
		return
	}
	if len(t.order) >= mostInTree {
		t.cut = true
		return
	}
	id := graph.ID{TypeURL: h.TypeURL, Name: h.Name}
	if t.held[id] == nil {
		t.order = append(t.order, id)
	}
	of := *h
	t.held[id] = &of
	if urn.IsXdstp(id.Name) {
		t.spelled[canonicalID(id)] = id
	}
}

// build returns the roots of the tree, and the number of references to missing resources.
func (t *clientTree) build() (roots []*TreeNode, missing int) {
	b := graph.NewBuilder()
	for _, id := range t.order {
		var references []graph.Reference
		h := t.held[id]
		content := h.Resource
		if content == nil {
			content = h.Rejected // show what the rejected version refers to
		}
		if content != nil {
			references, _ = graph.References(id.TypeURL, content.Value()) // a resource that cannot be read has none
		}
		b.Add(id, references)
	}
	t.graph = b.Graph()
	named := map[graph.ID]bool{}
	for _, id := range t.order {
		for _, to := range t.graph.From(id) {
			if at := t.own(to.To); at != id {
				named[at] = true
			}
		}
	}
	slices.SortStableFunc(t.order, func(a, b graph.ID) int {
		return cmp.Or(cmp.Compare(xdstype.Of(a.TypeURL).Order, xdstype.Of(b.TypeURL).Order), cmp.Compare(typeRank(a.TypeURL), typeRank(b.TypeURL)), cmp.Compare(a.Name, b.Name))
	})
	// Listeners first, then other resources that no resource names.
	for _, listeners := range []bool{true, false} {
		for _, id := range t.order {
			if !named[id] && listeners == (id.TypeURL == xdstype.ListenerV3) {
				roots = append(roots, t.node(id, "", 0))
			}
		}
	}
	for _, id := range t.order { // cycles
		if !t.shown[id] {
			roots = append(roots, t.node(id, "", 0))
		}
	}
	return roots, t.lacks
}

// typeRank orders the types as they refer to each other.
func typeRank(typeURL string) int {
	return slices.Index([]string{xdstype.ListenerV3, xdstype.ScopedRouteV3, xdstype.RouteV3, xdstype.VirtualHostV3, xdstype.ClusterV3, xdstype.EndpointsV3, xdstype.SecretV3}, typeURL)
}

// own returns the ID under which the client holds a resource, whichever spelling a reference uses.
func (t *clientTree) own(id graph.ID) graph.ID {
	if t.held[id] != nil {
		return id
	}
	if known, ok := t.spelled[canonicalID(id)]; ok {
		return known
	}
	return id
}

func canonicalID(id graph.ID) graph.ID {
	if k, err := urn.KeyOf(id.Name); err == nil {
		id.Name = k.Name
	}
	return id
}

// node returns the node of a resource.
func (t *clientTree) node(id graph.ID, path string, depth int) *TreeNode {
	n := &TreeNode{Type: typeWord(id.TypeURL), Name: loglines.ClipTo(id.Name, longestLink), Path: path}
	if t.nodes++; t.nodes > mostNodes || depth > treeDepth {
		t.cut = true
		n.State = "seen"
		return n
	}
	h := t.held[id]
	if h == nil {
		t.absent(n, id)
		return n
	}
	v := t.blame.view(h)
	n.Held, n.State, n.Resource, n.Wrong = &v, v.State, v.Resource, v.Bad()
	n.Detail = detailOf(h)
	if t.shown[id] {
		if len(t.graph.From(id)) > 0 {
			n.State = "seen"
		}
		return n
	}
	t.shown[id] = true
	done := map[graph.ID]bool{}
	for _, to := range t.graph.From(id) {
		target := t.own(to.To)
		if done[target] || to.Many {
			continue
		}
		done[target] = true
		if t.held[target] == nil && (to.Source != graph.Stream || to.Optional) {
			state := "elsewhere"
			if to.Source == graph.Stream {
				state = "optional"
			}
			n.Below = append(n.Below, &TreeNode{Type: typeWord(to.To.TypeURL), Name: loglines.ClipTo(to.To.Name, longestLink), Path: to.Path, State: state})
			continue
		}
		below := t.node(target, to.Path, depth+1)
		n.Wrong = n.Wrong || below.Wrong
		if below.State == "missing" {
			n.NamesAbsent++
		}
		n.Below = append(n.Below, below)
	}
	return n
}

// absent completes the node of a resource that the client does not hold.
func (t *clientTree) absent(n *TreeNode, id graph.ID) {
	n.State = "not_requested"
	if t.wilds[id.TypeURL] {
		n.State, n.Wrong = "missing", true
		n.Detail = "the wildcard has all resources of the type, and this one is not among them"
		t.lacks++
	}
}

// detailOf returns the most important remark on a resource, in short.
func detailOf(h *downstream.Held) string {
	if h.Resource == nil || h.TypeURL != xdstype.EndpointsV3 {
		return ""
	}
	if h.Resource.ValueSize() > mostShown {
		return ""
	}
	var a endpointv3.ClusterLoadAssignment
	if proto.Unmarshal(h.Resource.Value(), &a) != nil {
		return ""
	}
	endpoints := 0
	for _, l := range a.GetEndpoints() {
		endpoints += len(l.GetLbEndpoints())
	}
	if endpoints == 0 {
		return "no endpoints"
	}
	return fmt.Sprintf("endpoints: %d, localities: %d", endpoints, len(a.GetEndpoints()))
}
