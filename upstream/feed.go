package upstream

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// feed is the state of one type on a stream.
type feed struct {
	topics  *session.Topics
	session session.Session // nil without a stream
	// stale: topics that were requested on the present stream are not wanted there any more, so
	// that a new stream is needed. Without a session, the feed waits for it.
	stale    bool
	lastNack string // the reason of the newest NACK, empty after an ACK
	entry    entry
	gather   gather
	calm     calm
	quiet    quiet
	unsaid   int // see showUnsaid
}

func (f *feed) typeURL() string { return f.topics.TypeURL() }

// wanted returns how many names and sets are wanted.
func (f *feed) wanted() int { return f.topics.Wanted() }

// begun reports whether the first request of the type was sent on the present stream.
func (f *feed) begun() bool { return f.session != nil && f.session.Begun() }

// gather is the wait of one type for client requests. See gather.go.
type gather struct {
	began   time.Time // zero before the wait
	request uint64    // the newest client request that it waits for
	ended   bool      // it waits no more
	// taken is Stream.taken when the client requests were found to have ended. Their last notes may
	// still be in the inbox then.
	taken uint64
}

// Clients can make up types, so a stream may have very many. An event concerns one
// of them, or a few, and must not cost work for the others.

// agenda has the types that the stream must process, and the sums over all types. Stream.mu
// guards it. The zero value is ready for use.
type agenda struct {
	// pending are the types to which something has happened, each once.
	pending []*feed
	// due is when a type must be processed although nothing has happened to it.
	due cache.Expiries[*feed]
	sum tally
}

// tally is what one type adds to the agenda's sum.
type tally struct {
	wanted  int // names and wildcards that are wanted
	idle    int // 1 if there are none
	late    int // 1 if a new stream is needed
	listens int // 1 if responses of other types matter
	unsent  int // the memory of answers that wait to be sent, in bytes
}

// entry is the agenda's record of a type.
type entry struct {
	pending bool
	counted tally // the part of the agenda's sum that is of this type
}

func (a *agenda) add(f *feed) {
	if !f.entry.pending {
		f.entry.pending = true
		a.pending = append(a.pending, f)
	}
}

// count replaces a type's part of the sum.
func (a *agenda) count(f *feed, t tally) {
	before := &f.entry.counted
	a.sum.wanted += t.wanted - before.wanted
	a.sum.idle += t.idle - before.idle
	a.sum.late += t.late - before.late
	a.sum.listens += t.listens - before.listens
	a.sum.unsent += t.unsent - before.unsent
	*before = t
}
