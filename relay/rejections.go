package relay

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// Rejections of clients that the relay passes on to control planes. It acknowledges a response when it comes. If clients
// reject it after that, the control plane is sent a NACK: with the words of the client if it is the only one, and
// otherwise with how many of how many clients reject it, which ones, and why.

const (
	// mergeRejections is how long a rejection waits for those of other clients, and for what a client has not answered
	// yet.
	mergeRejections = 200 * time.Millisecond
	// minRejectionGap is how long a control plane is left alone after a NACK of a type. What comes meanwhile goes
	// together. If it has several clients, the gap doubles with each NACK that comes soon after the last one, up to
	// maxRejectionGap: one of them must not keep the control plane busy.
	minRejectionGap = time.Second
	maxRejectionGap = time.Minute
	// undecidedRejection is how long a rejection waits for a client to answer what is newer.
	undecidedRejection = 5 * time.Second
	// afterAnswer is how long what clients still reject waits after the first answer on a new stream, which clients may
	// have to answer.
	afterAnswer = time.Second
	// countShare bounds the time for counting clients: to one part in so many.
	countShare = 20
)

// rejections passes them on in a goroutine of its own, because clients' streams must not wait for streams to control
// planes.
type rejections struct {
	count func(map[downstream.ScopeType]*downstream.Rejecters)
	pass  func(of downstream.ScopeType, r session.Rejection)
	wake  chan struct{}
	stop  chan struct{}
	done  chan struct{}

	mu sync.Mutex // the last in the order of locks
	// noted has what clients have rejected since the goroutine last looked, with a client that polls, or nil. answered
	// has what control planes have answered on a new stream.
	noted    map[downstream.ScopeType]*downstream.Rejecters
	answered map[downstream.ScopeType]struct{}

	// The rest belongs to the goroutine.
	waiting map[downstream.ScopeType]*rejection
	gaps    map[downstream.ScopeType]rejectionGap
}

// rejection is one that waits to be passed on.
type rejection struct {
	since, due time.Time
	polled     *downstream.Rejecters
	// standing: nobody has rejected anything since a control plane was connected to anew.
	standing bool
}

// rejectionGap is the time after a NACK during which the next one waits.
type rejectionGap struct {
	until  time.Time
	length time.Duration
}

func newRejections(count func(map[downstream.ScopeType]*downstream.Rejecters), pass func(downstream.ScopeType, session.Rejection)) *rejections {
	r := &rejections{
		count: count, pass: pass, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		noted: map[downstream.ScopeType]*downstream.Rejecters{}, answered: map[downstream.ScopeType]struct{}{}, waiting: map[downstream.ScopeType]*rejection{}, gaps: map[downstream.ScopeType]rejectionGap{},
	}
	go r.run()
	return r
}

// add notes a rejection. It does not block.
func (r *rejections) add(of downstream.ScopeType, polled *downstream.Rejecters) {
	r.mu.Lock()
	r.noted[of] = polled
	r.mu.Unlock()
	r.look()
}

// again notes that a control plane has answered on a new stream, on which it has not heard what clients still reject. It
// does not block.
func (r *rejections) again(of downstream.ScopeType) {
	r.mu.Lock()
	r.answered[of] = struct{}{}
	r.mu.Unlock()
	r.look()
}

// look wakes the goroutine.
func (r *rejections) look() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *rejections) run() {
	defer close(r.done)
	rested := make(chan struct{}, 1)
	due, rest := time.AfterFunc(time.Hour, r.look), time.AfterFunc(time.Hour, func() { rested <- struct{}{} })
	due.Stop()
	rest.Stop()
	defer due.Stop()
	defer rest.Stop()
	for {
		select {
		case <-r.wake:
		case <-r.stop:
			return
		}
		began := time.Now()
		r.take(began)
		r.passDue(began)
		rest.Reset(countShare * time.Since(began))
		select {
		case <-rested:
		case <-r.stop:
			return
		}
		if next := r.next(); !next.IsZero() {
			due.Reset(time.Until(next))
		}
	}
}

