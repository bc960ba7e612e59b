package downstream

import (
	"runtime"
	"sync"
)

// requestWorkers process the requests that contain something new, on separate goroutines.
//
// Such a request needs several times the stack that a stream needs to wait for the next one. A stack grows by copying,
// and stays large until the next garbage collection. So if the streams' goroutines processed these requests, many
// clients that connect at once would have twice the stacks that they need. A worker keeps its stack for the next
// request: there are only as many large stacks as requests are processed at once.
//
// No request waits for another: if no worker is idle, there is a new one. The zero value is ready.
type requestWorkers struct {
	mu      sync.Mutex
	streams int              // those that may have requests
	idle    []*requestWorker // the newest idle one last; empty without streams
}

// requestWorker processes one request at a time.
type requestWorker struct {
	requests chan unprocessed // has room for one; closed if the worker is to end
	done     chan struct{}    // has no room: the worker is idle only when its stream has come back
}

// unprocessed is a request that contains something new.
type unprocessed interface {
	// process processes the request. It returns a sender if the worker is to become that sender of a server.
	process() *sender
}

// process has a worker process a request, and returns when that is done.
func (p *requestWorkers) process(r unprocessed) {
	w := p.take()
	w.requests <- r
	<-w.done
}

// take returns an idle worker, or a new one.
func (p *requestWorkers) take() *requestWorker {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.idle) - 1; last >= 0 {
		w := p.idle[last]
		p.idle[last] = nil
		p.idle = p.idle[:last]
		return w
	}
	w := &requestWorker{requests: make(chan unprocessed, 1), done: make(chan struct{})}
	go w.work(p)
	return w
}

// work processes requests until the worker is no longer needed.
func (w *requestWorker) work(p *requestWorkers) {
	for r := range w.requests {
		next := r.process()
		w.done <- struct{}{}
		if next != nil {
			next.send()
		}
		if !p.rest(w) {
			return
		}
	}
}

// rest makes a worker idle. It returns false if the worker is to end: there are enough workers, or no streams.
func (p *requestWorkers) rest(w *requestWorker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams == 0 || len(p.idle) >= 2*runtime.GOMAXPROCS(0) {
		return false
	}
	p.idle = append(p.idle, w)
	return true
}

// join counts a stream until leave.
func (p *requestWorkers) join() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams++
}

// leave undoes a join. The idle workers end with the last stream.
func (p *requestWorkers) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams--; p.streams > 0 {
		return
	}
	for _, w := range p.idle {
		close(w.requests)
	}
	p.idle = nil
}
