package upstream

import (
	"context"

	"github.com/xds-relay/xds-relay/cache"
)

// The names and the sets (a wildcard, globs) of one type never share a stream. On one
// stream a delta control plane does not say which of the resources that it sends are
// the wildcard's, and SotW ones (go-control-plane's snapshots) take `*` among names for
// one more name.
//
// Sets are always on the first stream. The names of a type are on the first stream too, as
// long as no set of the type is. When one starts, they move together to the second stream,
// the names stream, and stay there until all of them are given up. The second stream opens
// when it is needed. The first one has to be opened again if names of the type were
// requested on it.

// noted collects what the notes of Start and Stop change, on both streams. Both are locked
// meanwhile, the first one first.
type noted struct {
	first   *Stream
	locked  bool // the names stream is locked
	updates map[topics]*cache.Update
	feeds   map[*feed]*Stream // to which something has happened
}

// take takes a note.
func (w *noted) take(n note) {
	f := w.feed(n)
	if f == nil {
		return // there is nothing of that kind
	}
	of, name := f.topics, n.key.Name
	switch {
	case n.resume:
		of.resume(name)
	case n.stop:
		of.stop(name)
		if away := w.first.away; away[n.key.TypeURL] == of && of.common().wanted == 0 {
			w.first.away = cache.Without(away, &w.first.awayRoom, n.key.TypeURL)
		}
	case n.again:
		of.again(name, w.feeds[f].down, w.update(of))
	default:
		of.start(name, w.feeds[f].down, w.update(of))
	}
}

// feed returns the feed that a note is for. It is new if the note starts something, and
// nil if there is none otherwise.
func (w *noted) feed(n note) *feed {
	s, typeURL := w.first, n.key.TypeURL
	starts := !n.stop && !n.again && !n.resume
	f := s.feeds[typeURL]
	var of *sets
	if f != nil {
		of, _ = f.topics.(*sets)
	}
	switch isSet := isSet(n.key.Name); {
	case !isSet && (of != nil || s.away[typeURL] != nil):
		return w.besideSets(of, n.key, starts)
	case isSet == (of != nil) && f != nil:
	case !starts:
		return nil
	case isSet:
		if f != nil {
			w.moveNames(f.topics.(*names))
		}
		f = s.place(s.newSets(typeURL))
	default:
		f = s.place(s.newNames(typeURL))
	}
	w.feeds[f] = s
	return f
}

// besideSets returns the feed of a name on the names stream.
func (w *noted) besideSets(of *sets, k cache.Key, starts bool) *feed {
	s := w.first
	there := s.away[k.TypeURL] != nil
	if !there && !starts {
		return nil
	}
	b := w.namesStream()
	f := b.feeds[k.TypeURL]
	if f == nil {
		f = b.place(b.newNames(k.TypeURL))
	}
	n := f.topics.(*names)
	if s.away == nil {
		s.away = map[string]topics{}
	}
	s.away[k.TypeURL] = n
	if starts && of != nil && n.subs[k.Name] == nil {
		n.know(k.Name, of, f.begun())
	}
	w.feeds[f] = b
	return f
}

// moveNames moves the names of a type to the names stream. The cache does not notice.
func (w *noted) moveNames(n *names) {
	n.lost()
	if n.wanted == 0 {
		return
	}
	b := w.namesStream()
	f := b.place(n)
	w.feeds[f] = b
	if w.first.away == nil {
		w.first.away = map[string]topics{}
	}
	w.first.away[n.typeURL] = n
	if b.down != nil {
		for _, name := range n.sorted() {
			if sub := n.subs[name]; !sub.answered && sub.failure == nil {
				n.fail(sub, b.down, w.update(n))
			}
		}
	}
}

// update returns the update of some topics.
func (w *noted) update(of topics) *cache.Update {
	u := w.updates[of]
	if u == nil {
		u = new(of.common().newUpdate())
		w.updates[of] = u
	}
	return u
}

// namesStream returns the names stream, and sees that it is there and locked.
func (w *noted) namesStream() *Stream {
	s := w.first
	if s.namesStream == nil {
		s.openNamesStream()
	}
	if b := s.namesStream; !w.locked {
		w.locked = true
		b.mu.Lock()
		b.forgive()
	}
	return s.namesStream
}

// done applies what the notes have changed.
func (w *noted) done() {
	for of, u := range w.updates {
		w.first.apply(of, *u)
	}
	for f, s := range w.feeds {
		s.concern(f)
	}
	if w.locked {
		b := w.first.namesStream
		b.count()
		b.mu.Unlock()
		b.poke()
	}
}

// openNamesStream makes the names stream, which opens when something is wanted of it.
// It speaks what the first has found out. The caller holds mu.
func (s *Stream) openNamesStream() {
	o := s.opts
	if watch := o.Watch; watch != nil {
		o.Watch = func(e Event) {
			e.Beside = true
			watch(e)
		}
	}
	b := newStream(s.forms, s.scope, s.conn, s.node, o, s.sink, s.log.With("stream", "beside"))
	b.mu.Lock()
	b.speak(s.form)
	b.mu.Unlock()
	b.board.post(func(st *Status) { st.Beside = true })
	context.AfterFunc(s.ctx, b.cancel)
	s.namesStream = b
	s.board.mu.Lock()
	s.board.beside = b
	s.board.mu.Unlock()
}
