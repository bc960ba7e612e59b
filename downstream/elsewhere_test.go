package downstream

import (
	"io"
	"runtime"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
)

// TestCostOfAStack: the stack of a stream's goroutine does not grow by a request that is taken,
// with a Node and names.
func TestCostOfAStack(t *testing.T) {
	skipUnderRace(t)
	const clients, most = 500, 9 << 10
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
		names := benchNames(20)
		c.join(deltaForm.name, endpointType, names...)
		c.counted(func() cache.Update { return puts(endpointType, "v", values(20, 10, 0)...) })
		node := &corev3.Node{Id: "test", Cluster: "test", Locality: &corev3.Locality{Region: "r"}}
		request := mem.SliceBuffer(encoded(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: endpointType, ResourceNamesSubscribe: names}))
		end := make(chan struct{})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range clients {
			g := &waitingStream{countingStream: countingStream{codec: newCodec(0)}, request: request, end: end}
			st := c.server.open(g, nil, deltaForm.name, "")
			go func() {
				_ = serve(st, deltaForm)
				c.server.forget(st)
			}()
		}
		synctest.Wait()
		runtime.ReadMemStats(&after)
		if got := int(after.StackInuse-before.StackInuse) / clients; got > most {
			t.Errorf("a stream's goroutine has a stack of %d bytes, want at most %d", got, most)
		} else {
			t.Logf("%d bytes", got)
		}
		close(end)
	})
}

// waitingStream gives one request.
type waitingStream struct {
	countingStream
	request mem.SliceBuffer
	taken   bool
	end     chan struct{}
}

func (s *waitingStream) RecvMsg(m any) error {
	if s.taken {
		<-s.end
		return io.EOF
	}
	s.taken = true
	return s.codec.Unmarshal(mem.BufferSlice{s.request}, m)
}
