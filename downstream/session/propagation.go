package session

import "github.com/xds-relay/xds-relay/internal/propagation"

// Measuring how changes reach the client (package propagation): a session reports which changes a response brings, and
// which of them the client has accepted.

// Delivered records that the connection has taken the response; or, with an error, that the client cannot be sent
// anything. gRPC takes one response however full the connection is: the client has been sent it only when gRPC has
// written all of it.
func (r *Response) Delivered(err error) {
	if err != nil {
		r.delivery.NotSent()
	} else {
		r.delivery.Done()
	}
}

// bring records that r brings all changes that the client is owed, unless more is set: then a later response brings
// the last of them.
func (s *subscriptions) bring(r *Response, more bool) {
	if !more {
		r.brings = r.brings.With(s.owed.Take())
	}
}

// spare records that the client needs none of the changes that it is owed, unless more is set: then there is something
// to send. The cache is held.
func (s *subscriptions) spare(more bool) {
	if !s.owed.None() && !more {
		s.owed.Take().Spared()
	}
}

// answered records, once, the client's answer to the changes in a response.
func (r *sentResponse) answered(as func(*propagation.Delivery)) {
	if r.brings != nil {
		as(r.brings)
		r.brings = nil
	}
}

func allACKed(all []sentResponse) {
	for i := range all {
		all[i].answered((*propagation.Delivery).ACKed)
	}
}

func notACKed(all []sentResponse) {
	for i := range all {
		all[i].answered((*propagation.Delivery).NotACKed)
	}
}

// lost records that the stream has ended: the client will not answer the response, and the unwritten part of it will
// not be written.
func (r *sentResponse) lost() {
	r.brings.NotSent()
	r.answered((*propagation.Delivery).NotACKed)
}

func allLost(all []sentResponse) {
	for i := range all {
		all[i].lost()
	}
}