// take moves what was noted to what waits.
func (r *rejections) take(now time.Time) {
	r.mu.Lock()
	noted, answered := r.noted, r.answered
	r.noted, r.answered = map[downstream.ScopeType]*downstream.Rejecters{}, map[downstream.ScopeType]struct{}{}
	r.mu.Unlock()
	for of := range answered {
		if r.waiting[of] == nil {
			w := r.wait(of, now, now.Add(afterAnswer))
			w.standing = true
		}
	}
	for of, polled := range noted {
		w := r.waiting[of]
		if w == nil || w.standing {
			w = r.wait(of, now, now)
		}
		if polled != nil {
			w.polled = polled
		}
	}
}

// wait adds a rejection that is due then, or when the control plane may be disturbed again.
func (r *rejections) wait(of downstream.ScopeType, now, due time.Time) *rejection {
	w := &rejection{since: now, due: due}
	if p := r.gaps[of]; p.until.After(due) {
		w.due = p.until
	}
	r.waiting[of] = w
	return w
}

// passDue passes on what is due.
func (r *rejections) passDue(now time.Time) {
	due := map[downstream.ScopeType]*downstream.Rejecters{}
	for of, w := range r.waiting {
		if !w.due.After(now) {
			due[of] = &downstream.Rejecters{}
		}
	}
	if len(due) > 0 {
		r.count(due)
	}
	for of, by := range due {
		r.decide(of, by, now)
	}
	for of, p := range r.gaps {
		if !p.until.Add(p.length).After(now) {
			delete(r.gaps, of)
		}
	}
}

// decide passes a rejection on, drops it, or has it wait.
func (r *rejections) decide(of downstream.ScopeType, by *downstream.Rejecters, now time.Time) {
	w := r.waiting[of]
	if w.polled != nil && by.Rejecting == 0 {
		by.Clients, by.Rejecting, by.Names, by.Reason, by.Whos = max(by.Clients, 1), 1, w.polled.Names, w.polled.Reason, w.polled.Whos
	}
	waited := now.Sub(w.since)
	again := now.Add(mergeRejections)
	switch {
	case by.Rejecting == 0 && by.Undecided && waited < undecidedRejection:
		w.due = again
		return
	case 0 < by.Rejecting && by.Rejecting < by.Clients && waited < mergeRejections:
		w.due = w.since.Add(mergeRejections)
		return
	}
	delete(r.waiting, of)
	if by.Rejecting == 0 {
		return // the clients have accepted something newer, or are gone
	}
	length := minRejectionGap
	if p := r.gaps[of]; p.length > 0 && by.Clients > 1 {
		length = min(2*p.length, maxRejectionGap)
	}
	r.gaps[of] = rejectionGap{now.Add(length), length}
	r.pass(of, session.Rejection{Clients: by.Rejecting, Reason: by.Reason, Words: rejectionWords(by), By: by.Whos.Rejecters()})
	if by.Undecided && waited < undecidedRejection {
		r.waiting[of] = &rejection{since: w.since, due: now.Add(length)}
	}
}

// next returns when something is due, zero for never.
func (r *rejections) next() (next time.Time) {
	earlier := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for _, w := range r.waiting {
		earlier(w.due)
	}
	for _, p := range r.gaps {
		earlier(p.until.Add(p.length))
	}
	return next
}

// rejectionWords returns the words of a NACK: those of the client if it is the only one.
func rejectionWords(by *downstream.Rejecters) string {
	reason := by.Reason
	if reason == "" {
		reason = "the client gives no reason"
	}
	if by.Clients <= 1 {
		return reason
	}
	var names []string
	for _, name := range by.Names {
		names = append(names, loglines.ClipTo(name, 100))
	}
	if by.Rejecting > len(names) {
		names = append(names, "...")
	}
	return strings.ToValidUTF8(fmt.Sprintf("%d of %d clients reject it (%s): %s", by.Rejecting, by.Clients, strings.Join(names, ", "), reason), "?")
}

// close ends the goroutine, and waits for it.
func (r *rejections) close() {
	close(r.stop)
	<-r.done
}

// passOn passes a rejection on to the control plane of a scope.
func (s *origins) passOn(of downstream.ScopeType, r session.Rejection) {
	s.mu.Lock()
	f := s.streams[of.Scope]
	s.mu.Unlock()
	if f != nil {
		f.PassOn(of.TypeURL, r)
	}
}
