package downstream

import (
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/internal/wire"
)

// Stale requests. xDS: "Resource updates": a SotW request that answers an earlier response than the newest is ignored,
// because one that answers the newest follows, and has the newest names. Until then nothing more is sent.
//
// But some clients ignore a response, and send no such request: gRPC-Java up to 1.64 ignores the responses of a type of
// which it has unsubscribed from everything, and continues with the nonce before. So when the newest response has been
// unanswered for unansweredFor, the last stale request counts. Requests that just cross a response on the way are
// ignored as ever.

// unansweredFor is much longer than an answer takes, and shorter than the 15 seconds after which clients take a
// resource that they wait for as missing.
const unansweredFor = 5 * time.Second

// staleRequest is the last stale request of a session. stream.mu guards it.
type staleRequest struct {
	session typeSession
	version string
	accept  func() (answer bool, err error) // as a spontaneous request; the caller holds mu
	timer   *time.Timer
}

// keepStale keeps a request that the session has just ignored, or forgets the session's last one. The caller holds mu.
func keepStale[R request, S typeSession](st *stream, f form[R, S], sess S, req R) {
	sent, is := sess.Stale()
	if !is {
		if st.seldom != nil {
			st.seldom.stale = slices.DeleteFunc(st.seldom.stale, func(r *staleRequest) bool {
				return r.session == typeSession(sess) && r.timer.Stop()
			})
		}
		return
	}
	copied, version := f.spontaneous(req)
	accept := func() (bool, error) {
		return acceptHeld(st, f, copied, wire.Peeked{}, nil, sess.TypeURL())
	}
	all := st.seldomUsed()
	at := slices.IndexFunc(all.stale, func(r *staleRequest) bool { return r.session == typeSession(sess) })
	if at >= 0 {
		all.stale[at].accept, all.stale[at].version = accept, version
		return
	}
	r := &staleRequest{session: sess, accept: accept, version: version}
	all.stale = append(all.stale, r)
	r.timer = time.AfterFunc(max(time.Millisecond, unansweredFor-moment(sent).ago()), func() { st.acceptStale(r) })
}

// acceptStale has a stale request count, unless the client has answered the newest response.
func (st *stream) acceptStale(r *staleRequest) {
	st.mu.Lock()
	answer, err := false, error(nil)
	if !st.closed {
		st.seldom.stale = slices.DeleteFunc(st.seldom.stale, func(s *staleRequest) bool { return s == r })
		if _, is := r.session.Stale(); is {
			r.session.StartOver(r.version)
			answer, err = r.accept()
		}
	}
	st.mu.Unlock()
	if err != nil {
		st.byRelay.Store(true)
		finish(st.grpc.Context(), err)
	}
	if answer {
		st.resume()
	}
}
