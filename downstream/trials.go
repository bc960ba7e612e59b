package downstream

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Rollouts: some clients get a change before others. Such a client is on the new side of a scope, and watches other
// topics there (cache.Scope.New). The rollout decides when. The stream moves its subscriptions when it next composes a
// response, and reports what the client makes of the change.

// maxSentNews bounds sentNew.hashes, sentNew.fresh and streamTrial.news.
const maxSentNews = 64

func (t *streamTrial) onNew() bool { return t.showing != 0 }

// joinTrial begins the stream's part in the rollouts of a scope that the stream begins to use.
func (s *streamScopes) joinTrial(scope cache.Scope) {
	st := s.stream
	rollouts := st.server.options.Rollouts
	if rollouts == nil {
		return
	}
	if some, ok := rollouts.(RolledOutScopes); ok && !some.RollsOut(scope) {
		return
	}
	views := st.trials != nil && st.trials.views
	_, once := st.grpc.(noStream)
	var conn net.Addr
	if p, ok := peer.FromContext(st.grpc.Context()); ok {
		conn = p.Addr
	}
	t, showing := rollouts.Join(scope, TrialClient{
		Client: Client{Node: st.node, Identity: st.identity}, Name: st.client(), Conn: conn, Who: st.behind(),
		Eligible: !once && !views, Resumed: st.resumed,
		Wake: func() {
			if st.inbox.wake() {
				st.inbox.waker.Wake()
			}
		},
	})
	if t == nil {
		return
	}
	trial := &streamTrial{Trial: t, scope: scope, stays: once}
	if views {
		trial.withdraw()
	}
	if !trial.stays && showing != 0 {
		trial.showing = showing
		trial.settled = true
		trial.Moved(showing)
	}
	if st.trials == nil {
		st.trials = &streamTrials{}
	}
	st.trials.all = append(st.trials.all, trial)
}

// joinNewTrials begins the stream's part in rollouts of scopes that had none when the stream began to use them. What
// the client was sent since then counts. The caller holds mu.
func (st *stream) joinNewTrials() {
	for scope := range st.scopes.all() {
		if slices.ContainsFunc(st.trials.each(), func(t *streamTrial) bool { return t.scope == scope }) {
			continue
		}
		had := len(st.trials.each())
		st.scopes.joinTrial(scope)
		for _, t := range st.trials.each()[had:] {
			st.noteAnswers(t)
		}
	}
}

// noteAnswers records in a new trial how the client has answered so far.
func (st *stream) noteAnswers(t *streamTrial) {
	more := false
	for _, s := range st.sessions {
		if !t.RollsOut(s.TypeURL()) {
			continue
		}
		more = more || s.Adding()
		if n, _ := s.InFlight(); n > 0 || s.LastAnswer() != session.NoAnswer {
			t.typeState(s.TypeURL()).acked = s.LastAnswer() == session.ACKed
		}
	}
	if !more {
		st.settle(t)
	}
}

// settle records that the client has accepted the accepted state, if it has.
func (st *stream) settle(t *streamTrial) {
	if t.settled || t.onNew() || st.types.waits() || !st.ackedAll(t) {
		return
	}
	t.settled = true
	t.Settled()
	if t.Showing() != 0 && st.inbox.wake() {
		st.Wake()
	}
}

// leaveTrial ends the stream's part in the rollouts of a scope.
func (s *streamScopes) leaveTrial(scope cache.Scope) {
	st := s.stream
	at := slices.IndexFunc(st.trials.each(), func(t *streamTrial) bool { return t.scope == scope })
	if at < 0 {
		return
	}
	st.trials.all[at].Leave(st.closed && st.brokeOff())
	st.trials.all = slices.Delete(st.trials.all, at, at+1)
}

// brokeOff reports that neither the relay nor the client has ended the stream. A program that dies cannot half-close
// its stream, and a client that the relay sends away has a reason to end it.
func (st *stream) brokeOff() bool { return !st.byRelay.Load() && !st.halfClosed && !st.sentAway() }

// sentAway reports that the relay has sent the client away from its connection, so that it opens its streams on another
// one.
func (st *stream) sentAway() bool {
	conn := connOf(st.grpc.Context())
	if conn == nil {
		return false
	}
	g := conn.goAway.Load()
	return g != nil && g.wanted.Load()
}

// side returns the topic that the client watches in place of one that its names resolve to.
func (st *stream) side(k cache.Key) cache.Key {
	for _, t := range st.trials.each() {
		if t.onNew() && t.scope == k.Scope.Accepted() && t.RollsOut(k.TypeURL) {
			k.Scope.New = true
		}
	}
	return k
}

