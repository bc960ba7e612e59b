package session

import "time"

// A delta control plane should report each requested resource that does not exist. Some,
// such as go-control-plane, do so only for resources that the client holds, because they were sent on
// the stream or are in initial_resource_versions. If a client holds a resource from an earlier stream,
// and the relay does not hold it, such a control plane would never report that it is gone, and the client
// would keep it for good. So the relay lists the name in the first request of its type, with
// a version that no control plane uses. The control plane then sends the resource, or its removal.
//
// A client may resume a name after that request. Most control planes answer the name. If the control
// plane does not, within the response timeout, the relay opens a new stream to list it
// (Stream.renew), at most one for each name. If the name has only just missed the first request, the relay
// does not wait for an answer before that: a client whose first request has many names resumes them one
// by one, while the stream is being opened. On a stream that was opened to list names, the relay does wait
// for answers. Otherwise clients could make it open one stream after another.
//
// Names that no client holds are not listed: the control plane need not report that it does not have them
// yet.

// resumedVersion is listed for a resource that a client holds, and the relay does not.
const resumedVersion = "xds-relay/unknown"

// resumeMoment is how long after the first request of a type a name counts as having just missed it.
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

// misses reports whether a name has just missed the first request, and has no answer.
func (n *Names) misses() bool {
	for len(n.missed) > 0 && !(n.missed[0].toList() && n.missed[0].wanted) {
		n.missed = n.missed[1:]
	}
	return len(n.missed) > 0
}

// toList reports whether a name must be listed: it was not, and has no answer.
func (sub *subscription) toList() bool {
	return sub.resumed && !sub.listed && !sub.answered
}

// overdue reports whether a name must be listed, and was requested without an answer in time.
func (sub *subscription) overdue() bool {
	return sub.toList() && sub.wanted && sub.sent && sub.failure != nil
}

// relistResumed sets relist if a new stream is needed to list names. It is called if the control plane
// has sent a response on this one.
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
