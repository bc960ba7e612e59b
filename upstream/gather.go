package upstream

import "time"

// Only the first request of a type on a stream can have initial_resource_versions, which spare
// the control plane from sending resources that the relay holds. But a client's request reaches the
// Stream name by name, and the first name may wake the Stream's goroutine. So the first request of a
// type waits until the client requests have ended that were being noted when the wait began. Client
// requests that begin later do not delay it, so clients cannot hold it up.

// gatherWait bounds the wait, should a client request take that long.
const gatherWait = 250 * time.Millisecond

// gathered reports whether the first request of a type may be sent, and if not, after what time to
// call it again. The caller holds mu.
func (s *Stream) gathered(f *feed, now time.Time) (ok bool, again time.Duration) {
	g, requests := &f.gather, s.opts.ClientRequests
	switch {
	case requests == nil || g.ended || f.session.Begun():
		return true, never
	case g.began.IsZero():
		g.began, g.request = now, requests.Last()
		requests.AtEnd(g.request, s.inbox.Wake)
	case g.taken > 0 && s.taken > g.taken, now.Sub(g.began) >= gatherWait:
		g.ended = true
		return true, never
	}
	if g.taken == 0 && !requests.Ended(g.request) {
		return false, gatherWait - now.Sub(g.began)
	}
	g.taken = s.taken
	return false, 0 // once the notes are taken
}
