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

// link is the stream on which a type is requested.
type link struct {
	opened, answered time.Time // for the current stream, zero if there is none or no answer
	// last is when the server last answered on any stream, and first when it began to do so again and again.
	first, last time.Time
}

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
		switch e.Kind {
		case delivery.TypeOpened:
			*k = link{opened: time.Now(), first: k.first, last: k.last}
		case delivery.TypeAnswered:
			k.answered = time.Now()
			if k.answered.Sub(k.last) > silent {
				k.first = k.answered
			}
			k.last = k.answered
		default:
			*k = link{first: k.first, last: k.last}
		}
	})
}

func (l *Links) set(server int, typeURL string, change func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := linkKey{server, typeURL}
	k := l.types[at]
	if k == nil {
		k = &link{}
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
		word := now.Add(recheck)
		switch {
		case !k.answered.IsZero() && !k.answered.After(since), k.brokenSince(late):
			return time.Time{}
		case !k.answered.IsZero():
			word = k.answered.Add(settle)
		case !k.opened.IsZero():
			word = k.opened.Add(silent)
		}
		if !known || word.Before(until) {
			until, known = word, true
		}
	}
	if until.After(now.Add(recheck)) {
		until = now.Add(recheck) // another server may be reachable sooner
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
