package propagation

import "sync/atomic"

// Delivery is a response on its way to a client, with the changes that it brings: the client counts as sent them when
// the last byte of the response is written, for which it has to read. A nil *Delivery brings nothing: its methods do
// nothing. They may be called concurrently.
type Delivery struct {
	list *List
	// parts of the process that have not finished with the response: what sends it, and the connection.
	holders atomic.Int32
	// over: it is counted as sent, or as not sent.
	over atomic.Bool
}

// Deliver returns the delivery of a response that brings these changes. Whoever sends it has to call Done.
func (l *List) Deliver() *Delivery {
	if l == nil {
		return nil
	}
	d := &Delivery{list: l}
	d.holders.Store(1)
	return d
}

// Hold notes that the connection keeps the response until it calls Done.
func (d *Delivery) Hold() {
	if d != nil {
		d.holders.Add(1)
	}
}

// Done ends a Hold, or the sending. The last one says that the response is written.
func (d *Delivery) Done() {
	if d != nil && d.holders.Add(-1) == 0 {
		d.sent()
	}
}

func (d *Delivery) sent() {
	if !d.over.Swap(true) {
		d.list.Sent()
	}
}

// NotSent counts the client as one that will not be sent the response, unless it was sent it.
func (d *Delivery) NotSent() {
	if d != nil && !d.over.Swap(true) {
		d.list.NotSent()
	}
}

// ACKed counts the client as having accepted the changes, and so as having been sent them.
func (d *Delivery) ACKed() {
	if d != nil {
		d.sent()
		d.list.ACKed()
	}
}

// NotACKed counts the client as one that will not accept the changes.
func (d *Delivery) NotACKed() {
	if d != nil {
		d.list.NotACKed()
	}
}
