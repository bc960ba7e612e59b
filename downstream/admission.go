package downstream

import (
	"context"
	"fmt"
	"math/rand/v2"
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
	line line
}

func newAdmission(a Admission) *admission {
	q := &admission{Admission: a}
	if a.StreamsPerSecond > 0 {
		q.line.pace = rate.NewLimiter(rate.Limit(a.StreamsPerSecond), max(a.Burst, 1))
	}
	return q
}

// duration returns how long so many streams take at least; 0 without a rate.
func (q *admission) duration(streams int) time.Duration {
	if q.line.pace == nil {
		return 0
	}
	return time.Duration(float64(streams) / float64(q.StreamsPerSecond) * float64(time.Second))
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

// admit waits until a stream is admitted, and has the place at, which is new; or returns why it is not admitted. ctx is
// the stream's, and of returns whom it belongs to. Without a rate, streams wait for as long as it takes: the line always
// moves.
func (q *admission) admit(ctx context.Context, at *place, of func() party, stats *admissionStats) *refusedStream {
	if e := q.full(); e != nil {
		return e
	}
	var late time.Duration
	entered := q.line.enter(at, of, func(turns int) bool {
		if in := q.duration(turns); in > q.Wait {
			late = in
		}
		return late == 0
	})
	switch {
	case !entered:
		return refused(RefusedWait, fmt.Sprintf("too many streams at once: this one would wait in line for %v, but admission.wait is %v", late.Round(time.Millisecond), q.Wait), late)
	case at.admitted == nil:
		return nil
	}
	stats.waiting.Add(1)
	defer stats.waiting.Add(-1)
	var over <-chan time.Time
	if q.line.pace != nil {
		timer := time.NewTimer(q.Wait)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-at.admitted:
	case <-over:
		if admitted, turns := at.leave(); !admitted {
			return refused(RefusedWait, fmt.Sprintf("too many streams at once: this one waited in line for %v (admission.wait)", q.Wait), q.duration(turns))
		}
	case <-ctx.Done(): // the client has gone, so the text does not matter
		if admitted, _ := at.leave(); admitted {
			at.done()
		}
		return &refusedStream{refusal: numAdmissionRefusals, text: ctx.Err().Error()}
	}
	stats.waited.Add(1)
	if e := q.full(); e != nil {
		at.done()
		return e
	}
	return nil
}

func (q *admission) full() *refusedStream {
	if q.Full == nil || !q.Full() {
		return nil
	}
	return refused(RefusedMemory, "the relay has no memory for further streams (admission.memory)", retryMemory)
}
