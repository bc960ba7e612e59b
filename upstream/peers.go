package upstream

import "sync"

// peers are the streams of one scope to one control plane: those of several types, and names
// streams. When one of them is open or answered, the others need not wait for their next
// attempt. The failover decision needs the first answer only, but the other streams must follow.
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

// reached makes the other streams try again at once, because one is open or, if certain, was
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
