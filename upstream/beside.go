package upstream

import (
	"context"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// What is wanted by name beside a set of its type is asked for on a second stream.
// On one stream a delta control plane does not say which of the resources that it
// sends are the wildcard's, and SotW ones (go-control-plane's snapshots) take `*`
// among names for one more name.
//
// A set is always on the first stream. A name goes there as well if there is no set
// of its type when it starts, moves when one starts, and then stays where it is until
// it stops: so nothing moves because a set stops, and a set that comes and goes moves
// a name at most once. A name is fed by its own stream alone. What is known of it on
// the first one, or as a member of a set, goes with it.

// beside is a Stream's second stream. Stream.mu guards it.
type beside struct {
	stream *Stream // nil until it was needed
	// names are those that are asked for there, by their types.
	names map[string]*besideNames
	room  cache.Room // of names
}

// besideNames are those of one type.
type besideNames struct {
	all  map[string]struct{}
	room cache.Room // of all
}

// has says whether a name is asked for there.
func (b *beside) has(k cache.Key) bool {
	of := b.names[k.TypeURL]
	if of == nil {
		return false
	}
	_, ok := of.all[k.Name]
	return ok
}

func (b *beside) add(typeURL, name string) {
	if b.names == nil {
		b.names = map[string]*besideNames{}
	}
	if b.names[typeURL] == nil {
		b.names[typeURL] = &besideNames{all: map[string]struct{}{}}
	}
	b.names[typeURL].all[name] = struct{}{}
}

func (b *beside) remove(k cache.Key) {
	of := b.names[k.TypeURL]
	if of == nil {
		return
	}
	if of.all = cache.Without(of.all, &of.room, k.Name); len(of.all) == 0 {
		b.names = cache.Without(b.names, &b.room, k.TypeURL)
	}
}

// others leaves out of an update of the first stream what is fed by the second.
func (b *beside) others(u cache.Update) cache.Update {
	names := b.names[u.TypeURL]
	if names == nil || len(u.Changes) == 0 {
		return u
	}
	// Its changes may be the set's, too.
	changes := make([]cache.Change, 0, len(u.Changes))
	for _, c := range u.Changes {
		if _, there := names.all[c.Name]; !there {
			changes = append(changes, c)
		}
	}
	u.Changes = changes
	return u
}

// openBeside makes the second stream, which opens when something is wanted of it.
// It speaks what the first has found out. The caller holds mu.
func (s *Stream) openBeside() {
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
	s.beside.stream = b
	s.board.mu.Lock()
	s.board.beside = b
	s.board.mu.Unlock()
}

// sideways takes from the notes of a Stream what is for its second stream. Both are
// locked meanwhile, the first one first, so that what moves is told by one of them.
type sideways struct {
	s       *Stream
	locked  bool
	updates map[*feed]*cache.Update // of the second, for those to which something has happened
}

// take says whether a note was for the second stream.
func (w *sideways) take(n note) bool {
	s, first := w.s, w.s.feeds[n.key.TypeURL]
	there := s.beside.has(n.key)
	starts := !n.stop && !n.again && !n.resume && !n.key.IsSet() && first != nil && first.subs.wildcard != nil
	if !there && !starts {
		return false
	}
	f := w.feed(n.key.TypeURL)
	subs, name, down, u := f.subs, n.key.Name, s.beside.stream.down, w.updates[f]
	switch {
	case n.resume:
		subs.resume(name)
	case n.stop:
		subs.stop(name)
		s.beside.remove(n.key)
	case n.again:
		subs.again(name, down, u)
	default:
		if subs.names[name] == nil {
			if h, ok := first.subs.hold(name); ok {
				subs.adopt(h, f.begun())
			}
		}
		subs.start(name, down, u)
		s.beside.add(n.key.TypeURL, name)
	}
	return true
}

// move moves the names of types that are with a set now. Nobody hears of it.
func (w *sideways) move(feeds map[*feed]struct{}) {
	for first := range feeds {
		if first.subs.wildcard == nil {
			continue
		}
		for _, name := range first.subs.sorted() {
			h, _ := first.subs.hold(name)
			f := w.feed(first.subs.typeURL)
			first.subs.stop(name)
			f.subs.move(h, f.begun(), w.s.beside.stream.down, w.updates[f])
			w.s.beside.add(first.subs.typeURL, name)
		}
	}
}

// feed returns the second stream's feed of a type, and sees that there is one.
func (w *sideways) feed(typeURL string) *feed {
	s := w.s
	if s.beside.stream == nil {
		s.openBeside()
	}
	w.lock()
	f := s.beside.stream.feed(typeURL)
	if w.updates[f] == nil {
		if w.updates == nil {
			w.updates = map[*feed]*cache.Update{}
		}
		w.updates[f] = new(f.subs.newUpdate())
	}
	return f
}

func (w *sideways) lock() {
	if b := w.s.beside.stream; !w.locked {
		w.locked = true
		b.mu.Lock()
		b.forgive()
	}
}

// done moves what is to move of the types that have notes, and tells the cache what it
// is to know from the second stream, with restate once more all that is held. What the
// first has to tell from before was told.
func (w *sideways) done(noted map[*feed]struct{}, restate bool) {
	w.move(noted)
	if b := w.s.beside.stream; restate && b != nil {
		b.Resend()
	}
	if !w.locked {
		return
	}
	b := w.s.beside.stream
	for _, u := range w.updates {
		b.apply(*u)
	}
	for f := range w.updates {
		b.concern(f)
	}
	b.count()
	b.mu.Unlock()
	b.poke()
}

// held is what is known of a name, to go on with on another stream.
type held struct {
	sub     *subscription // a new one
	version string        // the version_info under which it came, if that is known

	key       string // what the rest is kept under: the name, or that of which it is an alias
	expires   time.Time
	variants  []variant
	ambiguous bool
}

// hold returns what is known of a name, whether or not it is asked for.
func (s *subscriptions) hold(name string) (held, bool) {
	h := held{key: name, sub: &subscription{name: name}}
	if sub := s.names[name]; sub != nil {
		h.sub.answered, h.sub.left = sub.answered, sub.left
		h.sub.answer, h.sub.via, h.sub.reported, h.sub.expired = sub.answer, sub.via, sub.reported, sub.expired
		h.sub.failure, h.sub.resumed = sub.failure, sub.resumed
		h.sub.answer.Origin = sub.answer.Origin.Fork() // the streams go on from it apart
		if sub.via != "" {
			h.key = sub.via
		}
		if !sub.again {
			h.version = s.shown
		}
	} else if r := s.member(name); r != nil && !r.DoNotCache() {
		h.sub.answered, h.sub.answer = true, cache.Change{Name: name, Resource: r, Origin: s.memberVersion(name).Fork()}
	} else if err := s.refusedBy(name); err != nil {
		h.sub.failure = err // until it is asked for by its name
	} else {
		return held{}, false
	}
	h.expires, _ = s.expiries.At(h.key)
	h.variants, h.ambiguous = slices.Clone(s.variants[h.key]), s.ambiguous[h.key]
	return h, true
}

// adopt goes on with a name that was not here. begun says that the control plane
// has had a request of its type on the present stream.
func (s *subscriptions) adopt(h held, begun bool) {
	// As on a new stream, if all that is wanted goes on from one version.
	if len(s.names) == 0 && !begun {
		s.shown = h.version
	} else if s.shown != h.version {
		s.shown = ""
	}
	switch {
	case h.sub.answered && begun && s.sotw:
		h.sub.left = true // as after it was given up here: what is on its way may not have it
	case h.sub.left:
		h.sub.answered, h.sub.left = false, false // as on a new stream: it was not certain
	}
	s.adoptVersion(&h.sub.answer)
	s.keep(h.sub)
	if via := h.sub.via; via != "" {
		s.claims.add(via, h.sub.name)
	}
	if !h.expires.IsZero() {
		s.expiries.Set(h.key, h.expires)
	}
	if len(h.variants) > 0 {
		if s.variants == nil {
			s.variants = map[string][]variant{}
		}
		s.variants[h.key] = h.variants
	}
	if h.ambiguous {
		if s.ambiguous == nil {
			s.ambiguous = map[string]bool{}
		}
		s.ambiguous[h.key] = true
	}
}

// move goes on with a name that is wanted. There is something to tell only if it has
// no answer.
func (s *subscriptions) move(h held, begun bool, down *cache.Error, u *cache.Update) {
	if s.names[h.sub.name] != nil {
		s.start(h.sub.name, down, u) // it has not been given up here yet
		return
	}
	s.adopt(h, begun)
	h.sub.started, h.sub.wanted = true, true
	s.wanted++
	s.touch(h.sub)
	if !h.sub.answered && h.sub.failure == nil && down != nil {
		s.fail(h.sub, down, u)
	}
}
