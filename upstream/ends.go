package upstream

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// ends returns when the times to live end of what an update tells, for a sink that goes on
// when this control plane does not (Options.TellEnds): what is told may have come before.
// The caller holds mu.
func (s *Stream) ends(u *cache.Update) map[string]time.Time {
	f := s.feeds[u.TypeURL]
	if !s.opts.TellEnds || f == nil {
		return nil
	}
	return f.subs.ends(u)
}

func (s *subscriptions) ends(u *cache.Update) map[string]time.Time {
	if s.expiries.Len() == 0 {
		return nil
	}
	ends := map[string]time.Time{}
	note := func(changes []cache.Change) {
		for i := range changes {
			name := changes[i].Name
			key := name
			if sub := s.names[name]; sub != nil && sub.via != "" {
				key = sub.via
			}
			if at, ok := s.expiries.At(key); ok {
				ends[name] = at
			}
		}
	}
	note(u.Changes)
	for i := range u.Sets {
		note(u.Sets[i].Changes)
	}
	return ends
}
