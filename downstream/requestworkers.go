package downstream

import (
	"runtime"
	"sync"
)

// requestWorkers process the requests that say something new, on goroutines of their own.
//
// Such a request needs several times the stack that a stream needs to wait for the next one. A stack that
// has grown is copied for that, and stays large until the garbage collector comes. So if the streams'
// goroutines processed them, a herd of clients would have twice the stacks that it needs. A worker keeps
// its stack for the next request: a herd costs as many large stacks as requests are processed at once.
//
// No request waits for another: if no worker is idle, there is a new one. The zero value is ready.
type requestWorkers struct {
	mu      sync.Mutex
	streams int              // those that may have requests
	idle    []*requestWorker // the one that became idle last is the last; none without streams
}

// requestWorker processes one request at a time.
type requestWorker struct {
	requests chan unprocessed // has room for one; closed if the worker is to end
	done     chan struct{}    // has no room: the worker is idle only when its stream has come back
}

// unprocessed is a request that says something new.
type unprocessed interface {
	// process processes it. If the worker is to become one of the senders of a server, that is returned.
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

// work processes requests until the worker is not needed any more.
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

// rest makes a worker idle. It returns false if the worker is to end: there are enough, or no streams.
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
