package guard

import (
	"sync"
	"time"
)

// Links are the streams of a scope to its servers, type by type, as far as it matters whether a server
// still says that what is held is gone. The zero value has none: such a source can always be reached.
// Links are safe for concurrent use, and their lock comes last.
type Links struct {
	mu    sync.Mutex
	types map[linkKey]*link
}

type linkKey struct {
	server  int
	typeURL string
}

// link is the stream on which a type is requested.
type link struct {
	opened, answered time.Time // of the present stream, zero if that is not so
}

const (
	// settle is how long nothing goes after the first answer on a new stream. silent is how long
	// after its begin, if there is no answer: then nothing is new.
	settle = 2 * time.Second
	silent = time.Minute
	// recheck is how often the guard looks whether a source is back.
	recheck = time.Second
)

// Opened notes that a type has a stream to a server.
func (l *Links) Opened(server int, typeURL string) {
	l.set(server, typeURL, func(k *link) { *k = link{opened: time.Now()} })
}

// Answered notes that a server has answered a type, for the first time on a stream.
func (l *Links) Answered(server int, typeURL string) {
	l.set(server, typeURL, func(k *link) { k.answered = time.Now() })
}

// Lost notes that a type has no stream.
func (l *Links) Lost(server int, typeURL string) {
	l.set(server, typeURL, func(k *link) { *k = link{} })
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

// Waits returns until when what was held of a type since a time has to wait for a source's word: as
// long as the type has no stream, and until a server has answered on one that has come since. It is zero if
// nothing has to wait.
func (l *Links) Waits(typeURL string, since time.Time) (until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, known := time.Now(), false
	for at, k := range l.types {
		if at.typeURL != typeURL {
			continue
		}
		word := now.Add(recheck)
		switch {
		case !k.answered.IsZero() && !k.answered.After(since):
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
		until = now.Add(recheck) // another server may be there sooner
	}
	return until
}
