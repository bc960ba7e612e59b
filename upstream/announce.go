package upstream

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/internal/chain"
)

// A control plane may be another relay, which has to know through which relays the
// requests come. A stream can announce them only when it is opened. So when clients come
// through relays that the stream has not announced, it is opened again.

// chainInterval is the shortest time between two streams that were opened to announce
// other relays. So clients that make up relays cannot keep a stream from its work.
const chainInterval = 10 * time.Second

// watchChain wakes the goroutine whenever other relays may have to be announced.
func (s *Stream) watchChain() (stop func()) {
	if s.opts.Chain == nil {
		return func() {}
	}
	return s.opts.Chain.Watch(s.inbox.Wake)
}

// announceChain adds the relays behind a call to its context.
func (s *Stream) announceChain(ctx context.Context, c *call) context.Context {
	if s.opts.Chain == nil {
		return ctx
	}
	announced := s.opts.Chain.Chain()
	if s.announce != nil {
		announced, s.announce = *s.announce, nil
	}
	c.relays = announced.IDs
	return metadata.AppendToOutgoingContext(ctx, chain.Header, announced.String(), chain.IDHeader, s.opts.Chain.ID())
}

// chainChanged reports whether the stream must be opened again now because other relays are behind
// it than it has announced, and if not, after what time it must.
func (s *Stream) chainChanged(c *call, now time.Time) (need bool, wait time.Duration) {
	if s.opts.Chain == nil || !s.opts.Chain.Stale(c.relays) {
		return false, never
	}
	if wait := chainInterval - now.Sub(s.rechained); wait > 0 {
		return false, wait
	}
	// In a loop, the end of this stream also ends the streams from which the relays are known. So
	// the next stream announces the relays of now.
	s.rechained, s.announce = now, new(s.opts.Chain.Chain())
	s.own.Log(s.ctx, slog.LevelDebug, "opening a new stream, to announce other relays", "announced", c.relays)
	return true, 0
}

// loops reports whether the control plane, another relay, has refused a call because some clients would make a loop with
// it. These lose their streams, and the next call, which is made at once, serves the others.
func (s *Stream) loops(c *call) bool {
	if s.opts.Chain == nil || c.err == nil || !s.opts.Chain.Refused(c.relays, status.Convert(c.err).Message()) {
		return false
	}
	s.own.Warn("control plane refuses clients whose relays make a loop with it: their streams end, and those of others go on", "reason", Reason(c.err))
	return true
}
