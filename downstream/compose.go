package downstream

import (
	"slices"
	"strconv"

	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/xdstype"
)

// Responses: a stream holds the cache, lets its sessions process the changes, and asks them for the next response in
// the order of their types.

// transmit sends a response. It blocks while the client does not read. An error means that the client has gone, which
// ends receiving too.
func (st *stream) transmit(r *session.Response) error {
	err := st.grpc.SendMsg(r)
	r.Delivered(err)
	if err != nil {
		return err
	}
	st.server.stats.responses.Add(1)
	return nil
}

// next returns the next response, put together from the newest state, or nil if there is nothing to send. It waits for
// updates that are being stored.
func (st *stream) next() *session.Response {
	st.mu.Lock()
	r, _ := st.compose(holdAndWait)
	return r
}

// holding says what the stream does if an update of a scope that it watches is being stored.
type holding int

const (
	holdAndWait holding = iota // waits until the update is stored
	holdNow                    // gives up
	holdOrPark                 // gives up, and is woken when the update is stored
)

func (st *stream) hold(how holding) bool {
	switch how {
	case holdNow:
		return st.topics.TryBeginRead(nil)
	case holdOrPark:
		return st.topics.TryBeginRead((*parkedStream)(st))
	case holdAndWait:
	}
	st.topics.BeginRead()
	return true
}

// compose is next for a caller that holds mu, which compose releases. failed means that the topics cannot be held in
// the way that how says.
func (st *stream) compose(how holding) (r *session.Response, failed bool) {
	defer st.mu.Unlock()
	for {
		if !st.waitsForTurn() {
			_ = st.reconfigure() // an error dismisses the stream
		}
		if st.trials != nil {
			st.switchSides()
			st.noteFilled()
		}
		st.noteSides()
		if !st.hold(how) {
			return nil, true
		}
		if st.trials != nil && st.sidesChanged() {
			st.topics.EndRead()
			continue
		}
		r, ok := st.composeHeld()
		st.logNotRequested()
		if st.refusedLately { // by a resource's own name, which has just become known
			st.refusedLately = false
			st.endIfDenied()
		}
		if ok {
			if r != nil {
				st.flow.late = false
			}
			if st.trials != nil {
				st.composed(r)
			}
			return r, false
		}
		for _, s := range st.sessions {
			s.Follow()
		}
	}
}

// composeHeld is compose while the topics are held; it ends that. ok is false if something else must be watched first.
// xDS: "Eventual consistency considerations": additions and changes go in the order of the types, removals after them
// in reverse.
func (st *stream) composeHeld() (r *session.Response, ok bool) {
	defer st.topics.EndRead()
	st.inbox.drain() // also when closed, or the sender would never sleep
	if st.closed || st.dismissed {
		return nil, true
	}
	for _, s := range st.sessions {
		s.TakeOdd()
	}
	if slices.ContainsFunc(st.sessions, typeSession.Following) {
		return nil, false
	}
	if st.ending() || st.waitsForOthers() {
		return nil, true
	}
	if r = st.inOrder(); r == nil {
		for _, s := range st.sessions {
			s.Spare()
		}
	}
	return r, true
}

func (st *stream) inOrder() *session.Response {
	may := st.mayRemove()
	if st.sessionClient.Settles = st.settles(); st.sessionClient.Settles {
		may = session.RemoveNone
	}
	for _, s := range st.sessions {
		if !s.Adding() {
			continue
		}
		with := session.RemoveNone
		if st.alone(s) {
			with = may
		}
		if r := s.Additions(with); r != nil {
			return st.number(s, r)
		}
		if s.AwaitsACK() {
			return nil // resources of later types may depend on that answer
		}
	}
	if st.sessionClient.Settles {
		if st.settles() {
			return nil
		}
		return st.inOrder() // it has just settled
	}
	holds := false
	for _, s := range slices.Backward(st.sessions) {
		if !s.Removing() {
			continue
		}
		if r := s.Removals(may); r != nil {
			return st.number(s, r)
		}
		if s.AwaitsACK() {
			return nil // until the client has answered, it may still refer to resources of earlier types
		}
		if holds = may == session.RemoveUnnamed && s.Removing(); holds {
			break // the resources that are held may refer to resources of earlier types
		}
	}
	st.holdRemovals(holds)
	return nil
}

// alone reports that no other session has anything to send.
func (st *stream) alone(s typeSession) bool {
	return !slices.ContainsFunc(st.sessions, func(o typeSession) bool { return o != s && (o.Adding() || o.Removing()) })
}

func (st *stream) number(s typeSession, r *session.Response) *session.Response {
	st.nonces++
	r.Nonce, r.At = strconv.FormatUint(st.nonces, 10), uint32(now())
	r.ShareBatches(&st.server.batches)
	s.Sent(r)
	if len(r.Changed) == 0 {
		return r
	}
	for _, eds := range [...]typeSession{st.session(xdstype.EndpointsV3), st.session(xdstype.EndpointsV2)} {
		if eds == nil {
			continue
		}
		for _, cluster := range r.Changed {
			eds.Resend(session.EndpointsOf(cluster))
		}
	}
	r.Changed = nil
	return r
}

// parkedStream is a stream that waits until an update is stored.
type parkedStream stream
