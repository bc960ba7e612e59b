package downstream

import (
	"bytes"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
)

// TestCostOfAStack: the stack of a stream's goroutine does not grow when a request with a Node and names is processed.
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

// waitingRequest is processed when it may end.
type waitingRequest struct{ begun, end chan struct{} }

func (r waitingRequest) process() *sender {
	close(r.begun)
	<-r.end
	return nil
}

// workerGoroutines counts the goroutines of workers. (runtime.NumGoroutine is wrong for an instant when goroutines
// end.)
func workerGoroutines() int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Count(stacks, []byte("(*requestWorker).work("))
}

// No request waits for another. Afterwards few workers are idle, which take the next requests, and they end with
// the last stream.
func TestRequestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests = 20
		var workers requestWorkers
		workers.join()
		workers.join()
		end := make(chan struct{})
		for range requests {
			r := waitingRequest{make(chan struct{}), end}
			go workers.process(r)
			<-r.begun // though none has ended
		}
		close(end)
		synctest.Wait()
		idle := len(workers.idle)
		if idle == 0 || idle > 2*runtime.GOMAXPROCS(0) || workerGoroutines() != idle {
			t.Errorf("%d workers are idle, and there are %d", idle, workerGoroutines())
		}
		for range requests {
			workers.process(waitingRequest{make(chan struct{}), end})
			synctest.Wait()
		}
		if len(workers.idle) != idle {
			t.Errorf("%d workers are idle after more requests, want %d", len(workers.idle), idle)
		}
		workers.leave()
		synctest.Wait()
		if len(workers.idle) != idle {
			t.Error("workers have ended before the last stream")
		}
		workers.leave()
		synctest.Wait()
		if n := workerGoroutines(); n != 0 {
			t.Errorf("there are %d workers after the last stream", n)
		}
		workers.process(waitingRequest{make(chan struct{}), end})
		synctest.Wait()
		if n := workerGoroutines(); n != 0 {
			t.Errorf("%d workers are kept without a stream", n)
		}
	})
}

// notedRequest notes that it was processed.
type notedRequest struct {
	processed atomic.Bool
	work, sum int
}

func (r *notedRequest) process() *sender {
	for range r.work {
		r.sum++
	}
	r.processed.Store(true)
	return nil
}

// A stream continues only when its own request was processed, also if others come at the same time.
func TestARequestIsProcessedWhenItsStreamGoesOn(t *testing.T) {
	var workers requestWorkers
	workers.join()
	defer workers.leave()
	var streams sync.WaitGroup
	for range 16 {
		streams.Go(func() {
			for i := range 5000 {
				r := &notedRequest{work: i % 2 * 2000}
				if workers.process(r); !r.processed.Load() {
					t.Error("a request is not processed yet")
					return
				}
			}
		})
	}
	streams.Wait()
}
