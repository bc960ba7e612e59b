package upstream

import (
	"sync"
	"time"
)

// peers are the streams of one scope to one control plane: of several types, and names
// streams. That one of them is open or answered says that the others need not wait until they
// try again. Failover goes by the first answer; the rest is to follow.
type peers struct {
	mu      sync.Mutex // comes after Stream.mu
	streams map[*Stream]struct{}
}

func (p *peers) join(s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams == nil {
		p.streams = map[*Stream]struct{}{}
	}
	p.streams[s] = struct{}{}
}

func (p *peers) leave(s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.streams, s)
}

// reached has the others try again at once, as one of them is open or, for certain, was
// answered.
func (p *peers) reached(by *Stream, certain bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.streams {
		if s != by {
			s.note(note{open: !certain, retry: true})
		}
	}
}

// retryNow tries again at once, if there was no stream: that the control plane cannot be
// reached is not so any more. Of a stream that is only open that is not certain: it may
// be refused, and then they are not to wake each other without end. The caller holds
// mu.
func (s *Stream) retryNow(certain bool) {
	now := time.Now()
	if s.live || !now.Before(s.retryAt) || !certain && now.Sub(s.retried) < s.opts.BackoffMax {
		return
	}
	s.retryAt, s.down, s.retried = time.Time{}, nil, now
	for _, f := range s.feeds {
		f.topics.forgetFailures()
	}
}
