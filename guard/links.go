package guard

import (
	"sync"
	"time"
)

// Links are the servers of a scope, as far as it matters whether one of them still says that what
// is held is gone. The zero value has none: such a source can always be reached. Links are safe for
// concurrent use, and their lock comes last.
type Links struct {
	mu      sync.Mutex
	servers map[int]*link
}

// link is the connection to a server.
type link struct {
	opened, responded time.Time // of the present stream, zero if that is not so
}

const (
	// settle is how long nothing goes after the first response of a new stream.
	settle = 2 * time.Second
	// recheck is how often the guard looks whether a source is back.
	recheck = time.Second
)

// Opened notes that a server has a stream.
func (l *Links) Opened(server int) {
	l.set(server, func(k *link) { k.opened, k.responded = time.Now(), time.Time{} })
}

// Responded notes the first response of a stream.
func (l *Links) Responded(server int) {
	l.set(server, func(k *link) { k.responded = time.Now() })
}

// Lost notes that a server has no stream.
func (l *Links) Lost(server int) { l.set(server, func(k *link) { *k = link{} }) }

func (l *Links) set(server int, change func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.servers[server]
	if k == nil {
		k = &link{}
		if l.servers == nil {
			l.servers = map[int]*link{}
		}
		l.servers[server] = k
	}
	change(k)
}

// Waits returns until when what was held since a time, for so long, has to wait for a source's word: as
// long as no server is there, and until one has answered that has come since. A control plane that has
// nothing new to say may say nothing, but must have had as long for it. Waits returns zero if nothing
// has to wait.
func (l *Links) Waits(since time.Time, hold time.Duration) (until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.servers) == 0 {
		return time.Time{}
	}
	until = time.Now().Add(recheck)
	for _, k := range l.servers {
		at := until
		switch {
		case !k.responded.IsZero() && !k.responded.After(since):
			return time.Time{}
		case !k.responded.IsZero():
			at = k.responded.Add(settle)
		case !k.opened.IsZero():
			at = k.opened.Add(hold)
		}
		if at.Before(until) {
			until = at
		}
	}
	return until
}
