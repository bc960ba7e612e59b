package downstream

import (
	"container/list"
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/identity"
)

// Places bound work that takes much, and of which only so much is done at once. Those who wait for a place take turns:
// see turns.
type Places struct {
	most     func() int64 // 0: there is no limit
	each     int
	patience time.Duration

	mu    sync.Mutex
	taken int64
	// holders are those who have a place, the one that has had it the longest first.
	holders list.List
	line    turns
	// next is whose turn it is, once there is room for its work; nil if nobody waits.
	next *place
	// sizes are how many places those who wait need, if it is not one.
	sizes map[*place]int64
	// callers are how many places each identity has or waits for. Without a bound it is nil.
	callers map[identityKey]int
}

// NewPlaces returns so many places, of which an identity has at most each or, if that is 0, all. Who waits for longer
// than patience takes the place of one who has had it for as long; if patience is 0, nobody loses a place.
func NewPlaces(most, each int, patience time.Duration) *Places {
	p := &Places{most: func() int64 { return int64(most) }, each: each, patience: patience}
	if each > 0 {
		p.callers = map[identityKey]int{}
	}
	return p
}

// Place is a place that somebody has.
type Place struct {
	places *Places
	key    identityKey
	size   int64
	turn   *place        // in places.line
	lose   func(error)   // tells the holder that it has lost the place; nil if nothing can
	since  time.Time     // set with patience
	at     *list.Element // in places.holders; nil once it is lost or given back
}

var (
	errLost  = status.Error(codes.ResourceExhausted, "the answer is read too slowly, and others wait: try again later")
	errBusy  = status.Error(codes.ResourceExhausted, "other calls are being answered: try again later")
	errOwned = status.Error(codes.ResourceExhausted, "other calls of this identity are being answered, and an identity may have no more at once: try again later")
)

// take waits for a place. lose is called if the place is lost; nil if nothing can take it away.
func (p *Places) take(ctx context.Context, of party, lose func(error)) (*Place, error) {
	return p.takeSize(ctx, of, 1, lose)
}

// takeSize waits for a place that counts as so many. Who needs more than there are waits until all others have left.
func (p *Places) takeSize(ctx context.Context, of party, size int64, lose func(error)) (*Place, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.callers != nil {
		if p.callers[of.identity] == p.each {
			return nil, errOwned
		}
		p.callers[of.identity]++
	}
	var turn *place
	if p.next == nil && p.line.waiting() == 0 && p.fits(size) {
		p.taken += size
		turn = p.line.take(new(place))
	} else {
		var err error
		if turn, err = p.wait(ctx, of, size); err != nil {
			p.forget(of.identity)
			return nil, err
		}
	}
	place := &Place{places: p, key: of.identity, size: size, turn: turn, lose: lose}
	if p.patience > 0 {
		place.since = time.Now()
	}
	place.at = p.holders.PushBack(place)
	return place, nil
}

// fits reports whether there is room for work of that size.
func (p *Places) fits(size int64) bool {
	most := p.most()
	return p.taken == 0 || most == 0 || p.taken+size <= most
}

// admit gives places to those whose turn it is, as long as there is room. The caller holds mu.
func (p *Places) admit() {
	for {
		if p.next == nil {
			if p.next = p.line.turn(); p.next == nil {
				return
			}
		}
		size := int64(1)
		if other, ok := p.sizes[p.next]; ok {
			size = other
		}
		if !p.fits(size) {
			return
		}
		p.taken += size
		delete(p.sizes, p.next)
		close(p.next.admitted)
		p.next = nil
	}
}

// quit takes a waiter out of the line. The caller holds mu.
func (p *Places) quit(w *place) {
	delete(p.sizes, w)
	if p.next != w {
		p.line.remove(w)
		return
	}
	p.next = nil
	p.line.give(w)
	p.admit()
}

// wait waits in line until there is room. The caller holds mu, which is released meanwhile.
func (p *Places) wait(ctx context.Context, of party, size int64) (*place, error) {
	w := p.line.add(p.line.of(of), new(place))
	if size != 1 {
		if p.sizes == nil {
			p.sizes = map[*place]int64{}
		}
		p.sizes[w] = size
	}
	var late <-chan time.Time
	for {
		if p.patience > 0 {
			late = time.After(p.patience)
		}
		p.mu.Unlock()
		select {
		case <-w.admitted:
		case <-ctx.Done():
		case <-late:
		}
		p.mu.Lock()
		select {
		case <-w.admitted:
			return w, nil
		default:
		}
		err := ctx.Err()
		switch {
		case err != nil:
			err = status.FromContextError(err).Err()
		case !p.replace():
			err = errBusy
		default:
			continue
		}
		select {
		case <-w.admitted: // by replace
			return w, nil
		default:
			p.quit(w)
			return nil, err
		}
	}
}

// replace takes the place of who has had it the longest, if that is for long enough, and gives it to the next in line. It
// returns false if nothing can take it. The caller holds mu.
func (p *Places) replace() bool {
	first := p.holders.Front()
	if first == nil { // those who have been given the places do not run yet
		return true
	}
	holder := first.Value.(*Place)
	if time.Since(holder.since) < p.patience {
		return true
	}
	if holder.lose == nil {
		return false
	}
	p.leave(holder)
	go holder.lose(errLost) // it may wait for what the holder does
	return true
}

// leave gives a place to the next in line. The caller holds mu.
func (p *Places) leave(place *Place) {
	p.holders.Remove(place.at)
	place.at = nil
	p.line.give(place.turn)
	p.forget(place.key)
	p.taken -= place.size
	p.admit()
}

func (p *Places) forget(key identityKey) {
	if p.callers == nil {
		return
	}
	if p.callers[key]--; p.callers[key] == 0 {
		delete(p.callers, key)
	}
}

// Give gives a place back.
func (place *Place) Give() {
	p := place.places
	p.mu.Lock()
	defer p.mu.Unlock()
	if place.at != nil {
		p.leave(place)
	}
}

// TakePlace waits for a place for a call of another service, which ends if it loses the place.
func (s *Server) TakePlace(ctx context.Context, p *Places, id *identity.Identity) (*Place, error) {
	return p.take(ctx, party{identityKeyOf(ctx, id), connOf(ctx)}, func(why error) { finish(ctx, why) })
}

// TakeOperators waits for a place for a call of the operator.
func (p *Places) TakeOperators(ctx context.Context) (*Place, error) {
	return p.take(ctx, party{}, nil)
}
