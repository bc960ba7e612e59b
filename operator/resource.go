package operator

// One resource on the operator's page: its versions and their difference, the resources that it names, and those that
// name it.

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/rogpeppe/go-internal/diff"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/admin/page"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/client/render"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// ResourceStatus is one resource, as /api/resource shows it.
type ResourceStatus struct {
	ResourceRow
	// Set is the wildcard or glob that has the resource; empty for a name.
	Set string `json:"set,omitempty"`
	// Accepted is the version that clients have. Newest is the control plane's newer version, which a rollout holds
	// back. Removed says that the newest state is that it does not exist.
	Accepted *VersionStatus `json:"accepted,omitempty"`
	Newest   *VersionStatus `json:"newest,omitempty"`
	Removed  bool           `json:"removed,omitempty"`
	// Difference is the difference from the accepted to the newest version, line by line.
	Difference string `json:"difference,omitempty"`
	// RefersTo are the resources that it names, and ReferredBy those that name it.
	RefersTo   []ReferenceStatus `json:"refers_to,omitempty"`
	ReferredBy []ReferenceStatus `json:"referred_by,omitempty"`
	// Touches is what a change of it touches.
	Touches *Touches `json:"touches,omitempty"`
	// Holders are clients that hold or have requested it.
	Holders *Holders `json:"holders,omitempty"`
}

// VersionStatus is a version of a resource.
type VersionStatus struct {
	Version string        `json:"version"`
	Bytes   int           `json:"bytes"`
	TTL     time.Duration `json:"ttl,omitempty"`
	// Alias is the resource's own name, if it was found by another one.
	Alias string `json:"own_name,omitempty"`
	// YAML is the content without secrets. Unshown is the reason if there is none.
	YAML    string `json:"yaml,omitempty"`
	Unshown string `json:"unshown,omitempty"`
}

// ReferenceStatus is a reference from one resource to another.
type ReferenceStatus struct {
	ResourceRow
	// Path is the place of the reference in the resource that contains it.
	Path     string `json:"path"`
	Optional bool   `json:"optional,omitempty"`
	// Elsewhere says that the other resource does not come from the relay.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// Known says that the relay knows the other resource.
	Known bool `json:"known"`
}

const (
	// mostShown is the maximum size of a resource that is shown, and mostReferences bounds the references.
	mostShown, mostReferences = 256 << 10, 200
)

func versionOf(r *cache.Resource, name string) *VersionStatus {
	v := &VersionStatus{Version: loglines.Clip(r.Version()), Bytes: r.ValueSize(), TTL: r.TTL()}
	if own := r.OwnName(); own != "" && own != name {
		v.Alias = loglines.ClipTo(own, longestLink)
	}
	if v.Bytes > mostShown {
		v.Unshown = fmt.Sprintf("it has %d bytes, and the page shows up to %d: xds-relay get shows all of it", v.Bytes, mostShown)
		return v
	}
	text, err := (render.Options{}).YAML(&discoveryv3.Resource{Name: loglines.ClipTo(name, longestLink), Version: r.Version(), Resource: &anypb.Any{TypeUrl: r.TypeURL(), Value: r.Value()}})
	if err != nil {
		v.Unshown = "it has no form as text"
		return v
	}
	v.YAML = string(text)
	return v
}

// resourceCalled answers a query for one resource.
func (r *Observer) resourceCalled(q url.Values) (*ResourceStatus, error) {
	ref, k, err := parseRef(q)
	if err != nil {
		return nil, err
	}
	i, known := r.Cache.Look(k)
	newest, waits := r.Rollouts.Newest(k)
	if !known && !waits {
		return nil, page.Missing(fmt.Sprintf("the relay knows no %s %q of authority %q: no client has requested it", ref.Type, loglines.ClipTo(ref.Name, 200), loglines.ClipTo(ref.Authority, 200)))
	}
	if !known {
		i = cache.Item{Key: k}
	}
	s := &ResourceStatus{ResourceRow: rowOf(&i), Set: i.Set}
	content := i.Resource
	if i.Resource != nil {
		s.Accepted = versionOf(i.Resource, k.Name)
	}
	if waits {
		s.Removed = newest == nil
		if newest != nil {
			s.Newest = versionOf(newest, k.Name)
			content = newest
		}
		s.Difference = difference("accepted", s.Accepted, "newest", s.Newest)
	}
	if content != nil {
		s.RefersTo = r.referencesOf(k.Scope, content)
	}
	for i := range s.RefersTo {
		if to := &s.RefersTo[i]; to.Known && to.Status == "absent" && !to.Optional {
			s.NamesAbsent++
		}
	}
	s.ReferredBy = r.referringTo(k)
	s.Touches = r.touches(k)
	s.Holders = r.holdersOf(k)
	return s, nil
}

