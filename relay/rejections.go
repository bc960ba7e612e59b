package relay

import (
	"sync"

	"github.com/xds-relay/xds-relay/cache"
)

// Rejections of clients that the relay passes on to control planes that are relays. To such a relay, this one is a
// client, and only this relay knows the clients behind it. Other control planes get no NACK: what one client rejects
// may be right for others.

// rejections passes them on in a goroutine of its own, because clients' streams must not wait for streams to control
// planes.
type rejections struct {
	pass func(scope cache.Scope, typeURL, words string)
	wake chan struct{}
	stop chan struct{}
	done chan struct{}

	mu sync.Mutex // the last in the order of locks
	// waiting has the newest words of clients for each type of a scope.
	waiting map[rejected]string
}

type rejected struct {
	scope   cache.Scope
	typeURL string
}

func newRejections(pass func(scope cache.Scope, typeURL, words string)) *rejections {
	r := &rejections{pass: pass, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), waiting: map[rejected]string{}}
	go r.run()
	return r
}

// add notes a rejection. It does not block.
func (r *rejections) add(scope cache.Scope, typeURL, words string) {
	r.mu.Lock()
	r.waiting[rejected{scope, typeURL}] = words
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *rejections) run() {
	defer close(r.done)
	for {
		select {
		case <-r.wake:
		case <-r.stop:
			return
		}
		r.mu.Lock()
		waiting := r.waiting
		r.waiting = map[rejected]string{}
		r.mu.Unlock()
		for of, words := range waiting {
			r.pass(of.scope, of.typeURL, words)
		}
	}
}

// close ends the goroutine, and waits for it.
func (r *rejections) close() {
	close(r.stop)
	<-r.done
}

// passOn passes a rejection on to the control plane of a scope, if that is a relay.
func (s *origins) passOn(scope cache.Scope, typeURL, words string) {
	s.mu.Lock()
	f := s.streams[scope]
	s.mu.Unlock()
	if f != nil {
		f.PassOn(typeURL, words)
	}
}
