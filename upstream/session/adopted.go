package session

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// The relay can request a name before a client does (prefetch). SotW control planes that do not have a
// resource do not answer. When the first client requests the name, that silence must not count yet, as the
// client has only begun to wait. So the response timeout starts again.

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
