package upstream

import "sync"

// EventKind is a kind of event of a control plane, as a stream to it sees it.
type EventKind uint8

// The kinds of events.
const (
	// Opened: a stream to the control plane is open, which does not mean much yet. A control plane
	// that is polled has answered.
	Opened EventKind = iota
	// Responded: the first response of a stream has come. The sink gets its updates
	// after the event.
	Responded
	// Lost: a stream on which a response came has ended, and is being opened
	// again. To gRFC A57 that is no error.
	Lost
	// Failed: a stream could not be opened, or has ended without a response. The sink gets the
	// error after the event.
	Failed
	// Ended: a stream has ended because it is no longer needed, or because a new one is needed.
	Ended
)

// Event is an event of a control plane.
type Event struct {
	Kind EventKind
	// TypeURL is that of a stream for one type. NamesStream is set for a second stream
	// for names. Events of all streams as a whole have neither.
	TypeURL     string
	NamesStream bool
	// Reason is why the stream was lost or has failed.
	Reason string
}

// mergeEvents merges the events of a control plane's streams: the control plane can be
// reached as long as one of them is not lost, and has failed when all have.
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
