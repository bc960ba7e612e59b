package upstream

import (
	"github.com/xds-relay/xds-relay/internal/taster"

	"github.com/xds-relay/xds-relay/upstream/session"
)

// Before a response is stored, the taster checks each resource whose content the stream does not hold.
// The receiving goroutine does that without Stream.mu, so the rest of the stream goes on, and other
// streams do not wait.

// taste checks the resources of a response that are new, or have changed.
func (s *Stream) taste(r *session.Response) {
	if check := s.opts.Tally.Mode(); check != taster.Off && s.markHeld(r) {
		r.Taste(check)
	}
}

// markHeld marks the resources of a response whose content the stream holds. It returns false if
// the type was not requested, so that nothing of the response will be stored.
func (s *Stream) markHeld(r *session.Response) (requested bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.feeds[r.TypeURL]
	if f == nil || !f.begun() {
		return false
	}
	r.MarkHeld(f.topics)
	return true
}

// report logs what clients would reject in a response. It is called after the response was
// processed.
func (s *Stream) report(r *session.Response) {
	tally := s.opts.Tally
	_, failed := r.Checked()
	for name, found := range r.Findings {
		if found != nil {
			failed--
			tally.Failed(s.scope.Partition, r.TypeURL, name, found, failed)
		} else {
			tally.Passed(s.scope.Partition, r.TypeURL, name)
		}
	}
}