const (
	// mostHolders bounds the clients that are shown, and holdersTake the time for looking at clients.
	mostHolders = 100
	holdersTake = 200 * time.Millisecond
)

// holdersOf returns clients that hold or have requested a resource, as far as it finds them in holdersTake.
func (r *Observer) holdersOf(k cache.Key) *Holders {
	h := &Holders{Clients: []Holder{}}
	until, looked := time.Now().Add(holdersTake), 0
	for c := range r.Server.Inspect(0) {
		if len(h.Clients) == mostHolders || time.Now().After(until) {
			h.LookedAt = looked
			return h
		}
		looked++
		if !slices.ContainsFunc(c.Types, func(t downstream.TypeStatus) bool { return t.TypeURL == k.TypeURL }) {
			continue
		}
		n := 0
		for held := range c.Held(k.TypeURL) {
			if n++; n%1024 == 0 && time.Now().After(until) {
				break
			}
			if held.Covered || held.Name == "" || keyOfHeld(&held) != k {
				continue
			}
			blame := newBlamed(c)
			blame.left = min(blame.left, time.Until(until))
			v := blame.view(&held)
			head := headOf(&c.ClientStatus)
			of := Holder{Stream: c.Stream, Client: head.name(), State: v.State, Version: cmp.Or(v.Rejected, v.Version), Blame: v.Blame, At: v.At}
			if v.Reason != "" {
				of.Note = v.rejection()
			}
			h.Clients = append(h.Clients, of)
			break
		}
	}
	return h
}

// difference returns the difference of two versions, line by line, without a header.
func difference(oldName string, old *VersionStatus, newName string, is *VersionStatus) string {
	textOf := func(v *VersionStatus) []byte {
		if v == nil {
			return nil
		}
		return []byte(cmp.Or(v.YAML, v.Unshown+"\n"))
	}
	text := string(diff.Diff(oldName, textOf(old), newName, textOf(is)))
	_, text, _ = strings.Cut(text, "\n") // drop the line with the command
	return text
}

// referencesOf returns the references of a resource.
func (r *Observer) referencesOf(scope cache.Scope, content *cache.Resource) (all []ReferenceStatus) {
	references, err := graph.References(content.TypeURL(), content.Value())
	if err != nil {
		return nil
	}
	for _, to := range references[:min(len(references), mostReferences)] {
		row := ReferenceStatus{
			Path: to.Path, Optional: to.Optional, Elsewhere: to.Source != graph.Stream,
			ResourceRow: ResourceRow{ResourceRef: ResourceRef{Authority: scope.Authority, Partition: scope.Partition, Parameters: scope.Params, Type: typeWord(to.To.TypeURL), Name: loglines.ClipTo(to.To.Name, longestLink+1)}},
		}
		if k, ok := r.target(scope, to.To); ok && !to.Many && !row.Elsewhere {
			if i, known := r.Cache.Look(k); known {
				row.ResourceRow, row.Known = rowOf(&i), true
			}
		}
		all = append(all, row)
	}
	return all
}

// referringTo returns the resources of the same scope that name a resource, as far as they have been read.
func (r *Observer) referringTo(k cache.Key) (all []ReferenceStatus) {
	r.dangling() // reads the references
	s := &r.references
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, typeURL := range refers {
		r.Cache.Browse(k.Scope, typeURL, func(i cache.Item) bool {
			if i.Resource == nil {
				return true
			}
			for _, to := range s.of[content{typeURL, i.Resource.Hash()}] {
				if to.To.Name == k.Name && to.To.TypeURL == k.TypeURL {
					all = append(all, ReferenceStatus{ResourceRow: rowOf(&i), Path: to.Path, Known: true})
					break
				}
			}
			return len(all) < mostReferences
		})
	}
	slices.SortStableFunc(all, func(a, b ReferenceStatus) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
	return slices.CompactFunc(all, func(a, b ReferenceStatus) bool { return a.ResourceRef == b.ResourceRef })
}

// Holders are the clients that hold or have requested a resource.
type Holders struct {
	Clients []Holder `json:"clients"`
	// LookedAt is how many clients were looked at, if not all.
	LookedAt int `json:"looked_at,omitempty"`
}

// Holder is a client that holds or has requested a resource.
type Holder struct {
	Stream  uint64 `json:"stream"`
	Client  string `json:"client"`
	State   string `json:"state"`
	Version string `json:"version,omitempty"`
	// Blame and the fields after it are about what the client rejected: see HeldResource. Note describes it in words.
	Blame string     `json:"blame,omitempty"`
	At    *time.Time `json:"rejected_at,omitempty"`
	Note  string     `json:"note,omitempty"`
}

// Badge returns the state as the page shows it.
func (h Holder) Badge() string { return badgeOf(h.State, h.Blame) }
