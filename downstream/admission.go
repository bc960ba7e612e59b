package downstream

import (
	"container/list"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Admission of many clients that connect at once: new streams wait in line before the relay reads anything of their
// requests, and so cost no more than gRPC's own stream. The line is fair among addresses. limits.streams bounds the
// streams and addresses in it: a stream in line counts as open.

// AdmissionRefusal is why a stream is not admitted.
type AdmissionRefusal uint8

const (
	// RefusedWait means that the stream has waited for too long.
	RefusedWait AdmissionRefusal = iota
	// RefusedMemory says that there is no memory for it.
	RefusedMemory
	numAdmissionRefusals
)

var admissionRefusals = [numAdmissionRefusals]string{RefusedWait: "wait", RefusedMemory: "memory"}

// String returns the refusal's name in metrics and logs.
func (r AdmissionRefusal) String() string { return admissionRefusals[r] }

// admissionStats count admissions and refusals for all listeners.
type admissionStats struct {
	waiting atomic.Int64
	waited  atomic.Uint64
	refused [numAdmissionRefusals]atomic.Uint64
}

func (s *admissionStats) read() AdmissionStats {
	is := AdmissionStats{Waiting: int(s.waiting.Load()), Waited: s.waited.Load(), Refused: make(map[string]uint64, numAdmissionRefusals)}
	for r := range numAdmissionRefusals {
		is.Refused[r.String()] = s.refused[r].Load()
	}
	return is
}

// AdmissionStats are the counts of all listeners.
type AdmissionStats struct {
	Waiting int    // streams in line now
	Waited  uint64 // streams that were in line and were admitted, since the start
	// Refused is how many streams were not admitted since the start, by the AdmissionRefusal's name.
	Refused map[string]uint64
}

// admission is the line of one listener.
type admission struct {
	Admission
	pace *rate.Limiter // nil without a limit

	mu sync.Mutex
	// lines are those of the addresses that have waiting streams. turns are the same lines in the order of their turns.
	lines   map[netip.Prefix]*addressLine
	turns   list.List // of *addressLine
	waiting int
	timer   *time.Timer // nil before the first line; armed while there are lines
}

// addressLine has the waiting streams of one address, the first to arrive first.
type addressLine struct {
	address netip.Prefix
	turn    *list.Element // in turns
	waiters list.List     // of chan struct{}
}

func newAdmission(a Admission) *admission {
	q := &admission{Admission: a}
	if a.StreamsPerSecond > 0 {
		q.pace = rate.NewLimiter(rate.Limit(a.StreamsPerSecond), max(a.Burst, 1))
		q.lines = map[netip.Prefix]*addressLine{}
	}
	return q
}

// join puts a stream in line. If it does not have to wait, it returns nil.
func (q *admission) join(address netip.Prefix) (line *addressLine, place *list.Element, admitted chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting == 0 && q.pace.Allow() {
		return nil, nil, nil
	}
	line = q.lines[address]
	if line == nil {
		line = &addressLine{address: address}
		line.turn = q.turns.PushBack(line)
		q.lines[address] = line
	}
	admitted = make(chan struct{})
	place = line.waiters.PushBack(admitted)
	q.waiting++
	if q.waiting == 1 {
		q.arm()
	}
	return line, place, admitted
}

// leave takes a stream out of the line. It returns false if the stream was admitted.
func (q *admission) leave(line *addressLine, place *list.Element, admitted chan struct{}) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-admitted:
		return false
	default:
	}
	q.remove(line, place)
	return true
}

// remove takes a stream out of the line. The caller holds mu.
func (q *admission) remove(line *addressLine, place *list.Element) {
	line.waiters.Remove(place)
	q.waiting--
	if line.waiters.Len() == 0 {
		q.turns.Remove(line.turn)
		delete(q.lines, line.address)
	}
	if q.waiting == 0 { // the map has grown with the addresses
		q.lines = map[netip.Prefix]*addressLine{}
	}
}

// admitEvery is the shortest time between two moves of the line.
const admitEvery = time.Millisecond

// arm has the line move when the next stream may be admitted. The caller holds mu.
func (q *admission) arm() {
	missing := max(0, 1-q.pace.Tokens())
	in := max(admitEvery, time.Duration(missing/float64(q.StreamsPerSecond)*float64(time.Second)))
	if q.timer == nil {
		q.timer = time.AfterFunc(in, q.move)
	} else {
		q.timer.Reset(in)
	}
}

// move admits as many streams as it may: one of each address in turn.
func (q *admission) move() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.waiting > 0 && q.pace.Allow() {
		turn := q.turns.Front()
		line, _ := turn.Value.(*addressLine)
		place := line.waiters.Front()
		admitted, _ := place.Value.(chan struct{})
		q.turns.MoveToBack(turn)
		q.remove(line, place)
		close(admitted)
	}
	if q.waiting > 0 {
		q.arm()
	}
}

// backlog returns how long the current line will take.
func (q *admission) backlog() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return time.Duration(float64(q.waiting) / float64(q.StreamsPerSecond) * float64(time.Second))
}

// When refused streams may retry: at the earliest after retryLeast, and at the latest after retryMost, however long the
// line is. If memory is short, clients wait for retryMemory, until others have left.
const (
	retryLeast  = time.Second
	retryMost   = 30 * time.Second
	retryMemory = 10 * time.Second
)

// refusedStream is why a stream was not admitted. It is gRPC's UNAVAILABLE.
type refusedStream struct {
	refusal AdmissionRefusal
	text    string
	// retry is when the client may retry.
	retry time.Duration
}

// Error implements error.
func (e *refusedStream) Error() string { return e.text }

// GRPCStatus adds the time of the retry, as google.rpc.RetryInfo.
func (e *refusedStream) GRPCStatus() *status.Status {
	st := status.New(codes.Unavailable, e.text)
	if with, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(e.retry)}); err == nil {
		return with
	}
	return st
}

// refused returns why a stream is not admitted, with a retry time that differs from stream to stream.
func refused(r AdmissionRefusal, text string, after time.Duration) *refusedStream {
	after = min(max(after, retryLeast), retryMost)
	return &refusedStream{refusal: r, text: text, retry: after/2 + rand.N(after)}
}

// admit waits until a stream with this context is admitted, or returns why it is not.
func (q *admission) admit(ctx context.Context, stats *admissionStats) *refusedStream {
	if e := q.full(); e != nil {
		return e
	}
	if q.pace == nil {
		return nil
	}
	var address netip.Prefix
	if p, ok := peer.FromContext(ctx); ok {
		address = groupOf(p.Addr)
	}
	line, place, admitted := q.join(address)
	if admitted == nil {
		return nil
	}
	stats.waiting.Add(1)
	defer stats.waiting.Add(-1)
	timer := time.NewTimer(q.Wait)
	defer timer.Stop()
	select {
	case <-admitted:
	case <-timer.C:
		if q.leave(line, place, admitted) {
			return refused(RefusedWait, fmt.Sprintf("too many streams at once: this one waited in line for %v (admission.wait)", q.Wait), q.backlog())
		}
	case <-ctx.Done(): // the client has gone, so the text does not matter
		if q.leave(line, place, admitted) {
			return &refusedStream{refusal: numAdmissionRefusals, text: ctx.Err().Error()}
		}
	}
	stats.waited.Add(1)
	return q.full()
}

func (q *admission) full() *refusedStream {
	if q.Full == nil || !q.Full() {
		return nil
	}
	return refused(RefusedMemory, "the relay has no memory for further streams (admission.memory)", retryMemory)
}
