package upstream

import "sync"

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
			s.inbox.Put(note{open: !certain, retry: true})
		}
	}
}
