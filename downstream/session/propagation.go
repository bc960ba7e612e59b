package session

import "github.com/xds-relay/xds-relay/propagation"

// How changes reach the client is measured (package propagation): a session says which changes a
// response brings, and which of them the client has accepted.

// Delivered notes that the client was sent the response; or with an error, that it cannot be sent anything.
func (r *Response) Delivered(err error) {
	if err != nil {
		r.brings.NotSent()
	} else {
		r.brings.Sent()
	}
}

// bring has r bring all changes that the client is owed, unless more of them is to be sent.
func (s *subscriptions) bring(r *Response, more bool) {
	if !more {
		r.brings = r.brings.With(s.owed.Take())
	}
}

// spare notes that the client needs nothing of the changes that it is owed, unless there is something to
// be sent. The cache is held.
func (s *subscriptions) spare(more bool) {
	if !s.owed.None() && !more {
		s.owed.Take().Spared()
	}
}

// Spare notes that there is nothing to be sent now.
func (d *Delta) Spare() { d.spare(d.Adding() || d.Removing()) }

// Spare notes that there is nothing to be sent now.
func (s *SotW) Spare() { s.spare(s.Adding() || s.Removing()) }

// Close ends all subscriptions.
func (d *Delta) Close() {
	d.subscriptions.Close()
	d.owed.Take().Spared()
	notACKed(d.unanswered)
}

// Close ends all subscriptions.
func (s *SotW) Close() {
	s.subscriptions.Close()
	s.owed.Take().Spared()
	notACKed(s.earlier)
	s.last.answered((*propagation.List).NotACKed)
}

// answered notes, once, what the client makes of the changes that a response has brought.
func (r *sentResponse) answered(as func(*propagation.List)) {
	if r.brings != nil {
		as(r.brings)
		r.brings = nil
	}
}

func allACKed(all []sentResponse) {
	for i := range all {
		all[i].answered((*propagation.List).ACKed)
	}
}

func notACKed(all []sentResponse) {
	for i := range all {
		all[i].answered((*propagation.List).NotACKed)
	}
}
