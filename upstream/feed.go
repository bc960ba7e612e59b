package upstream

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// feed is what a stream has of one type.
type feed struct {
	topics  *session.Topics
	session session.Session // nil without a stream
	// stale: what was requested on the stream is not wanted there any more, so that the next
	// one is needed. Without a session, what is wanted waits for it.
	stale    bool
	lastNack string // that was logged
	entry    entry
	gather   gather
	calm     calm
}

func (f *feed) typeURL() string { return f.topics.TypeURL() }

// wanted returns how many names and sets are wanted.
func (f *feed) wanted() int { return f.topics.Wanted() }

// begun says whether the control plane has had a request on the present stream.
func (f *feed) begun() bool { return f.session != nil && f.session.Begun() }

// gather is the wait of one type for client requests. See gather.go.
type gather struct {
	began   time.Time // zero before it
	request uint64    // the one that is waited for
	ended   bool      // nothing is waited for
	// taken is Stream.taken when the client requests were found to have ended. Their last notes may
	// be in the inbox then.
	taken uint64
}

// Clients can make up types, so a stream may have very many. What happens concerns one
// of them, or a few, and must not cost work for the others.

// agenda says which of a stream's types are to be looked at, and keeps what all of them
// come to. Stream.mu guards it. The zero value is ready.
type agenda struct {
	// pending are the types to which something has happened, each once.
	pending []*feed
	// due is when a type is to be looked at although nothing has happened to it.
	due cache.Expiries[*feed]
	sum tally
}

// tally is what one type adds to what is known of all.
type tally struct {
	wanted int // names and wildcards that have not been given up
	idle   int // 1 if there are none
	late   int // 1 if a new stream is needed
	unsent int // the memory of answers that wait to be sent, in bytes
}

// entry is what the agenda notes of a type.
type entry struct {
	pending bool
	counted tally // is in the agenda's sum
}

func (a *agenda) add(f *feed) {
	if !f.entry.pending {
		f.entry.pending = true
		a.pending = append(a.pending, f)
	}
}

// count counts a type anew.
func (a *agenda) count(f *feed, t tally) {
	before := &f.entry.counted
	a.sum.wanted += t.wanted - before.wanted
	a.sum.idle += t.idle - before.idle
	a.sum.late += t.late - before.late
	a.sum.unsent += t.unsent - before.unsent
	*before = t
}
