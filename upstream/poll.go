package upstream

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/upstream/session"
)

// Polling in the form of a gRPC stream, so that a Stream and its sessions need not
// know of it.

// poller makes single polls.
type poller interface {
	// poll returns the answer to a request, nil if there is nothing new.
	poll(ctx context.Context, path string, r *discoveryv3.DiscoveryRequest) (*answerJSON, error)
}

// polled is the result of a poll.
type polled struct {
	// question is the number of the question: each change of the names makes a new one.
	question int
	response *session.Response // nil: nothing new
}

// pollStream polls for one type. SendMsg sets the names to poll for, and RecvMsg returns the
// results of polls.
//
// If there are new names, it polls at once, and without a version: otherwise
// go-control-plane, and every control plane that only compares versions, would
// answer that there is nothing new. If another request is in flight, that one gets some time to
// be answered, so that names that keep coming do not hold up all answers. If the control plane
// holds it for longer, it is given up.
//
// An ACK or a NACK goes with the next poll.
type pollStream struct {
	ctx      context.Context
	cancel   context.CancelFunc
	path     string
	poller   poller
	interval time.Duration

	out  chan polled
	done chan struct{} // closed when err is set and no request is in flight any more
	err  error
	// wake has room for one element, and gets it when the request has changed or the stream was closed.
	wake chan struct{}

	mu      sync.Mutex
	request *discoveryv3.DiscoveryRequest // the last, nil before the first
	number  int                           // of the question
	// fresh says that the present question has new names, or must be polled without a version for
	// another reason.
	fresh bool
	// timed says that the last response had a resource with a TTL. The answer that there is
	// nothing new would not renew it, so polls go without a version.
	timed bool
	named bool // there was a name: from then on, a request without names subscribes to nothing
	ended bool // by CloseSend
	// nonce is that of the last response that was passed on. The next poll waits
	// until the session has accepted or rejected the response.
	nonce string
	// The request in flight:
	giveUp     context.CancelFunc // nil if there is none
	sentAt     time.Time          // when the last one was made
	sentNumber int                // its question
	hold       time.Duration      // for how long it goes on once there is a newer question
	timer      *time.Timer        // gives it up
}

// pollRequest is a request in flight.
type pollRequest struct {
	ctx      context.Context
	request  *discoveryv3.DiscoveryRequest
	question int // that it is for
}

// For how long a request goes on once there is a newer question. The control plane may hold a
// request with a version until there is something new. It answers a request without a version, but
// may need some time for that: names that keep coming faster must not hold up the answer.
const (
	holdKnown   = time.Second
	holdUnknown = 10 * time.Second
)

func newPollStream(ctx context.Context, path string, by poller, interval time.Duration) *pollStream {
	p := &pollStream{
		path: path, poller: by, interval: interval,
		out: make(chan polled), done: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	go p.run()
	return p
}

// SendMsg implements grpc.ClientStream.
func (p *pollStream) SendMsg(m any) error {
	req, ok := m.(*discoveryv3.DiscoveryRequest)
	if !ok {
		return fmt.Errorf("upstream: cannot poll with a %T (want a DiscoveryRequest)", m)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.ctx.Err() != nil {
		return io.EOF
	}
	names := namesOf(req)
	if first := p.request == nil; first || !slices.Equal(namesOf(p.request), names) {
		p.number++
		p.fresh = p.fresh || !first && grown(namesOf(p.request), names)
		if p.giveUp != nil && p.timer == nil {
			p.timer = time.AfterFunc(p.hold-time.Since(p.sentAt), p.giveUp)
		}
	}
	p.named = p.named || len(names) > 0
	p.request = req
	p.wakeUp()
	return nil
}

// namesOf returns the names in a request, in order. It leaves out dynamic parameters, which are the
// same in all requests of a stream.
func namesOf(r *discoveryv3.DiscoveryRequest) []string {
	names := slices.Clone(r.GetResourceNames())
	for _, l := range r.GetResourceLocators() {
		names = append(names, l.GetName())
	}
	slices.Sort(names)
	return names
}

// grown reports whether now has names that before does not have. Both are sorted.
func grown(before, now []string) bool {
	return slices.ContainsFunc(now, func(name string) bool {
		_, known := slices.BinarySearch(before, name)
		return !known
	})
}

// RecvMsg implements grpc.ClientStream.
func (p *pollStream) RecvMsg(m any) error {
	f, ok := m.(*frame)
	if !ok {
		return fmt.Errorf("upstream: cannot receive a poll's answer into a %T (want a *frame)", m)
	}
	select {
	case answer := <-p.out:
		f.poll = &answer
		return nil
	case <-p.done:
		return p.err
	}
}

// CloseSend implements grpc.ClientStream.
func (p *pollStream) CloseSend() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.giveUp != nil {
		p.giveUp()
	}
	p.wakeUp()
	return nil
}

// Context implements grpc.ClientStream.
func (p *pollStream) Context() context.Context { return p.ctx }

// Header implements grpc.ClientStream.
func (p *pollStream) Header() (metadata.MD, error) { return nil, nil }

// Trailer implements grpc.ClientStream.
func (p *pollStream) Trailer() metadata.MD { return nil }

var _ grpc.ClientStream = (*pollStream)(nil)

// question returns the number of the present question.
func (p *pollStream) question() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.number
}

