package upstream

import (
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// stuckConn stops after some bytes, until it is released.
type stuckConn struct {
	net.Conn
	left     *atomic.Int64
	released chan struct{}
}

func (c *stuckConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.left.Add(-int64(n)) < 0 {
		<-c.released
	}
	return n, err
}

// A large response is announced when its first bytes have come, so that there is memory for the rest. A small one is
// not announced, nor one that the relay will not read because it is too large.
func TestLargeResponsesAreAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var announced []int
		var left atomic.Int64
		left.Store(largeResponse / 2)
		released := make(chan struct{})
		b := &bench{
			T: t, script: &script{streams: make(chan *scripted, 100)}, logs: &logBuffer{}, limit: 3 * largeResponse,
			large: func(bytes int) { announced = append(announced, bytes) },
			wire:  func(c net.Conn) net.Conn { return &stuckConn{c, &left, released} },
		}
		b.start(Options{Protocol: Delta}, b.script)
		defer b.stop()
		e := b.watch("cds", "a")["a"]
		st := b.next()
		st.delta(t)
		of := func(nonce string, bytes int) *discoveryv3.DeltaDiscoveryResponse {
			m := deltaResponse(t, "cds", nonce, "a")
			m.ControlPlane = &corev3.ControlPlane{Identifier: strings.Repeat("x", bytes)}
			return m
		}
		large := of("1", largeResponse)
		go func() { _ = st.send(large) }()
		synctest.Wait()
		if want := []int{proto.Size(large)}; !slices.Equal(announced, want) {
			t.Errorf("announced responses of %v bytes, want %v", announced, want)
		}
		b.want(e, "requested")
		close(released)
		synctest.Wait()
		b.want(e, "present v1")
		b.respond(st, of("2", largeResponse/2))
		b.want(e, "present v2")
		if len(announced) != 1 {
			t.Errorf("announced responses of %v bytes, want one", announced)
		}
		_ = st.send(of("3", 4*largeResponse))
		synctest.Wait()
		if len(announced) != 1 {
			t.Errorf("announced responses of %v bytes, of which the last is too large", announced)
		}
	})
}
