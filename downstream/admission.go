package downstream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Admission of many clients that connect at once: new streams wait in line before the relay reads anything of their
// requests, and so cost no more than gRPC's own stream. The streams in line take turns: see turns. limits.streams bounds
// the streams in it: a stream in line counts as open.

// AdmissionRefusal is why a stream is not admitted.
type AdmissionRefusal uint8

const (
	// RefusedWait means that the stream has waited for too long, or that it would.
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

	mu    sync.Mutex
	line  turns
	timer *time.Timer // nil before the first stream in line; armed while there are any
}

func newAdmission(a Admission) *admission {
	q := &admission{Admission: a}
	if a.StreamsPerSecond > 0 {
		q.pace = rate.NewLimiter(rate.Limit(a.StreamsPerSecond), max(a.Burst, 1))
	}
	return q
}

// duration returns how long so many streams take.
func (q *admission) duration(streams int) time.Duration {
	return time.Duration(float64(streams) / float64(q.StreamsPerSecond) * float64(time.Second))
}

// join puts a stream in line. place is nil if the stream does not have to wait, and also if it would have to wait for
// longer than it may: then late is for how long. of returns whom the stream belongs to; few streams need that.
func (q *admission) join(of func() party) (place *waiter, late time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.line.waiting() == 0 && q.pace.Allow() {
		return nil, 0
	}
	conn := q.line.of(of())
	if in := q.duration(conn.next()); in > q.Wait {
		return nil, in
	}
	place = q.line.add(conn)
	if q.line.waiting() == 1 {
		q.arm()
	}
	return place, 0
}

// leave takes a stream out of the line, and returns for how long the next stream of its connection would wait. admitted
// is true if the stream was admitted.
func (q *admission) leave(place *waiter) (late time.Duration, admitted bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-place.admitted:
		return 0, true
	default:
	}
	q.line.remove(place)
	return q.duration(place.conn.next()), false
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

// move admits as many streams as it may. These are no more than Burst.
func (q *admission) move() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.line.waiting() > 0 && q.pace.Allow() {
		place := q.line.turn()
		q.line.remove(place)
		close(place.admitted)
	}
	if q.line.waiting() > 0 {
		q.arm()
	}
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

// admit waits until a stream is admitted, or returns why it is not. ctx is the stream's, and of returns whom it belongs to.
func (q *admission) admit(ctx context.Context, of func() party, stats *admissionStats) *refusedStream {
	if e := q.full(); e != nil {
		return e
	}
	if q.pace == nil {
		return nil
	}
	place, late := q.join(of)
	switch {
	case late > 0:
		return refused(RefusedWait, fmt.Sprintf("too many streams at once: this one would wait in line for %v, but admission.wait is %v", late.Round(time.Millisecond), q.Wait), late)
	case place == nil:
		return nil
	}
	stats.waiting.Add(1)
	defer stats.waiting.Add(-1)
	timer := time.NewTimer(q.Wait)
	defer timer.Stop()
	select {
	case <-place.admitted:
	case <-timer.C:
		if late, admitted := q.leave(place); !admitted {
			return refused(RefusedWait, fmt.Sprintf("too many streams at once: this one waited in line for %v (admission.wait)", q.Wait), late)
		}
	case <-ctx.Done(): // the client has gone, so the text does not matter
		if _, admitted := q.leave(place); !admitted {
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