func (p *pollStream) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run polls until the stream ends.
func (p *pollStream) run() {
	defer close(p.done)
	defer p.cancel()
	version := "" // of the last response that was passed on
	known := 0    // the question that it answered
	nonce := 0
	for {
		now, err := p.next()
		if err != nil {
			p.err = err
			return
		}
		got, err := p.poller.poll(now.ctx, p.path, now.request)
		if givenUp := p.finish(); err != nil {
			if givenUp && p.ctx.Err() == nil {
				continue
			}
			p.err = err
			return
		}
		req, question := now.request, now.question
		answer := polled{question: question}
		switch {
		case got == nil:
			p.nothingNew(req, question)
		case !got.timed() && got.version != "" && (got.version == req.GetVersionInfo() || got.version == version && question == known):
			// The control plane does not compare versions, or has sent again a response that was
			// rejected.
			p.settle(question, nil)
		default:
			if answer.response, err = got.decode(req.GetTypeUrl()); err != nil {
				p.err = err
				return
			}
			nonce++
			answer.response.Nonce = strconv.Itoa(nonce)
			version, known = got.version, question
			p.settle(question, answer.response)
		}
		select {
		case p.out <- answer:
		case <-p.ctx.Done():
			p.err = status.FromContextError(p.ctx.Err()).Err()
			return
		}
	}
}

// next waits until a request is due, and returns it.
func (p *pollStream) next() (pollRequest, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		p.mu.Lock()
		wait, ok := p.due()
		if p.ended {
			p.mu.Unlock()
			return pollRequest{}, io.EOF
		}
		if ok && wait <= 0 {
			defer p.mu.Unlock()
			return p.begin(), nil
		}
		p.mu.Unlock()
		if ok {
			timer.Reset(wait)
		}
		select {
		case <-p.wake:
		case <-timer.C:
		case <-p.ctx.Done():
			return pollRequest{}, status.FromContextError(p.ctx.Err()).Err()
		}
	}
}

// begin makes the request that is due. The caller holds mu.
func (p *pollStream) begin() pollRequest {
	req := p.compose()
	p.hold = holdKnown
	if req.GetVersionInfo() == "" {
		p.hold = holdUnknown
	}
	p.sentAt, p.sentNumber = time.Now(), p.number
	ctx, cancel := context.WithCancel(p.ctx)
	p.giveUp = cancel
	return pollRequest{ctx, req, p.number}
}

// due returns how long the next request has to wait. It is not ok if there must not be one yet.
// The caller holds mu.
func (p *pollStream) due() (wait time.Duration, ok bool) {
	switch {
	case p.request == nil, p.named && len(namesOf(p.request)) == 0:
		return 0, false
	case p.sentNumber != p.number || p.fresh:
		return 0, true
	case p.request.GetResponseNonce() != p.nonce:
		return 0, false
	}
	// The interval is from the beginning of one request to that of the next: a control plane that
	// holds requests is polled again at once. Jitter keeps relays apart that began together.
	return time.Until(p.sentAt.Add(p.interval - rand.N(p.interval/10+1))), true
}

// compose makes the request. Each poll stands for itself, and so has everything. The caller holds mu.
func (p *pollStream) compose() *discoveryv3.DiscoveryRequest {
	req := &discoveryv3.DiscoveryRequest{
		Node:             p.request.GetNode(),
		TypeUrl:          p.request.GetTypeUrl(),
		ResourceNames:    p.request.GetResourceNames(),
		ResourceLocators: p.request.GetResourceLocators(),
	}
	if !p.fresh {
		req.ErrorDetail = p.request.GetErrorDetail()
	}
	if !p.fresh && !p.timed {
		req.VersionInfo = p.request.GetVersionInfo()
	}
	return req
}

// finish records that no request is in flight any more. It returns whether the
// request was given up.
func (p *pollStream) finish() (givenUp bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		givenUp = !p.timer.Stop()
		p.timer = nil
	}
	p.giveUp()
	p.giveUp = nil
	return givenUp || p.ended
}

// settle records the answer to a question, and the response in it, if any.
func (p *pollStream) settle(question int, r *session.Response) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if question == p.number {
		p.fresh = false
	}
	if r != nil {
		p.nonce = r.Nonce
		p.timed = slices.ContainsFunc(r.Resources, func(r session.Resource) bool { return r.TTL > 0 })
	}
}

// nothingNew records the answer that there is nothing newer than the version in the request. If
// the request was a NACK, the relay holds a part of the newer version that it rejected. So the next
// poll is without a version, to get all resources of the older one.
func (p *pollStream) nothingNew(req *discoveryv3.DiscoveryRequest, question int) {
	p.settle(question, nil)
	if req.GetErrorDetail() == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if question == p.number {
		p.request = proto.CloneOf(p.request)
		p.request.ErrorDetail = nil
		p.fresh = true
	}
}

// frame is a received message, encoded, or the result of a poll.
type frame struct {
	buf  mem.Buffer
	poll *polled // nil on a gRPC stream
	// parsed is the response in buf, once it is parsed.
	parsed *session.Response
}

// idleResponses has *session.Response that are free. Their lists have room for as many resources as
// control planes send in one response. Without the pool, these lists were garbage after each response.
var idleResponses = sync.Pool{New: func() any { return &session.Response{} }}

// parse returns the response. It is nil if a poll has brought nothing new.
func (f *frame) parse(form *form) (*session.Response, error) {
	if f.poll != nil {
		return f.poll.response, nil
	}
	b := f.buf.ReadOnlyData()
	f.parsed = idleResponses.Get().(*session.Response)
	if err := form.spoken.ParseInto(f.parsed, b); err != nil {
		return nil, fmt.Errorf("response of %d bytes cannot be decoded: %w", len(b), err)
	}
	return f.parsed, nil
}

// free returns the bytes and the response to their pools. Nothing may refer to them any more.
func (f *frame) free() {
	if f.parsed != nil {
		f.parsed.Clear()
		idleResponses.Put(f.parsed)
		f.parsed = nil
	}
	if f.buf != nil {
		f.buf.Free()
		f.buf = nil
	}
}
