package upstream

import "sync"

// EventKind says what has become of a control plane, as a stream to it sees it.
type EventKind uint8

// The kinds of events.
const (
	// Opened: a stream to it is open, which says little yet; or, of one that is
	// polled, it has answered.
	Opened EventKind = iota
	// Responded: the first response of a stream has come. What it says comes to the
	// sink after that.
	Responded
	// Lost: a stream that had brought a response has ended, and is being opened
	// again. gRFC A57 calls that no error.
	Lost
	// Failed: a stream could not be opened, or has ended without a response. After that
	// the sink gets the error.
	Failed
	// Ended: a stream is not needed any more, or is needed anew.
	Ended
)

// Event is what has become of a control plane.
type Event struct {
	Kind EventKind
	// TypeURL is that of a stream for one type, and NamesStream is set of a second stream
	// for names. Events of all streams as a whole have neither.
	TypeURL     string
	NamesStream bool
	// Reason is why, if it is Lost or Failed.
	Reason string
}

// mergeEvents makes one control plane's events of those of its streams: it can be
// reached as long as one of them can, and has failed when all have.
func mergeEvents(watch func(Event)) func(Event) {
	if watch == nil {
		return nil
	}
	var mu sync.Mutex
	type stream struct {
		typeURL     string
		namesStream bool
	}
	last := map[stream]EventKind{}
	all := func(fits func(EventKind) bool) bool {
		for _, kind := range last {
			if !fits(kind) {
				return false
			}
		}
		return true
	}
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		of := stream{e.TypeURL, e.NamesStream}
		last[of] = e.Kind
		pass := true
		switch e.Kind {
		case Lost:
			pass = all(func(k EventKind) bool { return k == Lost || k == Failed })
		case Failed:
			pass = all(func(k EventKind) bool { return k == Failed })
		case Ended:
			delete(last, of)
			pass = len(last) == 0
		}
		if pass {
			watch(Event{Kind: e.Kind, Reason: e.Reason})
		}
	}
}
