package downstream

import (
	"strconv"
	"time"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Flow control by answers. Responses that a client has no time for grow old in buffers: gRPC's, those of both operating
// systems, and its own. So a stream waits until a client that lags answers (ACK or NACK), and then sends the newest
// state. A client lags when it has not answered a response for lagAfter, or has not answered maxInFlight responses of
// one type.
//
// The stream does not wait in two cases. A client that has never answered anything may never answer. (If it does not
// read either, the next response blocks in gRPC, and the stream makes no further one.) Clusters do not count if the
// stream has other types: Envoy acknowledges Clusters when they are warm, for which it needs their endpoints and
// secrets.

// The relay can send the second response while the client works on the first, and a distant client gets changes in
// quick succession without waiting for a round trip.
const (
	maxInFlight = 2
	lagAfter    = 50 * time.Millisecond
)

// answerTimeout is how long a stream waits for an answer. Then it sends what is new once more.
const answerTimeout = time.Second

// lags reports that the client has to answer before it is sent more.
func (st *stream) lags() bool {
	if !st.flow.answers {
		return false
	}
	for _, s := range st.sessions {
		n, first := s.InFlight()
		if n < maxInFlight && (n == 0 || moment(first).ago() <= lagAfter) {
			continue
		}
		if len(st.sessions) == 1 || xdstype.Of(s.TypeURL()) != xdstype.Cluster {
			return true
		}
	}
	return false
}

// awaitAnswer reports whether the stream has to wait for its client's answer, and schedules another try at the end of
// that wait. The caller holds mu and is responsible for the stream until then.
func (st *stream) awaitAnswer() bool {
	f := &st.flow
	if st.closed || !st.lags() {
		f.late = false
		return false
	}
	if f.late {
		return false // until that one response is composed, which may have to wait
	}
	f.waits = true
	if st.answerTimer == nil {
		st.answerTimer = time.AfterFunc(answerTimeout, st.answerLate)
	} else {
		st.answerTimer.Reset(answerTimeout)
	}
	return true
}

// answered notes a request with that nonce, which may answer a response of a session that had so many in flight. It
// reports whether the stream stops waiting for an answer. The caller holds mu.
func (st *stream) answered(s typeSession, had int, nonce []byte) (goesOn bool) {
	f := &st.flow
	if !f.answers {
		n, _ := s.InFlight()
		f.answers = n < had || had > 0 && st.issued(nonce) // the session may have forgotten the response by now
	}
	if !f.waits || st.lags() {
		return false
	}
	f.waits = false
	st.answerTimer.Stop()
	st.inbox.release()
	return true
}

// issued reports that a response of the stream had that nonce.
func (st *stream) issued(nonce []byte) bool {
	n, err := strconv.ParseUint(string(nonce), 10, 64)
	return err == nil && 0 < n && n <= st.nonces
}

// answerLate has the stream send one response without an answer.
func (st *stream) answerLate() {
	st.mu.Lock()
	late := st.flow.waits && !st.closed
	if late {
		st.flow.waits, st.flow.late = false, true
		st.inbox.release()
	}
	st.mu.Unlock()
	if late {
		st.resume()
	}
}
