package operator

// Resources on the operator's page: a list of the cache's content, with search and pages.

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/admin/page"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// ResourceRef is a resource of an authority, as an operator selects it.
type ResourceRef struct {
	Authority  string `json:"authority"`
	Partition  string `json:"partition,omitempty"`
	Parameters string `json:"dynamic_parameters,omitempty"`
	Type       string `json:"type"` // a word, or the name of a message or a type URL
	Name       string `json:"name"`
}

func refOf(k cache.Key) ResourceRef {
	return ResourceRef{k.Scope.Authority, k.Scope.Partition, k.Scope.Params, typeWord(k.TypeURL), k.Name}
}

// typeWord returns the word that [xdstype.Parse] reads as the type.
func typeWord(typeURL string) string {
	if word := xdstype.Word(typeURL); word != xdstype.Message(typeURL) {
		return word
	}
	return strings.TrimPrefix(typeURL, xdstype.Prefix)
}

// Query returns the reference as the query of a URL.
func (r ResourceRef) Query() string {
	q := url.Values{"authority": {r.Authority}, "type": {r.Type}, "name": {r.Name}}
	if r.Partition != "" {
		q.Set("partition", r.Partition)
	}
	if r.Parameters != "" {
		q.Set("dynamic_parameters", r.Parameters)
	}
	return q.Encode()
}

// longestLink is the maximum length of a name in a link. A longer one does not fit into a request.
const longestLink = 8 << 10

// Page returns the path and query of the resource's page, "" if its name is too long for one.
func (r ResourceRef) Page() string {
	if len(r.Name)+len(r.Partition)+len(r.Parameters) > longestLink {
		return ""
	}
	return "/ui/resource?" + r.Query()
}

// parseRef reads a reference from a query.
func parseRef(q url.Values) (ResourceRef, cache.Key, error) {
	ref := ResourceRef{q.Get("authority"), q.Get("partition"), q.Get("dynamic_parameters"), q.Get("type"), q.Get("name")}
	if ref.Name == "" || ref.Type == "" {
		return ref, cache.Key{}, page.Unclear("want authority, type and name, and partition where there is one")
	}
	typeURL, err := xdstype.Parse(ref.Type)
	if err != nil {
		return ref, cache.Key{}, page.Unclear("type: " + err.Error())
	}
	scope := cache.Scope{Authority: ref.Authority, Partition: ref.Partition, OldStyle: !urn.IsXdstp(ref.Name), Params: ref.Parameters}
	return ref, cache.Key{Scope: scope, TypeURL: typeURL, Name: ref.Name}, nil
}

// ResourceRow is a resource in a list.
type ResourceRow struct {
	ResourceRef
	// Status is requested, present, absent or failed.
	Status  string `json:"status"`
	Version string `json:"version,omitempty"`
	Bytes   int    `json:"bytes,omitempty"`
	Stale   bool   `json:"stale,omitempty"`
	// ChangedAt is when the content or the status last changed.
	ChangedAt *time.Time `json:"changed_at,omitempty"`
	Error     string     `json:"error,omitempty"`
	// NamesAbsent counts the resources that it needs and names, and that do not exist. A list has it as far as there
	// is time to read its resources.
	NamesAbsent int `json:"names_absent,omitempty"`
}

// ResourceList is a page of a list of resources, as /api/resources shows it.
type ResourceList struct {
	Resources []ResourceRow `json:"resources"`
	// Next, if not "", is the `after` of the next page.
	Next string `json:"next,omitempty"`
	// Types and Authorities are the first of the existing ones, for a choice.
	Types       []string `json:"types"`
	Authorities []string `json:"authorities"`
	Search      string   `json:"search,omitempty"`
	Type        string   `json:"type,omitempty"`
	Authority   string   `json:"authority,omitempty"`
	Partition   string   `json:"partition,omitempty"`
}

// listPlace is a resource's place in the order of a list.
type listPlace [5]string

func listPlaceOf(s cache.Scope) listPlace { return listPlace{s.Authority, s.Partition, s.Params} }

func placeOfItem(i *cache.Item) listPlace {
	p := listPlaceOf(i.Key.Scope)
	p[3], p[4] = typeWord(i.Key.TypeURL), i.Key.Name
	return p
}

func (p listPlace) compare(o listPlace) int { return slices.Compare(p[:], o[:]) }

// cursor returns a place as a text.
func (p listPlace) cursor() string {
	const most = 1 << 10
	if len(p[4]) > most { // the next page skips names that begin with the same text
		p[4] = strings.ToValidUTF8(p[4][:most], "") + "\U0010FFFF"
	}
	text, _ := json.Marshal(p) // texts are JSON
	return string(text)
}

