package upstream

import (
	"bytes"

	"github.com/xds-relay/xds-relay/taster"
)

// Before anything of a response is stored, the stream has the taster look at each resource whose
// content it does not hold. That is done by the goroutine that receives, without Stream.mu: the
// rest of the stream goes on, and other streams have nothing to do with it.

// taste says whether a resource was looked at as clients would.
type taste uint8

const (
	untasted taste = iota
	// held: the stream holds the same content, so that was looked at when it came.
	held
	// tasted: it was looked at in this response.
	tasted
)

// canonical returns what a resource is kept under.
func (r *resource) canonical() string {
	if r.key == "" {
		r.key = canonical(r.name)
	}
	return r.key
}

// tasteAs looks at the value of a resource as clients of its type would.
func (r *resource) tasteAs(of taster.Type, check taster.Mode) {
	r.verdict, r.taste = check.Taste(of, r.value), tasted
}

// taste looks at the resources of a response that are new, or have changed.
func (s *Stream) taste(r *response) {
	check := s.opts.Tally.Mode()
	if check == taster.Off || !s.markHeld(r) {
		return
	}
	of := taster.Of(r.typeURL)
	for i := range r.resources {
		if res := &r.resources[i]; res.taste == untasted && res.canBeTasted(r.typeURL) {
			res.tasteAs(of, check)
		}
	}
}

// canBeTasted reports whether a resource has a value of the response's type.
func (r *resource) canBeTasted(typeURL string) bool {
	return r.err == nil && r.present && r.typeURL == typeURL
}

// markHeld marks the resources of a response whose content the stream holds. It returns false if
// the type was not requested, so that nothing of the response will be stored.
func (s *Stream) markHeld(r *response) (requested bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.feeds[r.typeURL]
	if f == nil || !f.begun() {
		return false
	}
	for i := range r.resources {
		res := &r.resources[i]
		if !res.canBeTasted(r.typeURL) || res.name == "" {
			continue
		}
		if last := f.topics.holds(res.canonical()); last != nil && last.Redirect() == "" && bytes.Equal(last.Value(), res.value) {
			res.taste = held
		}
	}
	return true
}

// report logs what clients would reject of a response. It is called when the
// response was taken.
func (s *Stream) report(r *response) {
	tally := s.opts.Tally
	for i := range r.resources {
		switch res := &r.resources[i]; {
		case res.taste != tasted:
		case res.verdict != nil:
			tally.Failed(s.scope.Partition, r.typeURL, res.name, res.verdict)
		default:
			tally.Passed(s.scope.Partition, r.typeURL, res.name)
		}
	}
	for _, removed := range r.removed {
		tally.Passed(s.scope.Partition, r.typeURL, removed.name)
	}
}
