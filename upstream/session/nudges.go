package session

import (
	"slices"
	"time"
)

// nudges has a control plane asked for an answer if none comes: see recall.go. The zero value has
// it not.
type nudges struct {
	at    time.Time // zero for never
	names []string  // that are to be given up and subscribed to again
}

// due reports whether it is time, once.
func (n *nudges) due(now time.Time) bool {
	if n.at.IsZero() || now.Before(n.at) {
		return false
	}
	n.at = time.Time{}
	return true
}

// take returns what is to be given up and subscribed to again.
func (n *nudges) take(get func(name string) *subscription) []string {
	names := slices.DeleteFunc(n.names, func(name string) bool {
		sub := get(name)
		return sub == nil || !sub.sent || !sub.wanted
	})
	n.names = nil
	return names
}
