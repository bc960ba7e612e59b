package history

import (
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Cause is why something changed: a word of delivery.Cause, or one of the following.
type Cause string

// The causes other than those of a delivery.
const (
	RolledOut Cause = "rolled_out" // a rollout was accepted
	Released  Cause = "released"   // the guard held it long enough
	Stored    Cause = "stored"     // no control plane answered in time, so it is served from the store
)

// Entry is what one response changed of one type in one scope, or one event. In a storm, it has several responses.
type Entry struct {
	// Number counts the entries of all authorities.
	Number uint64
	At     time.Time
	// Event is set if the entry is an event. It has no other fields then.
	Event *Event

	Scope   cache.Scope
	TypeURL string
	Cause   Cause
	// Server is the address of the control plane that sent it, empty for a directory. The Receipt is that of the last
	// response, if a response brought the changes.
	Server  string
	Receipt Receipt
	// Responses is how many responses the entry has.
	Responses int
	// Added, Changed and Removed count resources. First counts those that are the first answer to what clients requested.
	Added, Changed, Removed, First int
	// Changes are the resources, without first answers. There may be fewer than were counted.
	Changes []Change
	// Kept are resources of the response that clients do not get yet, and KeptMore counts those that are not named.
	Kept     []propagation.KeptBack
	KeptMore int
	// Progress is how far the last response has come on its way to clients. It may be nil.
	Progress *propagation.Progress

	cost int
}

// Receipt identifies a response.
type Receipt struct {
	At             time.Time
	Version, Nonce string
	// Response is the number of the response on its stream.
	Response uint64
}

// Change is one resource that has changed.
type Change struct {
	// Name is the key of the resource, and Set the wildcard or glob that has it, empty for a name.
	Name, Set string
	// Old and New are the contents, nil if there was, or is, no resource, or if the content is not kept.
	Old, New *cache.Resource
	// Had and Has say whether there was, and is, a resource. OldVersion and NewVersion are its versions.
	Had, Has               bool
	OldVersion, NewVersion string
	// Secret: the contents are not kept, because there is a secret in one of them. Large: they are too large.
	Secret, Large bool
}

const (
	// mostNames bounds the changes of an entry that are kept one by one. mostMerged does in a storm.
	mostNames, mostMerged = 1000, 64
	// mostContent is the size of the largest content that is kept, in bytes.
	mostContent = 256 << 10
	// mostVersion bounds versions, nonces and addresses, in bytes.
	mostVersion = 128
	// costOfEntry and costOfChange are about the bytes of what has no contents.
	costOfEntry, costOfChange = 512, 160
)

func short(s string) string { return strings.Clone(loglines.ClipTo(s, mostVersion)) }

// changeOf returns the change of a name. One of the resources may be nil.
func changeOf(set, name string, old, is *cache.Resource) Change {
	c := Change{Name: name, Set: set, Old: old, New: is, Had: old != nil, Has: is != nil}
	kept := false // a content that is kept has the bytes of the name
	for _, r := range [...]*cache.Resource{old, is} {
		if r == nil {
			continue
		}
		c.Secret = c.Secret || r.HoldsSecret() || xdstype.Of(r.TypeURL()) == xdstype.Secret
		c.Large = c.Large || r.ValueSize() > mostContent
		if own := r.Name(); own == name {
			c.Name, kept = own, true
		}
	}
	if !kept {
		c.Name = strings.Clone(name)
	}
	if old != nil {
		c.OldVersion = loglines.ClipTo(old.Version(), mostVersion)
	}
	if is != nil {
		c.NewVersion = loglines.ClipTo(is.Version(), mostVersion)
	}
	c.dropContents()
	return c
}

// dropContents drops the contents if they are not to be kept. Name and versions may be parts of their bytes.
func (c *Change) dropContents() {
	if c.Secret || c.Large {
		c.Old, c.New = nil, nil
		c.Name, c.OldVersion, c.NewVersion = strings.Clone(c.Name), strings.Clone(c.OldVersion), strings.Clone(c.NewVersion)
	}
}

// cost is about the number of bytes that a change keeps.
func (c *Change) cost() int {
	n := costOfChange + len(c.Name) + len(c.OldVersion) + len(c.NewVersion)
	for _, r := range [...]*cache.Resource{c.Old, c.New} {
		if r != nil {
			n += r.EncodedSize(true)
		}
	}
	return n
}

// follow adds a later change of the same name.
func (c *Change) follow(next *Change) {
	c.New, c.Has, c.NewVersion = next.New, next.Has, next.NewVersion
	c.Secret, c.Large = c.Secret || next.Secret, c.Large || next.Large
	c.dropContents()
}

// merge adds what a later response changed of the same type and scope.
func (e *Entry) merge(next *Entry) {
	e.Responses += next.Responses
	e.Added, e.Changed, e.Removed, e.First = e.Added+next.Added, e.Changed+next.Changed, e.Removed+next.Removed, e.First+next.First
	e.Cause, e.Server, e.Receipt, e.Progress = next.Cause, next.Server, next.Receipt, next.Progress
	e.mergeKept(next)
	for i := range next.Changes {
		c := &next.Changes[i]
		if was := e.find(c); was != nil {
			e.cost -= was.cost()
			was.follow(c)
			e.cost += was.cost()
		} else if len(e.Changes) < mostMerged {
			e.Changes = append(e.Changes, *c)
			e.cost += c.cost()
		}
	}
}

// mergeKept adds what a later response of the same type and scope has kept back.
func (e *Entry) mergeKept(next *Entry) {
	n := min(len(next.Kept), max(0, mostMerged-len(e.Kept)))
	e.Kept = append(e.Kept, next.Kept[:n]...)
	e.KeptMore += next.KeptMore + len(next.Kept) - n
	e.cost += n * costOfChange
}

func (e *Entry) find(c *Change) *Change {
	for i := range e.Changes[:min(len(e.Changes), mostMerged)] {
		if was := &e.Changes[i]; was.Name == c.Name && was.Set == c.Set {
			return was
		}
	}
	return nil
}
