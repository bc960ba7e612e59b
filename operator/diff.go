package operator

// The differences between what two clients hold.

import (
	"cmp"
	"net/url"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// ClientDifference has the differences between what two clients hold, as /api/diff shows it.
type ClientDifference struct {
	A ClientRow `json:"a"`
	B ClientRow `json:"b"`
	// Differences are the first differences, by type and name, and Total counts all. Same counts the resources that
	// both hold alike.
	Differences []HeldDifference `json:"differences"`
	Total       int              `json:"total"`
	Same        int              `json:"same"`
	// Cut says that a client holds too much to compare all of it.
	Cut bool `json:"cut,omitempty"`
}

// HeldDifference is a resource that two clients hold differently.
type HeldDifference struct {
	Type string `json:"type"`
	Name string `json:"name"`
	// What is only_a, only_b, content (both hold it, with different contents), or state (only the state differs).
	What string        `json:"what"`
	A    *HeldResource `json:"a,omitempty"`
	B    *HeldResource `json:"b,omitempty"`
	// Lines is the difference of the contents. Only the first few resources have it.
	Lines string `json:"lines,omitempty"`
}

const (
	// mostDifferences bounds the differences that are shown. The contents of the first mostContents are compared line
	// by line.
	mostDifferences, mostContents = 200, 20
)

// heldName is a resource by the client's name for it.
type heldName struct{ typeURL, name string }

// clientDifference answers a query for the differences between clients a and b.
func (r *Observer) clientDifference(q url.Values) (*ClientDifference, error) {
	a, err := r.clientOf(q, "a")
	if err != nil {
		return nil, err
	}
	b, err := r.clientOf(q, "b")
	if err != nil {
		return nil, err
	}
	row := func(c *downstream.Inspected) ClientRow {
		h := headOf(&c.ClientStatus)
		return ClientRow{ClientStatus: h.ClientStatus, Who: h.identity, State: h.state()}
	}
	d := &ClientDifference{A: row(a), B: row(b), Differences: []HeldDifference{}}
	of, cut := holds(a)
	other, otherCut := holds(b)
	d.Cut = cut || otherCut
	var different []heldName
	for name, h := range other {
		if mine := of[name]; mine != nil && alike(mine, h) {
			d.Same++
		} else {
			different = append(different, name)
		}
	}
	for name := range of {
		if other[name] == nil {
			different = append(different, name)
		}
	}
	slices.SortFunc(different, func(a, b heldName) int { return cmp.Or(cmp.Compare(a.typeURL, b.typeURL), cmp.Compare(a.name, b.name)) })
	d.Total = len(different)
	for i, name := range different[:min(len(different), mostDifferences)] {
		d.Differences = append(d.Differences, compareHeld(name, of[name], other[name], i < mostContents))
	}
	return d, nil
}

// holds returns what a client holds by name. If the client may not have a name, but has it as a member of a wildcard
// or glob, the result has the member.
func holds(c *downstream.Inspected) (of map[heldName]*downstream.Held, cut bool) {
	of = map[heldName]*downstream.Held{}
	n := 0
	for h := range c.Held("") {
		if n++; n > mostHeld {
			return of, true
		}
		name := heldName{h.TypeURL, h.Name}
		if before := of[name]; h.Name != "" && !h.Covered && (before == nil || before.Resource == nil) {
			of[name] = &h
		}
	}
	return of, false
}

func alike(a, b *downstream.Held) bool {
	return a.State == b.State && sameContent(a.Resource, b.Resource) && (a.Resource != nil || a.Version == b.Version)
}

func sameContent(a, b *cache.Resource) bool {
	return a == b || a != nil && b != nil && a.Hash() == b.Hash()
}

// lacks reports whether a client has no version of a resource. A client that rejected it may have an earlier version.
func lacks(h *downstream.Held) bool {
	return h == nil || h.Resource == nil && h.State != session.Nacked && (h.State != session.Acked || h.Version == "")
}

func compareHeld(name heldName, a, b *downstream.Held, contents bool) HeldDifference {
	d := HeldDifference{Type: typeWord(name.typeURL), Name: loglines.ClipTo(name.name, longestLink), What: "content"}
	if a != nil {
		v := viewOfHeld(a)
		d.A = &v
	}
	if b != nil {
		v := viewOfHeld(b)
		d.B = &v
	}
	switch {
	case lacks(b) && !lacks(a):
		d.What = "only_a"
	case lacks(a) && !lacks(b):
		d.What = "only_b"
	case a == nil || b == nil || sameContent(a.Resource, b.Resource):
		d.What = "state"
	case contents && a.Resource != nil && b.Resource != nil:
		d.Lines = difference("a", versionOf(a.Resource, name.name), "b", versionOf(b.Resource, name.name))
	}
	return d
}
