package session

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// A name can be requested before a client requests it (prefetch). Then silence says nothing to the first
// client: SotW control planes that do not have a resource yet say so by silence, and the client has only
// begun to wait. So the time of an answer begins anew.

// adopt notes that the first client requests a name that has no answer.
func (n *Names) adopt(name string, now time.Time, down *cache.Error, u *cache.Update) {
	sub := n.subs[name]
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
