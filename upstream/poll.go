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

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
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

// asker asks once.
type asker interface {
	// ask returns what is answered: nil if there is nothing new.
	ask(ctx context.Context, path string, r *discoveryv3.DiscoveryRequest) (*answerJSON, error)
}

// polled is what a poll has brought.
type polled struct {
	// question is the number of the question: each change of the names is a new one.
	question int
	response *session.Response // nil: nothing new
}

// pollStream is one type's polling. What is sent says what is asked for; what is
// received are the answers that say something new.
//
// A request with names that are new is made at once. It goes without a version:
// go-control-plane, and every control plane that looks at versions alone, would
// say that there is nothing new. A request that is in flight meanwhile has a while
// to be answered, so that names that keep coming do not keep answers away; if it
// is held for longer than that, it is given up.
//
// An ACK or a NACK goes with the next poll.
type pollStream struct {
	ctx      context.Context
	cancel   context.CancelFunc
	path     string
	asker    asker
	interval time.Duration

	out  chan polled
	done chan struct{} // closed when err is set and nothing is in flight any more
	err  error
	// wake has room for one: what is asked for has changed, or has come to an end.
	wake chan struct{}

	mu      sync.Mutex
	node    *corev3.Node
	request *discoveryv3.DiscoveryRequest // the last, nil before the first
	number  int                           // of the question
	// fresh says that the present question has names that are new.
	fresh bool
	// timed says that the last response had something with a TTL. That there is
	// nothing new would not renew it, so that polls go without a version.
	timed bool
	named bool // there was a name: from then on, no names mean nothing
	ended bool // by CloseSend
	// nonce is that of the last response that was handed out. The next poll waits
	// until it was accepted or rejected.
	nonce string
	// The request in flight:
	giveUp      context.CancelFunc // nil if there is none
	asked       time.Time          // when the last one was made
	askedNumber int                // its question
	hold        time.Duration      // for how long it goes on if there is already another
	timer       *time.Timer        // gives it up
}

// asking is a request in flight.
type asking struct {
	ctx      context.Context
	request  *discoveryv3.DiscoveryRequest
	question int // which it asks
}

// For how long a request goes on for which there is already another. One with a
// version may be held until there is something new. One without is answered, if it
// takes a while to make the answer: names that keep coming faster than that must
// not keep it away.
const (
	holdKnown   = time.Second
	holdUnknown = 10 * time.Second
)

func newPollStream(ctx context.Context, path string, a asker, interval time.Duration) *pollStream {
	p := &pollStream{
		path: path, asker: a, interval: interval,
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
	if req.GetNode() != nil {
		p.node = req.GetNode()
	}
	names := namesOf(req)
	if first := p.request == nil; first || !slices.Equal(namesOf(p.request), names) {
		p.number++
		p.fresh = p.fresh || !first && grown(namesOf(p.request), names)
		if p.giveUp != nil && p.timer == nil {
			p.timer = time.AfterFunc(p.hold-time.Since(p.asked), p.giveUp)
		}
	}
	p.named = p.named || len(names) > 0
	p.request = req
	p.wakeUp()
	return nil
}

// namesOf returns the names in a request, in order: all requests of a stream have the same
// dynamic parameters.
func namesOf(r *discoveryv3.DiscoveryRequest) []string {
	names := slices.Clone(r.GetResourceNames())
	for _, l := range r.GetResourceLocators() {
		names = append(names, l.GetName())
	}
	slices.Sort(names)
	return names
}

// grown says whether there are names that were not there before. Both are sorted.
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
	version := "" // of the last response that was handed out
	known := 0    // the question that it answered
	nonce := 0
	for {
		now, err := p.next()
		if err != nil {
			p.err = err
			return
		}
		got, err := p.asker.ask(now.ctx, p.path, now.request)
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
			// A control plane that does not look at versions, or has sent again what
			// was rejected.
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
func (p *pollStream) next() (asking, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		p.mu.Lock()
		wait, ok := p.due()
		if p.ended {
			p.mu.Unlock()
			return asking{}, io.EOF
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
			return asking{}, status.FromContextError(p.ctx.Err()).Err()
		}
	}
}

// begin makes the request that is due. The caller holds mu.
func (p *pollStream) begin() asking {
	req := p.compose()
	p.hold = holdKnown
	if req.GetVersionInfo() == "" {
		p.hold = holdUnknown
	}
	p.asked, p.askedNumber = time.Now(), p.number
	ctx, cancel := context.WithCancel(p.ctx)
	p.giveUp = cancel
	return asking{ctx, req, p.number}
}

// due returns how long the next request has to wait, if there is to be one. The
// caller holds mu.
func (p *pollStream) due() (wait time.Duration, ok bool) {
	switch {
	case p.request == nil, p.named && len(namesOf(p.request)) == 0:
		return 0, false
	case p.askedNumber != p.number || p.fresh:
		return 0, true
	case p.request.GetResponseNonce() != p.nonce:
		return 0, false
	}
	// From the beginning of one request to that of the next: who holds requests is
	// asked again at once. Jitter keeps relays apart that began together.
	return time.Until(p.asked.Add(p.interval - rand.N(p.interval/10+1))), true
}

// compose makes the request. Each is by itself, and so has all that a stream would
// only say once. The caller holds mu.
func (p *pollStream) compose() *discoveryv3.DiscoveryRequest {
	req := &discoveryv3.DiscoveryRequest{
		Node:             p.node,
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

// finish takes note that nothing is in flight any more. It returns whether the
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

// settle takes note of the answer to a question, and of the response in it, if any.
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

// nothingNew takes note of an answer that says that there is nothing newer than the
// version in the request. If something newer was rejected, some of that is held, so
// that the version is asked for as if it were not known.
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

// frame receives a message as it came over the wire, or what a poll has brought.
type frame struct {
	buf  mem.Buffer
	poll *polled // nil unless it is that
	// parsed is the response in buf, once it is parsed.
	parsed *session.Response
}

// idleResponses has *session.Response that are free. Their lists have room for as many resources as
// control planes send in one response, which otherwise is garbage for each response.
var idleResponses = sync.Pool{New: func() any { return &session.Response{} }}

// parse returns the response, nil if a poll has brought nothing new.
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

// free gives the bytes and the response back: nothing may refer to them any more.
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
