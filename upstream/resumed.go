package upstream

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/wire"
)

// A delta control plane should say of each name that does not exist that it does not. Some,
// as go-control-plane, say so only of what the client holds, because it was sent on the stream
// or is in initial_resource_versions. Of a name that the relay does not hold, but one of its
// clients does from an earlier stream, nothing would ever be said, and that client would keep
// the resource for good. So the relay lists such a name in the first request of its type, with
// a version that no control plane gives: it is sent the resource, or that there is none.
//
// A name of which a client says so later than that is answered by most control planes. If it
// is not, within the time of an answer, there is a new stream for it, as for what else clients
// wish (Stream.renew): one for each name at most.
//
// Names that no client holds are not listed: that a control plane does not have them yet is
// not for it to say before it knows.

// resumedVersion is the version of what is held by a client, and not by the relay.
const resumedVersion = "xds-relay/unknown"

// resume notes that a client holds the resource of a name from an earlier stream.
func (s *subscriptions) resume(name string) {
	sub := s.get(name)
	if sub == nil || sub.set != nil || sub.resumed {
		return
	}
	sub.resumed = true
	s.unlisted = s.unlisted || sub.overdue()
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
func (s *subscriptions) relistResumed() {
	if !s.unlisted || s.relist {
		return
	}
	s.unlisted = false
	for _, sub := range s.names {
		if sub.overdue() {
			s.relist = true
			return
		}
	}
}

// resume subscribes to a name that a client holds, and lists it if that goes into the same
// request, and that is the first.
func (p *deltaPacker) resume(name string) (listed bool) {
	size := wire.SizeString(name)
	if l := locator(name, p.subs.params); l != nil {
		size = sizeMessage(l)
	}
	if p.flushed || !p.room(size+versionSize(name, resumedVersion)) {
		p.subscribe(name)
		return false
	}
	p.put(name, resumedVersion)
	p.subscribe(name)
	return true
}

// put lists a name with a version.
func (p *deltaPacker) put(name, version string) {
	req := p.must()
	if req.InitialResourceVersions == nil {
		req.InitialResourceVersions = map[string]string{}
	}
	p.filled = true
	if _, there := req.InitialResourceVersions[name]; !there {
		p.size += versionSize(name, version)
	}
	req.InitialResourceVersions[name] = version
}

// versionSize is the length that a name and its version have in a request.
func versionSize(name, version string) int {
	const header = 5 // of an entry, at most
	return header + wire.SizeString(name) + wire.SizeString(version)
}

var _ cache.Resumer = (*Stream)(nil)
