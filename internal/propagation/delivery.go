package propagation

import "sync/atomic"

// Delivery is a response on its way to a client, with its changes. The changes count as sent when the last byte of the
// response is written, which requires that the client reads. The methods of a nil *Delivery do nothing. All methods may
// be called concurrently.
type Delivery struct {
	list *List
	// holders is the number of users that have not finished with the response: the sender and the connection.
	holders atomic.Int32
	// over: the response has been counted as sent, or as not sent.
	over atomic.Bool
}

// Deliver returns the delivery of a response with these changes. The sender has to call Done.
func (l *List) Deliver() *Delivery {
	if l == nil {
		return nil
	}
	d := &Delivery{list: l}
	d.holders.Store(1)
	return d
}

// Hold records that the connection keeps the response until it calls Done.
func (d *Delivery) Hold() {
	if d != nil {
		d.holders.Add(1)
	}
}

// Done ends a Hold, or the sending. After the last Done, the response counts as written.
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

// NotSent counts the client as one that will not receive the response, unless it counts as sent already.
func (d *Delivery) NotSent() {
	if d != nil && !d.over.Swap(true) {
		d.list.NotSent()
	}
}

// ACKed counts the changes as accepted by the client, and therefore also as sent.
func (d *Delivery) ACKed() {
	if d != nil {
		d.sent()
		d.list.ACKed()
	}
}

// NACKed counts the client as one that has rejected the changes.
func (d *Delivery) NACKed() {
	if d != nil {
		d.list.NACKed()
	}
}

// NotACKed counts the client as one that will not accept the changes.
func (d *Delivery) NotACKed() {
	if d != nil {
		d.list.NotACKed()
	}
}
