package operator

// What the page says about resources of a rejected response: which of them the client's words name
// (session.NamesResource).

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// How the words of a NACK refer to a resource of the rejected response: HeldResource.Blame.
const (
	blameNamed   = "named"   // the words name it
	blameOnly    = "only"    // nothing else was in the response
	blameOther   = "other"   // the words name other resources of the response, and not it
	blameUnclear = "unclear" // the words name no resource that is known to be in the response
)

const (
	// mostBlamed bounds the names of a response that are shown because a client's words name them. mostBlameNames
	// bounds the names of a client that are searched for in its words, and blameTakes the time for that.
	mostBlamed, mostBlameNames = 5, 20_000
	blameTakes                 = 100 * time.Millisecond
)

// blamed finds the resources that a client's words name, once for each NACK.
type blamed struct {
	of    *downstream.Inspected
	left  time.Duration
	named map[blamedNACK][]string
}

type blamedNACK struct{ typeURL, reason, version string }

func newBlamed(c *downstream.Inspected) *blamed {
	return &blamed{of: c, left: blameTakes, named: map[blamedNACK][]string{}}
}

// view is like viewOfHeld, and sets Blame and Blamed.
func (b *blamed) view(h *downstream.Held) HeldResource {
	v := viewOfHeld(h)
	n := h.NACK
	if n == nil || v.State != "nacked" || h.Name == "" {
		return v
	}
	switch {
	case n.Reason == session.WordsWithheld:
		v.Blame = blameUnclear
	case session.NamesResource(n.Reason, h.Name):
		v.Blame = blameNamed
	case n.Names.Total == 1:
		v.Blame = blameOnly
	default:
		if v.Blamed = b.others(h.TypeURL, n); len(v.Blamed) > 0 {
			v.Blame = blameOther
		} else {
			v.Blame = blameUnclear
		}
	}
	return v
}

// others returns some of the names that the words of a NACK contain.
func (b *blamed) others(typeURL string, n *downstream.LastNACK) []string {
	id := blamedNACK{typeURL, n.Reason, n.Version}
	if known, is := b.named[id]; is {
		return known
	}
	var found []string
	note := func(name string) bool {
		if session.NamesResource(n.Reason, name) {
			found = append(found, loglines.ClipTo(name, 200))
		}
		return len(found) < mostBlamed
	}
	for _, name := range n.Names.First {
		if !note(name) {
			break
		}
	}
	began := time.Now()
	if len(found) == 0 && n.Names.Total > len(n.Names.First) && b.of != nil {
		looked := 0
		for h := range b.of.Held(typeURL) {
			if looked++; looked > mostBlameNames || looked%256 == 0 && time.Since(began) > b.left {
				break
			}
			if h.NACK == nil || h.NACK.Reason != n.Reason || h.NACK.Version != n.Version || slices.Contains(found, h.Name) {
				continue
			}
			if !note(h.Name) {
				break
			}
		}
	}
	b.left -= time.Since(began)
	b.named[id] = found
	return found
}

// Badge returns the state as the page shows it.
func (h *HeldResource) Badge() string { return badgeOf(h.State, h.Blame) }

func badgeOf(state, blame string) string {
	if state == "nacked" && blame == blameOther {
		return "nacked_with_others"
	}
	return state
}

// rejection describes what the client rejected and why.
func (h *HeldResource) rejection() string {
	named := strings.Join(h.Blamed, ", ")
	text := "rejects version " + quote(h.Rejected) + ": " + h.Reason
	switch h.Blame {
	case blameOnly:
		text += " (nothing else was in the response)"
	case blameOther:
		text = "came in a response that the client rejects because of " + named + ": its words name that resource, and not this one"
	case blameUnclear:
		text = "came in a response that the client rejects, in words that name no resource of it: " + h.Reason
	}
	switch {
	case h.Blame == blameOther:
		text += ". Clients may take what is good in a response"
	case h.Accepted != "":
		text += ". The client says that it has accepted the type's version " + quote(h.Accepted)
	}
	return text
}

// quote returns a version in quotes, or "(not known)".
func quote(version string) string {
	if version == "" {
		return "(not known)"
	}
	return strconv.Quote(version)
}
