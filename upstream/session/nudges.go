package session

import (
	"slices"
	"time"
)

// nudges are subscriptions that the session renews to make a silent control plane answer: see
// recall.go. The zero value is for never.
type nudges struct {
	at    time.Time // zero for never
	names []string  // the names to unsubscribe from and subscribe to again
}

// due reports, once, that it is time.
func (n *nudges) due(now time.Time) bool {
	if n.at.IsZero() || now.Before(n.at) {
		return false
	}
	n.at = time.Time{}
	return true
}

// take returns the names to unsubscribe from and subscribe to again.
func (n *nudges) take(get func(name string) *subscription) []string {
	names := slices.DeleteFunc(n.names, func(name string) bool {
		sub := get(name)
		return sub == nil || !sub.sent || !sub.wanted
	})
	n.names = nil
	return names
}
