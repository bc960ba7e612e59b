package downstream

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// One client's subscription to a name.

// told is what a client was last told of a name.
type told uint8

const (
	toldNothing told = iota
	toldResource
	toldAbsent
	toldFailed
)

// asked is how a client asks for something: by a name, or by a ResourceLocator,
// which may have dynamic parameters (TP2).
type asked struct {
	name    string
	locator bool
	params  string // as in cache.Scope
}

func byName(name string) asked { return asked{name: name} }

func byLocator(l *discoveryv3.ResourceLocator) asked {
	return asked{name: l.GetName(), locator: true, params: cache.Params(l.GetDynamicParameters()).String()}
}

// key is what the subscription is kept under: the name, and what no name has.
func (a asked) key() string {
	if !a.locator {
		return a.name
	}
	return a.name + "\x00" + a.params
}

// of is how the client would ask for another name in the same way.
func (a asked) of(name string) asked {
	a.name = name
	return a
}

// nameSub is a client's subscription to one name.
type nameSub struct {
	cache.Watch
	subs  *subscriptions
	entry *cache.Entry // nil if the name can mean nothing
	rare  *rareSub     // nil for most
	hash  uint64       // of the content that it was told
	// beats is the heartbeat that it was told last, errTold a hash of the error, 0
	// for none.
	beats, errTold uint32
	told           told
	// mayHold: the client may hold the resource from an earlier stream, or by a set.
	mayHold bool
	// missed: it was missing in a full state because nothing was known of it.
	missed bool
	// covered: a set's part of the full state has it.
	covered bool
	queued  bool // in subscriptions.pending
	ended   bool
	inInbox bool // guarded by inbox.mu
}

// rareSub is what most subscriptions do not have: those of a plain name in the
// spelling of the cache.
type rareSub struct {
	asked
	key string       // of asked
	err *cache.Error // why the name can mean nothing
	// kept is what the client holds from before the name became a redirect, until
	// there is an answer of where that leads.
	kept *cache.Resource
	// withheld is not for this client: it came later.
	withheld *cache.Resource
	// constraints are of the variant that the client was told.
	constraints string
}

func newRare(a asked) *rareSub { return &rareSub{asked: a, key: a.key()} }

// name is the client's spelling.
func (s *nameSub) name() string {
	if s.rare != nil {
		return s.rare.name
	}
	return s.entry.Key().Name // one string for all clients
}

// key is what the subscription is kept under: the client's spelling, and more if it
// asked by a locator.
func (s *nameSub) key() string {
	if s.rare != nil {
		return s.rare.key
	}
	return s.entry.Key().Name
}

// asks is how the client asked for it.
func (s *nameSub) asks() asked {
	if s.rare != nil {
		return s.rare.asked
	}
	return byName(s.name())
}

// constraints are of the variant that the client was told, empty for none.
func (s *nameSub) constraints() string {
	if s.rare == nil {
		return ""
	}
	return s.rare.constraints
}

// byLocator says that the client asked by a ResourceLocator.
func (s *nameSub) byLocator() bool { return s.rare != nil && s.rare.locator }

// form is how the client is told the resource.
func (s *nameSub) form() cache.Form {
	if s.byLocator() {
		return s.subs.form | cache.ByLocator
	}
	return s.subs.form
}

// Changed implements cache.Watcher.
func (s *nameSub) Changed() cache.Waker { return s.subs.inbox.mark(s) }

func (s *nameSub) marked() *bool { return &s.inInbox }

func (s *nameSub) moveToPending() {
	if !s.ended && s.redirected() {
		s.subs.moving = append(s.subs.moving, s)
	}
	if !s.queued && !s.ended {
		s.queued = true
		s.subs.pending = append(s.subs.pending, s)
	}
}

// state is what there is to tell of the name.
func (s *nameSub) state() cache.State {
	st := s.stated()
	if s.rare == nil || s.rare.kept == nil {
		return st
	}
	switch st.Status {
	case cache.Requested, cache.Failed:
		return cache.State{Status: cache.Present, Resource: s.rare.kept, Err: st.Err, Beats: s.beats}
	case cache.Present, cache.Absent:
		s.rare.kept = nil
	}
	return st
}

// stated is what the authority says of the name.
func (s *nameSub) stated() cache.State {
	if s.entry == nil {
		if s.rare.err.Code == codes.NotFound {
			return cache.State{Status: cache.Absent, Err: s.rare.err}
		}
		return cache.State{Status: cache.Failed, Err: s.rare.err}
	}
	st := s.entry.State()
	if r := st.Resource; r != nil && r.Redirect() != "" {
		switch {
		case s.redirected():
			return cache.State{Status: cache.Requested} // until it has moved
		case s.subs.sotw && r.NeedsWrapping(s.name(), s.form()):
			return cache.State{Status: cache.Failed, Err: cache.ErrNeedsWrapping()}
		}
	}
	if s.rare == nil || s.rare.withheld == nil {
		return st
	}
	switch {
	case st.Resource != s.rare.withheld:
		s.rare.withheld = nil
		return st
	case st.Err != nil:
		return cache.State{Status: cache.Failed, Err: st.Err}
	}
	return cache.State{Status: cache.Requested}
}

// known says whether the authority has said what the name is.
func (s *nameSub) known() bool {
	switch s.state().Status {
	case cache.Present, cache.Absent:
		return true
	case cache.Requested, cache.Failed:
	}
	return false
}
