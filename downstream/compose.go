package downstream

import (
	"slices"
	"strconv"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// Responses: a stream holds the cache, lets its sessions process the changes, and asks them for the next response in
// the order of their types.

// transmit sends a response, and those that were composed with it. It blocks while the client does not read. An error
// means that the client has gone, or is sent away, which ends receiving too.
func (st *stream) transmit(r *session.Response) error {
	for {
		st.resendSecrets(r)
		err := st.grpc.SendMsg(r)
		r.Delivered(err)
		if err != nil {
			return err
		}
		st.server.stats.responses.Add(1)
		if r = r.Next; r == nil {
			return nil
		}
		if err := st.stillAllowed(r); err != nil {
			return err
		}
	}
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
				for last := r; last != nil && last.Next != nil; last = last.Next {
					st.composed(last.Next)
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
// these types would have news at each turn, and the others would never have theirs. So when a type comes again and the
// stream had something to send ever since its last turn, newest also composes what the other types have, and the
// removals, from the state of the same moment: see Response.Next.
func (st *stream) newest() (r *session.Response) {
	var last *session.Response
	for i, next := range st.inOrder {
		next.Generation = st.sessionClient.Generation
		again := st.again(i)
		switch {
		case r != nil:
			last.Next = next
		case !again:
			return next
		default:
			r = next
		}
		last = next
	}
	if r == nil && st.types != nil {
		st.types.served = 0
	}
	return r
}

// removals stands for the index of a session if a response of inOrder has only removals.
const removals = -1

// again records that the session with that index has its turn, and reports whether it had one before since the stream
// last had nothing to send.
//
// It is false for removals, which come last, and while the client tries a change of a rollout: nothing more is sent when
// the client rejects it.
func (st *stream) again(i int) bool {
	if i == removals || st.types == nil {
		return false
	}
	bit := uint64(1) << i // there are fewer sessions
	was := st.types.served&bit != 0
	st.types.served |= bit
	return was && !slices.ContainsFunc(st.trials.each(), (*streamTrial).onNew)
}

// inOrder calls yield with the index of a session and its response, for one after another, until it returns false.
// xDS: "Eventual consistency considerations": additions and changes go in the order of the types, removals after them
// in reverse, see backward. A session of a type to which no other refers sends its removals with its additions. What
// has to wait for an answer of the client is left out: see ackOrder.
func (st *stream) inOrder(yield func(int, *session.Response) bool) {
	may := st.mayRemove()
	if st.sessionClient.Settles = st.settles(); st.sessionClient.Settles {
		may = session.RemoveNone
	}
	some, waits := false, false
	for i, s := range st.sessions {
		if !s.Adding() {
			continue
		}
		if st.waitsForClusters(i) {
			waits = true
			continue
		}
		news := func() *session.Response {
			join := session.RemoveNone
			if st.alone(s) {
				join = min(may, st.mayJoin(i))
			}
			return s.Additions(join)
		}
		if !upTo(mostParts, news, s.Adding, func(r *session.Response) bool { some = true; return yield(i, st.number(i, r)) }) {
			return
		}
		if s.AwaitsACK() {
			return // resources of later types may depend on that answer
		}
	}
	if st.sessionClient.Settles {
		if !st.settles() && !some { // it has just settled
			st.inOrder(yield)
		}
		return
	}
	st.additionsWait(waits)
	waits, holds := false, false
	for i, s := range st.backward {
		if !s.Removing() {
			continue
		}
		// What a removal that waits refers to waits, too, though the time of waiting may end in between.
		may, wait := may, waits || st.waitsForAnswers(i)
		if wait {
			may = min(may, session.RemoveAbsent)
		}
		gone := func() *session.Response { return s.Removals(may) }
		if !upTo(mostParts, gone, s.Removing, func(r *session.Response) bool { return yield(removals, st.number(i, r)) }) {
			return
		}
		if s.AwaitsACK() {
			return // until the client has answered, it may still refer to resources of earlier types
		}
		if wait {
			waits = waits || s.Removing()
			continue
		}
		if holds = may == session.RemoveUnnamed && s.Removing(); holds {
			break // the resources that are held may refer to resources of earlier types
		}
	}
	st.removalsWait(waits)
	st.holdRemovals(holds, waits)
}

// mostParts is the maximal number of responses of one type that inOrder yields. If the changes of a type need more
// responses, they take several turns, and later types wait for them.
const mostParts = 2

// upTo passes at most n responses of compose to yield. It returns true if compose has no more, and yield never returned
// false.
func upTo(n int, compose func() *session.Response, more func() bool, yield func(*session.Response) bool) (all bool) {
	for range n {
		r := compose()
		if r == nil {
			return true
		}
		if !yield(r) {
			return false
		}
	}
	return !more()
}

// alone reports that no other session has anything to send.
func (st *stream) alone(s typeSession) bool {
	return !slices.ContainsFunc(st.sessions, func(o typeSession) bool { return o != s && (o.Adding() || o.Removing()) })
}

// number makes r the newest response of the session with that index.
func (st *stream) number(i int, r *session.Response) *session.Response {
	s := st.sessions[i]
	st.nonces++
	st.sessionClient.Answered = true
	r.Nonce, r.At = strconv.FormatUint(st.nonces, 10), uint32(now())
	r.ShareBatches(&st.server.batches)
	st.noteOrder(i, r)
	s.Sent(r)
	st.resendNamed(s, r)
	return r
}

// parkedStream is a stream that waits until an update is stored.
type parkedStream stream
