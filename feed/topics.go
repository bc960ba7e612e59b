package feed

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// The topics that the cache wants. With one server, the source learns of them at once. Several servers learn of them
// from the inbox, as the judges do.

// note is one call of Start, Refresh, Resume, Adopt or Stop.
type note struct {
	key  cache.Key
	kind noteKind
}

type noteKind uint8

const (
	started noteKind = iota
	refreshed
	resumed
	adopted
	stopped
)

// note notes a call for the servers, if there are several, and for the judges that need it.
func (f *Feed) note(k cache.Key, kind noteKind) {
	several, ends := len(f.Servers.Names) > 1, kind == started || kind == stopped
	switch {
	case several || f.keeper != nil && ends:
		f.inbox.Add(note{k, kind})
		f.wake()
	case kind == stopped && (k.IsSet() || f.held.Load()):
		f.inbox.Add(note{k, kind}) // for the guard, which needs it with the next delivery
	}
}

// Start implements cache.Source.
func (f *Feed) Start(k cache.Key) {
	f.expectLoad(k)
	f.note(k, started)
	f.load(k)
	if f.only != nil {
		f.only.Start(k)
	}
}

// Refresh implements cache.Source.
func (f *Feed) Refresh(k cache.Key) { f.forward(note{k, refreshed}) }

// Resume implements cache.Resumer.
func (f *Feed) Resume(k cache.Key) { f.forward(note{k, resumed}) }

// Adopt implements cache.Adopter.
func (f *Feed) Adopt(k cache.Key) { f.forward(note{k, adopted}) }

// Stop implements cache.Source.
func (f *Feed) Stop(k cache.Key) {
	if f.only != nil {
		f.only.Stop(k)
	}
	f.note(k, stopped)
}

// forward notes a call, and makes it if there is only one server.
func (f *Feed) forward(n note) {
	f.note(n.key, n.kind)
	if f.only != nil {
		n.call(f.only)
	}
}

// call makes the call of a source.
func (n note) call(s Source) {
	switch n.kind {
	case started:
		s.Start(n.key)
	case refreshed:
		s.Refresh(n.key)
	case resumed:
		s.Resume(n.key)
	case adopted:
		s.Adopt(n.key)
	case stopped:
		s.Stop(n.key)
	}
}

// takeNotes passes the calls of the cache on. The caller holds mu.
func (f *Feed) takeNotes(now time.Time) {
	notes := f.inbox.Take()
	if f.closed || len(notes) == 0 {
		return
	}
	for _, n := range notes {
		switch n.kind {
		case started:
			if f.keeper != nil {
				f.keeper.Start(now, n.key)
			}
		case stopped:
			if f.keeper != nil {
				f.keeper.Stop(n.key)
			}
			f.guard.Stop(n.key)
			delete(f.resolver.begun, n.key)
		case refreshed, resumed, adopted:
		}
		if len(f.open) > 1 {
			f.tellServers(n)
		}
	}
	if len(f.open) > 1 {
		f.machine.Missing(now, f.wanted.missing > 0)
		f.act()
	}
}

// tellServers passes a call on to the open servers. The caller holds mu.
func (f *Feed) tellServers(n note) {
	switch n.kind {
	case started:
		f.wanted.add(n.key)
	case resumed:
		f.wanted.resume(n.key)
	case stopped:
		f.wanted.remove(n.key)
		f.ttls.forget(n.key)
	case refreshed, adopted:
	}
	for _, s := range f.open {
		if s != nil {
			n.call(s.source)
		}
	}
	if answered := n.kind == adopted && f.wanted.topics[nameOf(n.key)].answered; f.failure != nil && n.kind != stopped && n.kind != resumed && !answered {
		f.reportFailure([]cache.Key{n.key})
	}
}
