package upstream

import (
	"context"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// The sets of a type (a wildcard, globs) are always on the first stream. In delta its names
// share that stream as long as there is no wildcard: [session.Sets.KeepsApart] says why. When a
// wildcard starts, all names move to the second stream, the names stream, and stay there until all of
// them are stopped. In SotW, where globs are fed from a wildcard, the names also move when a glob
// starts. The second stream opens when it is needed. The first stream must be opened again if names
// of the type were requested on it.

// noted collects the changes of the notes of Start and Stop, on both streams. Both stay locked,
// the first stream being locked first.
type noted struct {
	first   *Stream
	locked  bool // the names stream is locked
	updates map[session.Subscriptions]*cache.Update
	feeds   map[*feed]*Stream // the feeds that have changed
}

func newNoted(first *Stream) *noted {
	return &noted{first: first, updates: map[session.Subscriptions]*cache.Update{}, feeds: map[*feed]*Stream{}}
}

// take processes a note.
func (w *noted) take(n note) {
	if w.first.takeSuspect(n) {
		return
	}
	f := w.feed(n)
	if f == nil {
		return // nothing is subscribed to that the note could concern
	}
	of, name, typeURL := f.topics, n.key.Name, n.key.TypeURL
	switch {
	case n.resume:
		of.Resume(name, time.Now())
	case n.adopt:
		of.Adopt(name, time.Now(), w.feeds[f].down, w.update(of.Kind(name)))
	case n.stop:
		if of.Stop(name); w.feeds[f] != w.first {
			w.back(typeURL)
		}
	case n.again:
		of.Again(name, w.feeds[f].down, w.update(of.Kind(name)))
	case n.tried && !session.IsSet(name):
		of.Return(name)
	default:
		of.Start(name, w.feeds[f].down, w.update(of.Kind(name)))
	}
}

// feed returns the feed that a note is for. If there is none, feed makes it for a note that starts a
// topic, and returns nil for any other note, and if the topic is tried first.
func (w *noted) feed(n note) *feed {
	s, typeURL, name := w.first, n.key.TypeURL, n.key.Name
	f := s.feeds[typeURL]
	starts := n.starts()
	if !session.IsSet(name) && (s.isAway(typeURL) || f != nil && f.topics.Sets != nil && s.keepsApart(f.topics.Sets)) {
		return w.onNamesStream(n, starts)
	}
	switch {
	case f == nil && !starts, f != nil && f.topics.Kind(name) == nil && !starts, s.probe(n, f):
		return nil
	case !session.IsSet(name):
		f = s.withNames(f, typeURL)
	default:
		f = w.withSets(f, typeURL, name == cache.Wildcard && starts)
	}
	w.feeds[f] = s
	return f
}

// withNames returns the feed of a type with names. It makes the feed and the names if they do not exist.
func (s *Stream) withNames(f *feed, typeURL string) *feed {
	switch {
	case f == nil:
		return s.place(&session.Topics{Names: session.NewNames(s.config(typeURL))})
	case f.topics.Names == nil:
		f.topics.AddNames(session.NewNames(s.config(typeURL)))
	}
	return f
}

// withSets returns the feed of a type with sets. It makes the feed and the sets if they do not exist.
// wildcard says that a wildcard is about to start.
func (w *noted) withSets(f *feed, typeURL string, wildcard bool) *feed {
	s := w.first
	if f == nil {
		return s.place(&session.Topics{Sets: session.NewSets(s.config(typeURL))})
	}
	of := f.topics.Sets
	if of == nil {
		of = session.NewSets(s.config(typeURL))
	}
	switch apart := wildcard || s.keepsApart(of); {
	case f.topics.Names != nil && apart && f.topics.Sets == nil:
		n := f.topics.Names
		n.Lost()
		f = s.place(&session.Topics{Sets: of})
		w.moveNames(n)
	case f.topics.Names != nil && apart:
		w.separate(f)
	case f.topics.Sets == nil:
		f.topics.AddSets(of)
	}
	return f
}

// keepsApart reports that names cannot share the stream with these sets. The caller holds mu.
func (s *Stream) keepsApart(of *session.Sets) bool {
	return s.form.name != Delta || of.KeepsApart()
}

// onNamesStream returns the feed of a name on the names stream. It returns nil if there is none and
// starts is false, and if the name is in the quarantine of that stream, or put there.
func (w *noted) onNamesStream(n note, starts bool) *feed {
	s, k := w.first, n.key
	if !s.isAway(k.TypeURL) && !starts {
		return nil
	}
	b := w.namesStream()
	w.away(k.TypeURL)
	f, first := b.feeds[k.TypeURL], s.feeds[k.TypeURL]
	if b.takeSuspect(n) || b.probe(n, f, first) {
		w.back(k.TypeURL)
		return nil
	}
	if f == nil {
		f = b.place(&session.Topics{Names: session.NewNames(b.config(k.TypeURL))})
	}
	w.feeds[f] = b
	if starts && first != nil && first.topics.Sets != nil {
		f.topics.Names.Know(k.Name, first.topics.Sets, f.begun())
	}
	return f
}

// isAway reports whether the names of a type are on the names stream, or in its quarantine. The caller holds mu.
func (s *Stream) isAway(typeURL string) bool {
	_, away := s.away[typeURL]
	return away
}

// away notes that the names of a type are on the names stream.
func (w *noted) away(typeURL string) {
	if w.first.away == nil {
		w.first.away = map[string]struct{}{}
	}
	w.first.away[typeURL] = struct{}{}
}

// back lets names of a type start on the first stream again, if there are none on the names stream.
func (w *noted) back(typeURL string) {
	s, b := w.first, w.first.namesStream
	if f := b.feeds[typeURL]; (f == nil || f.wanted() == 0) && !b.quarantine.has(typeURL) {
		s.away = cache.Without(s.away, &s.awayRoom, typeURL)
	}
}

// separateNames moves names to the names stream if they share this one with sets and no longer
// can, because the stream speaks another form. The caller holds mu.
func (s *Stream) separateNames() {
	w := newNoted(s)
	for _, f := range s.sorted() {
		if f.topics.Both() && s.keepsApart(f.topics.Sets) {
			w.separate(f)
			w.feeds[f] = s
		}
	}
	w.done()
	s.count()
}

// separate moves the names of a type, which share the first stream with sets, to the names stream.
// The sets stay on the first stream.
func (w *noted) separate(f *feed) {
	n := f.topics.RemoveNames()
	f.stale = f.stale || f.begun()
	w.moveNames(n)
	if n.AnyWanted() {
		n.ForkVersion(w.update(n))
	}
}

// moveNames moves the names of a type to the names stream. The cache does not notice.
func (w *noted) moveNames(n *session.Names) {
	if !n.AnyWanted() {
		return
	}
	b := w.namesStream()
	f := b.place(&session.Topics{Names: n})
	w.away(f.typeURL())
	w.feeds[f] = b
	if b.down != nil {
		n.FailNew(b.down, w.update(n))
	}
}

// update returns the update that is collected for some subscriptions.
func (w *noted) update(of session.Subscriptions) *cache.Update {
	u := w.updates[of]
	if u == nil {
		u = new(of.NewUpdate())
		w.updates[of] = u
	}
	return u
}

// namesStream returns the names stream. It opens and locks it if need be.
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

// done applies the collected changes.
func (w *noted) done() {
	for of, u := range w.updates {
		w.first.deliver(delivery.Known, of, *u)
	}
	for f, s := range w.feeds {
		s.concern(f)
	}
	if w.locked {
		b := w.first.namesStream
		b.count()
		b.mu.Unlock()
		b.inbox.Wake()
	}
}

// openNamesStream makes the names stream, which opens its gRPC stream when a name is wanted.
// It speaks the form of the first stream. The caller holds mu.
func (s *Stream) openNamesStream() {
	o := s.opts
	o.watch = func(e delivery.Event) {
		e.NamesStream = true
		s.opts.watch(e)
	}
	b := newStream(s.forms, s.scope, s.conn, s.node, o, s.to, s.log.With("stream", "names"))
	b.mu.Lock()
	b.admitted, b.touchyUntil = s.admitted, s.touchyUntil
	b.speak(s.form)
	b.mu.Unlock()
	b.board.post(func(st *Status) { st.NamesStream = true })
	context.AfterFunc(s.ctx, b.cancel)
	s.namesStream = b
	s.board.mu.Lock()
	s.board.namesStream = b
	s.board.mu.Unlock()
}