// resourceList answers a query for resources.
func (r *Observer) resourceList(q url.Values) (*ResourceList, error) {
	l := &ResourceList{
		Types: []string{}, Authorities: []string{}, Type: q.Get("type"), Authority: q.Get("authority"),
		Partition: q.Get("partition"), Search: loglines.ClipTo(strings.TrimSpace(q.Get("search")), 300),
	}
	typeURL := ""
	if l.Type != "" {
		var err error
		if typeURL, err = xdstype.Parse(l.Type); err != nil {
			return nil, page.Unclear("type: " + err.Error())
		}
	}
	top, err := topOf(q, l.Search)
	if err != nil {
		return nil, err
	}
	for _, scope := range r.acceptedScopes() {
		if n := len(l.Authorities); n < mostAuthorities && (n == 0 || l.Authorities[n-1] != scope.Authority) {
			l.Authorities = append(l.Authorities, scope.Authority)
		}
		if l.Authority != "" && scope.Authority != l.Authority || q.Has("partition") && scope.Partition != l.Partition {
			continue
		}
		if top.passes(scope) {
			continue
		}
		r.Cache.Browse(scope, typeURL, top.add)
	}
	for _, t := range xdstype.All() {
		if t.Word != "" {
			l.Types = append(l.Types, t.Word)
		}
	}
	l.Resources, l.Next = top.rows()
	r.noteAbsentNames(l.Resources, top.items)
	return l, nil
}

// mostAuthorities bounds the authorities of a list: clients can make up some under a pattern.
const mostAuthorities = 1000

// acceptedScopes returns the scopes of leaf topics, in the order of lists.
func (r *Observer) acceptedScopes() []cache.Scope {
	scopes := slices.DeleteFunc(r.Cache.Scopes(), func(s cache.Scope) bool { return s.Derived != "" || s.New })
	slices.SortFunc(scopes, func(a, b cache.Scope) int {
		return cmp.Or(listPlaceOf(a).compare(listPlaceOf(b)), cmp.Compare(fmt.Sprint(a.OldStyle), fmt.Sprint(b.OldStyle)))
	})
	return scopes
}

func rowOf(i *cache.Item) ResourceRow {
	row := ResourceRow{ResourceRef: refOf(i.Key), Status: i.Status.String(), Stale: i.Stale, Error: errorText(i.Err)}
	row.Name = loglines.ClipTo(row.Name, longestLink+1)
	if i.Since != 0 {
		at := time.Unix(0, i.Since)
		row.ChangedAt = &at
	}
	if i.Resource != nil {
		row.Version, row.Bytes = loglines.Clip(i.Resource.Version()), i.Resource.ValueSize()
	}
	return row
}

func errorText(err *cache.Error) string {
	if err == nil {
		return ""
	}
	return words(err.Error())
}

// topItems are the first items after a place that match a search, and one more.
type topItems struct {
	most   int
	after  listPlace
	search string
	items  []cache.Item
}

// topOf returns an empty topItems for a query.
func topOf(q url.Values, search string) (*topItems, error) {
	var after listPlace
	if text := q.Get("after"); text != "" {
		if err := json.Unmarshal([]byte(text), &after); err != nil {
			return nil, page.Unclear("after: want the `next` of another page")
		}
	}
	rows, err := number(q, "limit", listLength)
	if err != nil {
		return nil, err
	}
	return &topItems{most: int(max(min(rows, mostRows), 1)), after: after, search: strings.ToLower(search)}, nil //nolint:gosec // at most mostRows
}

// passes reports whether all items of a scope come before or after the page. Scopes come in order.
func (t *topItems) passes(scope cache.Scope) bool {
	return listPlaceOf(scope).compare(listPlace{t.after[0], t.after[1], t.after[2]}) < 0 || len(t.items) > t.most
}

// rows returns the items as rows, and the cursor of the next page.
func (t *topItems) rows() (rows []ResourceRow, next string) {
	rows = []ResourceRow{}
	for i := range t.items {
		if i == t.most {
			return rows, placeOfItem(&t.items[i-1]).cursor()
		}
		rows = append(rows, rowOf(&t.items[i]))
	}
	return rows, ""
}

// add adds an item. It does not allocate for items that are not among the first.
func (t *topItems) add(i cache.Item) bool {
	if t.search != "" && !containsFold(i.Key.Name, t.search) {
		return true
	}
	p := placeOfItem(&i)
	if p.compare(t.after) <= 0 {
		return true
	}
	n := len(t.items)
	if n > t.most && placeOfItem(&t.items[n-1]).compare(p) <= 0 {
		return true
	}
	at, same := slices.BinarySearchFunc(t.items, p, func(o cache.Item, p listPlace) int { return placeOfItem(&o).compare(p) })
	if same {
		return true
	}
	t.items = slices.Insert(t.items, at, i)
	t.items = t.items[:min(len(t.items), t.most+1)]
	return true
}
