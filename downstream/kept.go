package downstream

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// kept is what a client holds of a name from before it became a redirect. That is what
// there is to tell of it until there is an answer of where it leads; or, if it has a time
// to live, until that has passed. xDS: "TTL".
type kept struct {
	resource *cache.Resource
	until    time.Time   // zero for ever
	ends     *time.Timer // nil for ever
}

// keep has the client keep what it was told. It was told that earlier, so that a time to
// live ends late rather than early.
func (s *nameSub) keep(was *cache.Resource) {
	r, in := s.makeRare(), s.of().inbox
	r.keep(&kept{resource: was})
	if ttl := was.TTL(); ttl > 0 {
		r.kept.until = time.Now().Add(ttl)
		r.kept.ends = time.AfterFunc(ttl, func() {
			if w := in.mark(s); w != nil {
				w.Wake()
			}
		})
	}
}

// keep has k, which may be nil, in the place of what was kept.
func (r *rareSub) keep(k *kept) {
	if r.kept != nil && r.kept.ends != nil {
		r.kept.ends.Stop()
	}
	r.kept = k
}

// over says that its time has passed.
func (k *kept) over() bool { return !k.until.IsZero() && !time.Now().Before(k.until) }

// state is what there is to tell of the name.
func (s *nameSub) state() cache.State {
	st, r := s.stated(), s.rare()
	if r == nil || r.kept == nil {
		return st
	}
	told := s.told()
	switch answered := st.Status == cache.Present || st.Status == cache.Absent; {
	case !answered && !r.kept.over():
		return cache.State{Status: cache.Present, Resource: r.kept.resource, Err: st.Err, Beats: s.beats()}
	case !answered && told != toldAbsent && told != toldFailed:
		return cache.State{Status: cache.Absent, Was: r.kept.resource}
	}
	r.keep(nil)
	return st
}