// switchSides moves the subscriptions in scopes for which the stream should be on the other side. The cache must not be
// held.
func (st *stream) switchSides() {
	if st.closed {
		return
	}
	st.leaveEnded()
	for _, t := range st.trials.each() {
		showing := t.Showing()
		asked := t.Revision()
		more := asked != t.asked
		if more {
			t.asked, t.reported = asked, false
		}
		if !t.isToMove(showing) {
			if more && t.onNew() {
				st.showNew(t)
			}
			continue
		}
		was := t.showing
		t.keep(was != 0 && showing != 0 && !t.rejected)
		t.showing, t.reported, t.rejected, t.acked = showing, false, false, false
		for _, of := range t.types {
			of.new = sentNew{}
		}
		if was != 0 {
			st.showAccepted(t)
		}
		if showing != 0 {
			st.showNew(t)
		}
	}
}

// keep forgets what the client was sent on the new side, except what still is new if the stream moves there again.
func (t *streamTrial) keep(again bool) {
	if !again {
		t.open, t.news, t.kept = nil, nil, false
		return
	}
	t.news = slices.DeleteFunc(t.news, func(hash uint64) bool { return !t.IsNew(hash) })
	t.open = slices.DeleteFunc(t.open, func(of sentNew) bool {
		return of.hashes != nil && !slices.ContainsFunc(of.hashes, t.IsNew)
	})
	t.kept = len(t.news) > 0
}

// noteFilled notes which topics on the new side are filled. What fills a topic wakes the stream. So what the stream
// composes after this call has the content of the topics that are filled.
func (st *stream) noteFilled() {
	for _, t := range st.trials.each() {
		t.filled = t.onNew() && !t.reported && t.Filled()
	}
}

// leaveEnded ends the stream's part in rollouts that the authority no longer has.
func (st *stream) leaveEnded() {
	if st.trials == nil {
		return
	}
	st.trials.all = slices.DeleteFunc(st.trials.all, func(t *streamTrial) bool {
		if !t.Ended() {
			return false
		}
		if t.onNew() {
			st.showAccepted(t)
		}
		t.Leave(false)
		return true
	})
}

// showAccepted moves the subscriptions back, including those of types that were rolled out when they moved.
func (st *stream) showAccepted(t *streamTrial) {
	for _, s := range st.sessions {
		s.ShowAccepted(t.scope)
	}
}

// showNew moves the subscriptions to topics that differ on the new side.
func (st *stream) showNew(t *streamTrial) {
	for _, s := range st.sessions {
		if t.RollsOut(s.TypeURL()) {
			names, all := t.Differing(s.TypeURL())
			s.ShowNew(t.scope, names, all)
		}
	}
	t.Moved(t.showing)
}

// isToMove reports whether the stream should be on another side, or should have been in between.
func (t *streamTrial) isToMove(showing uint64) bool {
	return showing != t.showing && (showing == 0 || t.settled && !t.stays)
}

// sidesChanged reports whether the stream should be on another side than it is. The content of the new side changes
// only after the streams that must not get it have had to leave. So if the sides are still right while the cache is
// held, the client may have the current content.
func (st *stream) sidesChanged() bool {
	return !st.closed && slices.ContainsFunc(st.trials.all, func(t *streamTrial) bool { return t.isToMove(t.Showing()) })
}

// withdrawTrials keeps the client on the accepted side, because it has subscribed to a view. The topics of a view have
// accepted content, which may be the content of other names, too.
func (st *stream) withdrawTrials() {
	switch {
	case st.server.options.Rollouts == nil || st.trials != nil && st.trials.views:
		return
	case st.trials == nil:
		st.trials = &streamTrials{}
	}
	st.trials.views = true
	for _, t := range st.trials.all {
		t.withdraw()
	}
}

// withdraw keeps the stream on the accepted side. It moves there when the gate says so.
func (t *streamTrial) withdraw() {
	t.stays = true
	t.Withdraw()
}

// behind identifies the party behind the client for the rollouts. It is empty for a client on this machine, which only
// its Node identifies.
func (st *stream) behind() string {
	if st.identity != nil && st.identity.Local && !st.identity.Authenticated() {
		return ""
	}
	key := identityKeyOf(st.grpc.Context(), st.identity)
	return cmp.Or(key.proven, key.address.String()) + st.relayName()
}

// composed records what was composed for the client, nil for nothing.
func (st *stream) composed(r *session.Response) {
	for _, t := range st.trials.each() {
		switch {
		case r == nil:
			if t.onNew() && !t.reported && t.filled && !st.hasMore(t) {
				t.reported = true
				t.reportNothing()
			}
			if t.acked && !st.types.waits() {
				t.acked = false
				t.Acked(t.showing)
			}
			st.settle(t)
		case t.RollsOut(r.TypeURL):
			t.typeState(r.TypeURL)
			if t.onNew() && slices.ContainsFunc(r.News, func(res *cache.Resource) bool { return t.IsNew(res.Hash()) }) {
				t.composedNew(r)
			}
		}
	}
	if r != nil {
		r.News = nil
	}
}

// reportNothing reports that the client is sent nothing: it has the new content already, or gets none of it.
func (t *streamTrial) reportNothing() {
	if !t.kept || !slices.ContainsFunc(t.news, t.IsNew) {
		t.Untouched(t.showing, t.asked)
		return
	}
	t.Sent(t.showing)
	if len(t.open) == 0 {
		t.Acked(t.showing)
	}
}

