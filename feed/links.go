package feed

import (
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/internal/delivery"
)

// Links tracks a scope's streams to its servers, by type, to know whether a server has confirmed that held members
// are gone, and whether a server answers for names. The zero value has no streams: such a source is always reachable.
// Links is safe for concurrent use, and its lock comes last.
type Links struct {
	mu    sync.Mutex
	types map[linkKey]*link
	names map[string]time.Time // when the active server last answered for names of a type, in SotW
}

type linkKey struct {
	server  int
	typeURL string
}

// link has the streams on which a type is requested.
type link struct {
	streams map[any]stream // by delivery.Event.Stream
	// last is when the server last answered on any stream, and first when it began to do so again and again.
	first, last time.Time
}

// stream is when a stream was opened, and when the server answered on it, zero if it has not.
type stream struct{ opened, answered time.Time }

const (
	// settle is how long members stay after the first answer on a new stream. silent is how long after the start of a
	// stream they stay if there is no answer: then the server has nothing new.
	settle = 2 * time.Second
	silent = time.Minute
	// recheck is how often the guard checks whether a source is back.
	recheck = time.Second
)

// Event notes what happens to a type's stream to a server.
func (l *Links) Event(server int, e delivery.Event) {
	l.set(server, e.TypeURL, func(k *link) {
		now := time.Now()
		switch e.Kind {
		case delivery.TypeOpened:
			k.streams[e.Stream] = stream{opened: now}
		case delivery.TypeAnswered:
			k.streams[e.Stream] = stream{k.streams[e.Stream].opened, now}
			if now.Sub(k.last) > silent {
				k.first = now
			}
			k.last = now
		default:
			delete(k.streams, e.Stream)
		}
	})
}

// close forgets the streams to a server, which is not heard any more.
func (l *Links) close(server int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, k := range l.types {
		if at.server == server {
			clear(k.streams)
		}
	}
}

func (l *Links) set(server int, typeURL string, change func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := linkKey{server, typeURL}
	k := l.types[at]
	if k == nil {
		k = &link{streams: map[any]stream{}}
		if l.types == nil {
			l.types = map[linkKey]*link{}
		}
		l.types[at] = k
	}
	change(k)
}

// Waits returns when to check again whether members may go that the guard has held since the time since. They wait while
// the type has no stream, and then until a server has answered on a stream that was opened after that time. If late is
// not zero, a server that has answered again and again since then is believed, although its streams do not last. Waits
// returns zero if they need not wait.
func (l *Links) Waits(typeURL string, since, late time.Time) (until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, known := time.Now(), false
	for at, k := range l.types {
		if at.typeURL != typeURL {
			continue
		}
		if k.brokenSince(late) {
			return time.Time{}
		}
		known = true
		for _, st := range k.streams {
			word := st.opened.Add(silent)
			if !st.answered.IsZero() {
				word = st.answered.Add(settle)
			}
			switch {
			case !st.answered.IsZero() && !st.answered.After(since):
				return time.Time{}
			case until.IsZero() || word.Before(until):
				until = word
			}
		}
	}
	if again := now.Add(recheck); known && (until.IsZero() || until.After(again)) {
		until = again // another stream may be answered sooner
	}
	return until
}

// brokenSince reports whether the server has answered again and again since a time.
func (k *link) brokenSince(at time.Time) bool {
	return !at.IsZero() && !k.first.IsZero() && !k.first.After(at) && time.Since(k.last) <= silent
}

// answered notes a SotW response of the active server for names of a type.
func (l *Links) answered(typeURL string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names = map[string]time.Time{}
	}
	l.names[typeURL] = time.Now()
}

// answeredSince reports whether there was such a response since then.
func (l *Links) answeredSince(typeURL string, since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.names[typeURL]
	return ok && !at.Before(since)
}
