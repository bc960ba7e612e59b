package session

import (
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// The relay can request a name before a client does (prefetch). SotW control planes that do not have a
// resource do not answer. When the first client requests the name, that silence must not count yet, as the
// client has only begun to wait. So the response timeout starts again.
//
// Some delta control planes (java-control-plane) forget a name that they have removed: when its resource
// comes back, they send it to a new subscription only. So the relay subscribes again when another client requests a
// name that is absent: at once, and then once a second for all of them. It does not if the glob of the name's directory
// shares the stream and is answered: the glob brings the resource when it comes back. A control plane that lists fewer
// members than it serves by name, because it has not restored everything, would remove the member when the name is given
// up.

const returnsEvery = time.Second

// takeReturns subscribes again to the absent names that clients have requested, if it is time.
func (n *Names) takeReturns(now time.Time) {
	if len(n.returns.names) == 0 || now.Before(n.returns.at) {
		return
	}
	slices.Sort(n.returns.names)
	for _, name := range slices.Compact(n.returns.names) {
		if sub := n.subs[name]; sub != nil && sub.isAbsent() && !n.sets.hasAnswered(name) {
			n.nudges.names = append(n.nudges.names, name)
		}
	}
	n.returns.names = nil
}

// adopt notes that a client requests a name: the first one, and there is no answer; or the name is absent.
func (n *Names) adopt(name string, now time.Time, down *cache.Error, u *cache.Update) {
	sub := n.subs[name]
	if sub != nil && !n.sotw && sub.sent && sub.started && sub.isAbsent() {
		if len(n.returns.names) == 0 {
			n.returns.at = later(now, n.returns.at.Add(returnsEvery))
		}
		n.returns.names = append(n.returns.names, name)
		return
	}
	if sub == nil || !sub.started || sub.refused || sub.answer.Resource != nil || sub.answered && !sub.isSilent() {
		return
	}
	if down != nil {
		n.fail(sub, down, u)
		return
	}
	sub.answered, sub.failure = false, nil
	sub.answer = cache.Change{}
	if sub.sent {
		n.wait([]*subscription{sub}, now)
	}
}
