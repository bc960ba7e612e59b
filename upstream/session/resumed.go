package session

import "time"

// A delta control plane should say of each name that does not exist that it does not. Some,
// as go-control-plane, say so only of what the client holds, because it was sent on the stream
// or is in initial_resource_versions. Of a name that the relay does not hold, but one of its
// clients does from an earlier stream, nothing would ever be said, and that client would keep
// the resource for good. So the relay lists such a name in the first request of its type, with
// a version that no control plane gives: it is sent the resource, or that there is none.
//
// A name of which a client says so later than that is answered by most control planes. If it
// is not, within the time of an answer, there is a new stream for it, as for what else clients
// wish (Stream.renew): one for each name at most. If the client says so only a moment later, the
// first request has just missed it, and the new stream does not wait for an answer: a client that
// begins with a request for many names says so name by name, while the stream is opened. A stream that
// was opened for such names waits for answers again: otherwise each moment could cost a stream.
//
// Names that no client holds are not listed: that a control plane does not have them yet is
// not for it to say before it knows.

// resumedVersion is the version of what is held by a client, and not by the relay.
const resumedVersion = "xds-relay/unknown"

// resumeMoment is how long after the first request of a type a name has just missed it.
const resumeMoment = time.Second

// resume notes that a client holds the resource of a name from an earlier stream.
func (n *Names) resume(name string, now time.Time) {
	if sub := n.subs[name]; sub != nil && !sub.resumed {
		sub.resumed = true
		n.unlisted = n.unlisted || sub.overdue()
		if sub.toList() && sub.wanted && sub.sent && now.Before(n.missedUntil) {
			n.missed = append(n.missed, sub)
		}
	}
}

// misses reports whether a name has missed the first request, and is not answered.
func (n *Names) misses() bool {
	for len(n.missed) > 0 && !(n.missed[0].toList() && n.missed[0].wanted) {
		n.missed = n.missed[1:]
	}
	return len(n.missed) > 0
}

// toList says that a name is to be listed, as it was not and there is no answer.
func (sub *subscription) toList() bool {
	return sub.resumed && !sub.listed && !sub.answered
}

// overdue says that a name is to be listed, and was asked for in vain.
func (sub *subscription) overdue() bool {
	return sub.toList() && sub.wanted && sub.sent && sub.failure != nil
}

// relistResumed finds out whether a new stream is needed to list names. The control plane
// has answered something on this one.
func (n *Names) relistResumed() {
	if !n.unlisted || n.relist {
		return
	}
	n.unlisted = false
	for _, sub := range n.subs {
		if sub.overdue() {
			n.relist = true
			return
		}
	}
}