// typeState returns the record of a type of which something is being sent.
func (t *streamTrial) typeState(typeURL string) *trialType {
	of := t.types[typeURL]
	if of == nil {
		if t.types == nil {
			t.types = map[string]*trialType{}
		}
		of = &trialType{}
		t.types[typeURL] = of
	}
	return of
}

// composedNew records a response with something new.
func (t *streamTrial) composedNew(r *session.Response) {
	if len(t.open) == 0 || !t.reported {
		t.Sent(t.showing)
	}
	of := sentNew{typeURL: r.TypeURL, nonce: r.Nonce}
	had := t.news
	var all []*cache.Resource
	for _, resource := range r.News {
		hash := resource.Hash()
		if !t.IsNew(hash) {
			continue
		}
		all = append(all, resource)
		if !slices.Contains(had, hash) {
			of.fresh = append(of.fresh, resource)
		}
		if len(t.news) < maxSentNews && !slices.Contains(t.news, hash) {
			t.news = append(t.news, hash)
		}
	}
	if len(of.fresh) == 0 {
		of.fresh = all
	}
	if len(of.fresh) > maxSentNews {
		of.fresh, of.more = slices.Clone(of.fresh[:maxSentNews]), len(of.fresh)-maxSentNews
	}
	if len(all) <= maxSentNews {
		for _, resource := range all {
			of.hashes = append(of.hashes, resource.Hash())
		}
	}
	t.types[r.TypeURL].new = of
	t.open, t.reported, t.acked = append(t.open, of), true, false
}

// hasMore reports that there is something to send of the types that are rolled out.
func (st *stream) hasMore(t *streamTrial) bool {
	return slices.ContainsFunc(st.sessions, func(s typeSession) bool {
		return t.RollsOut(s.TypeURL()) && (s.Adding() || s.Removing())
	})
}

// trialAnswered records that a client has answered a response of a session, which had so many in flight before. rejection
// is nil for an ACK.
func (st *stream) trialAnswered(s typeSession, had int, rejection *session.NACK) {
	n, _ := s.InFlight()
	for _, t := range st.trials.each() {
		of := t.types[s.TypeURL()]
		if of == nil || n >= had && rejection == nil {
			continue
		}
		of.acked = rejection == nil
		if sent, ok := t.sentAs(of, s.TypeURL(), rejection); ok {
			t.rejected = true
			by, words := st.rejecters(rejection.Reason)
			t.Rejected(t.showing, sent.refusal(words, st.sessionClient.Relay), by, sent.hashes)
		}
		if n == 0 && len(t.open) > 0 {
			t.open = slices.DeleteFunc(t.open, func(o sentNew) bool { return o.typeURL == s.TypeURL() })
			switch {
			case len(t.open) > 0 || rejection != nil:
			case st.types.waits():
				t.acked = true
			default:
				t.Acked(t.showing)
			}
		}
		st.settle(t)
	}
}

// refusal returns the words of a client that rejects the response, after the names of the resources that it rejects: the
// control plane hears of it as the answer to its newest response, which need not be the one that had them. If the words
// name some, it is these. Otherwise it may be each one that is new to the client. A relay rejects its newest response
// when one of its clients has rejected an earlier one.
func (s *sentNew) refusal(words string, relay bool) string {
	const most = 3
	var all, blamed []string
	for _, r := range s.fresh {
		all = append(all, strconv.Quote(r.Name()))
		if session.NamesResource(words, r.Name()) {
			blamed = append(blamed, strconv.Quote(r.Name()))
		}
	}
	names, more, one := blamed, 0, ""
	if len(blamed) == 0 {
		if relay {
			return words
		}
		if names, more = all, s.more; len(all)+more > 1 {
			one = "one of "
		}
	}
	if len(names) > most {
		names, more = names[:most], more+len(names)-most
	}
	of := one + xdstype.Word(s.typeURL) + " " + strings.Join(names, ", ")
	if more > 0 {
		of += fmt.Sprintf(" and %d more", more)
	}
	return of + ": " + words
}

// sentAs returns the response with something new that a NACK rejects; ok is false if there is none.
func (t *streamTrial) sentAs(of *trialType, typeURL string, n *session.NACK) (sent sentNew, ok bool) {
	if n == nil || !t.onNew() {
		return sent, false
	}
	if of.new.nonce == n.Nonce {
		return of.new, true
	}
	at := slices.IndexFunc(t.open, func(o sentNew) bool { return o.typeURL == typeURL && o.nonce == n.Nonce })
	if at < 0 {
		return sent, false
	}
	return t.open[at], true
}

// ackedAll reports whether the client has acknowledged the last response of each type that is rolled out.
func (st *stream) ackedAll(t *streamTrial) bool {
	for _, s := range st.sessions {
		if !t.RollsOut(s.TypeURL()) {
			continue
		}
		of := t.types[s.TypeURL()]
		if n, _ := s.InFlight(); n > 0 || of != nil && !of.acked || of == nil && s.Adding() {
			return false
		}
	}
	return len(t.types) > 0
}
