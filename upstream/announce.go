package upstream

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/xds-relay/xds-relay/chain"
)

// A control plane may be another relay, which has to know through which relays it
// is asked. A stream can say so only when it is opened, so one whose clients come
// through others than it has said is opened anew.

// chainInterval is the shortest time between two streams that were opened because
// of other relays: whoever makes up relays must not keep a stream from its work.
const chainInterval = 10 * time.Second

// watchChain has the goroutine woken when other relays are to be announced.
func (s *Stream) watchChain() (stop func()) {
	if s.opts.Chain == nil {
		return func() {}
	}
	return s.opts.Chain.Watch(s.inbox.Wake)
}

// announceChain adds to a call's context which relays are behind it.
func (s *Stream) announceChain(ctx context.Context, c *call) context.Context {
	if s.opts.Chain == nil {
		return ctx
	}
	announced := s.opts.Chain.Chain()
	if s.announce != nil {
		announced, s.announce = *s.announce, nil
	}
	c.relays = announced.IDs
	return metadata.AppendToOutgoingContext(ctx, chain.Header, announced.String())
}

// chainChanged says that a new stream is needed because other relays are behind
// it than it has said, or in what time it will be.
func (s *Stream) chainChanged(c *call, now time.Time) (need bool, wait time.Duration) {
	if s.opts.Chain == nil || !s.opts.Chain.Stale(c.relays) {
		return false, never
	}
	if wait := chainInterval - now.Sub(s.rechained); wait > 0 {
		return false, wait
	}
	// In a loop the end of this stream ends those that made the relays known.
	s.rechained, s.announce = now, new(s.opts.Chain.Chain())
	s.own.Log(s.ctx, slog.LevelDebug, "opening a new stream, to announce other relays", "announced", c.relays)
	return true, 0
}
