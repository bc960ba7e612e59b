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
	if r = st.takeComposed(); r != nil {
		return r, false
	}
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
				for _, next := range st.allComposed() {
					st.composed(next)
				}
			}
			return r, false
		}
		for _, s := range st.sessions {
			s.Follow()
		}
	}
}

// composeHeld is compose while the topics are held; it ends that. ok is false if something else must be watched first.
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
	if r = st.newest(); r == nil {
		for _, s := range st.sessions {
			s.Spare()
		}
	}
	return r, true
}

// newest returns the next response, nil if there is nothing to send.
//
// The resources of the first types may change faster than the stream gets its turns, or than its client answers. Then
// these types would have news at each turn, and the others would never have theirs. So when a type comes again before
// all have been served, newest also composes the responses of all other types, and the removals, from the state of the
// same moment. The stream sends them next, without another look at the cache.
func (st *stream) newest() (r *session.Response) {
	for i, next := range st.inOrder {
		again := st.again(i)
		if r != nil {
			st.types.composed = append(st.types.composed, next)
		} else if r = next; !again {
			return r
		}
	}
	if r == nil && st.types != nil {
		st.types.served = 0
	}
	return r
}

// again reports whether the session with that index has been sent all of its news before, since the stream last had
// nothing to send. It records that it has now, if so.
func (st *stream) again(i int) bool {
	if st.types == nil {
		return false
	}
	bit := uint64(1) << i
	was := st.types.served&bit != 0
	if !st.sessions[i].Adding() {
		st.types.served |= bit
	}
	return was
}

// inOrder calls yield with the sessions' indexes and responses, one after another, until it returns false.
// xDS: "Eventual consistency considerations": additions and changes go in the order of the types, removals after them
// in reverse.
func (st *stream) inOrder(yield func(int, *session.Response) bool) {
	may := st.mayRemove()
	if st.sessionClient.Settles = st.settles(); st.sessionClient.Settles {
		may = session.RemoveNone
	}
	for i, s := range st.sessions {
		if !s.Adding() {
			continue
		}
		with := session.RemoveNone
		if st.alone(s) {
			with = may
		}
		if !st.yieldParts(i, yield, func() *session.Response { return s.Additions(with) }) {
			return
		}
		if s.AwaitsACK() {
			return // resources of later types may depend on that answer
		}
	}
	if st.sessionClient.Settles {
		if !st.settles() { // it has just settled
			st.inOrder(yield)
		}
		return
	}
	holds := false
	for i, s := range slices.Backward(st.sessions) {
		if !s.Removing() {
			continue
		}
		if !st.yieldParts(i, yield, func() *session.Response { return s.Removals(may) }) {
			return
		}
		if s.AwaitsACK() {
			return // until the client has answered, it may still refer to resources of earlier types
		}
		if holds = may == session.RemoveUnnamed && s.Removing(); holds {
			break // the resources that are held may refer to resources of earlier types
		}
	}
	st.holdRemovals(holds)
}

// yieldParts is inOrder for one session, and reports whether that is served. What has to be divided into many responses
// takes several turns, and the other types wait for it.
func (st *stream) yieldParts(i int, yield func(int, *session.Response) bool, compose func() *session.Response) bool {
	for range 2 {
		r := compose()
		if r == nil {
			return true
		}
		if !yield(i, st.number(st.sessions[i], r)) {
			return false
		}
	}
	return false
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

// allComposed returns the responses that are to be sent before others are composed. The caller holds mu.
func (st *stream) allComposed() []*session.Response {
	if st.types == nil {
		return nil
	}
	return st.types.composed
}

// takeComposed returns the first of allComposed and removes it. It returns nil if there is none. The caller holds mu.
func (st *stream) takeComposed() *session.Response {
	all := st.allComposed()
	if len(all) == 0 {
		return nil
	}
	st.types.composed = all[1:]
	if len(all) == 1 {
		st.types.composed = nil
	}
	if st.closed || st.dismissed {
		return nil
	}
	return all[0]
}

// parkedStream is a stream that waits until an update is stored.
type parkedStream stream
