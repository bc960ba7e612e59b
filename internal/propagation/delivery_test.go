package propagation

import (
	"testing"
	"testing/synctest"
	"time"
)

// A response counts as sent when nothing holds it any more, or when the client answers it, but not if the stream
// ends before that.
func TestAClientWasSentAResponseWhenAllOfItIsWritten(t *testing.T) {
	for _, tt := range []struct {
		name string
		act  func(*Delivery)
		want []string
	}{
		{"written at once", func(d *Delivery) { d.Done() }, []string{"sent first 1s", "sent median 1s", "sent last 1s"}},
		{"kept by the connection", func(d *Delivery) {
			d.Hold()
			d.Done()
			time.Sleep(time.Second)
			d.Done()
		}, []string{"sent first 2s", "sent median 2s", "sent last 2s"}},
		{"written before it was given away", func(d *Delivery) {
			d.Hold()
			d.Done()
			time.Sleep(time.Second)
			d.Done()
			d.NotSent() // too late
		}, []string{"sent first 2s", "sent median 2s", "sent last 2s"}},
		{"acknowledged before the connection is done with it", func(d *Delivery) {
			d.Hold()
			d.Done()
			d.ACKed()
			time.Sleep(time.Second)
			d.Done()
		}, []string{"sent first 1s", "sent median 1s", "sent last 1s", "acked first 1s", "acked median 1s", "acked last 1s"}},
		{"lost with its stream", func(d *Delivery) {
			d.Hold()
			d.Done()
			d.NotSent()
			d.NotACKed()
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tracker, m := newTestTracker()
				clients := newClients(1)
				begin(tracker, clients)
				time.Sleep(time.Second)
				d := clients[0].Take().Deliver()
				tt.act(d)
				d.NotSent()
				wantMeasured(t, m, tt.want...)
				time.Sleep(2 * Limit)
				for _, s := range m.take() {
					if s != "acked missed 1" || len(tt.want) != 3 {
						t.Errorf("after that it measured %q", s)
					}
				}
			})
		})
	}
	var none *List
	none.Deliver().Hold()
	none.Deliver().Done()
	none.Deliver().ACKed()
}
