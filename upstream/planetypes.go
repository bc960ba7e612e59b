package upstream

import (
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/internal/loglines"
)

// planeTypes are the types that one control plane has answered, over all of its streams, and
// whether it ends streams because of others. The zero value knows nothing. See [Aggregated].
type planeTypes struct {
	lines loglines.Shared // about types that get a stream of their own

	mu        sync.RWMutex // comes last in the order of locks
	answered  map[string]struct{}
	endsUntil time.Time
}

const (
	// maxAnswered bounds the types that are remembered, because a control plane may answer
	// types that clients make up. Other types count as never answered.
	maxAnswered = 4096
	// endsFor is how long the relay remembers that a control plane ends streams. A later release
	// of the control plane may not.
	endsFor = 10 * time.Minute
)

func (p *planeTypes) add(typeURL string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answered == nil {
		p.answered = map[string]struct{}{}
	}
	if len(p.answered) < maxAnswered {
		p.answered[typeURL] = struct{}{}
	}
}

func (p *planeTypes) hasAnswered(typeURL string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	_, has := p.answered[typeURL]
	return has
}

// hasEnded notes that the control plane has ended a stream on which it had never answered a type.
func (p *planeTypes) hasEnded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endsUntil = time.Now().Add(endsFor)
}

// ends reports whether the control plane ends such streams.
func (p *planeTypes) ends() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return time.Now().Before(p.endsUntil)
}

// blamesRequest reports whether a control plane that ends a stream with this error may have done so
// because of what was requested on it, rather than because it shuts down, is overloaded, or does
// not admit the relay.
func blamesRequest(err error) bool {
	st, ok := status.FromError(err)
	if !ok || errors.Is(err, io.EOF) {
		return false
	}
	switch st.Code() {
	case codes.Unknown, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.OutOfRange, codes.Internal:
		return true
	default:
		return false
	}
}
