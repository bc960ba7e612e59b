package downstream

import (
	"errors"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// Names gives the names that one client uses their meaning. It is used by one
// stream at a time.
type Names interface {
	// Key returns what a name (or cache.Wildcard) of that type means for the
	// client. The error, for the client's eyes, says why it can mean nothing.
	Key(typeURL, name string) (cache.Key, error)
	// Close is called once, when the client has gone and watches nothing.
	Close()
}

// Topics is what the client's subscriptions watch: a *cache.Cache.
type Topics interface {
	Watch(cache.Key, cache.Watcher) *cache.Entry
	WatchSet(cache.Key, cache.SetWatcher) *cache.Set
	Unwatch(cache.Watcher)
	// Nothing changes between Hold and Release.
	Hold()
	Release()
}

// told is what a client was last told of a name.
type told uint8

const (
	toldNothing told = iota
	toldResource
	toldAbsent
	toldFailed
)

// nameSub is a client's subscription to one name.
type nameSub struct {
	cache.Watch
	subs  *subscriptions
	entry *cache.Entry // nil if the name can mean nothing
	err   *cache.Error // why it can mean nothing
	// name is the client's spelling.
	name string
	hash uint64 // of the content that it was told
	told told
	// mayHold: the client may hold the resource from an earlier stream.
	mayHold bool
	// covered: the wildcard's part of the full state has it.
	covered bool
	queued  bool // in subscriptions.pending
	ended   bool
	inInbox bool // guarded by inbox.mu
}

// Changed implements cache.Watcher.
func (s *nameSub) Changed() cache.Waker { return s.subs.inbox.mark(s) }

func (s *nameSub) marked() *bool { return &s.inInbox }

func (s *nameSub) moveToPending() {
	if !s.queued && !s.ended {
		s.queued = true
		s.subs.pending = append(s.subs.pending, s)
	}
}

// state is what there is to tell of the name.
func (s *nameSub) state() cache.State {
	if s.entry == nil {
		if s.err.Code == codes.NotFound {
			return cache.State{Status: cache.Absent, Err: s.err}
		}
		return cache.State{Status: cache.Failed, Err: s.err}
	}
	return s.entry.State()
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

// setSub is a client's subscription to a wildcard.
type setSub struct {
	cache.SetWatch
	subs    *subscriptions
	set     *cache.Set   // nil if the wildcard can mean nothing
	err     *cache.Error // why
	pending bool         // something may have changed
	fresh   bool         // not answered yet
	errTold bool
	inInbox bool // guarded by inbox.mu
}

// Changed implements cache.Watcher.
func (s *setSub) Changed() cache.Waker { return s.subs.inbox.mark(s) }

func (s *setSub) marked() *bool { return &s.inInbox }

func (s *setSub) moveToPending() { s.pending = true }

func (s *setSub) status() (cache.Status, *cache.Error) {
	if s.set == nil {
		return cache.Failed, s.err
	}
	return s.set.Status()
}

// subscriptions are what one client has subscribed to of one type: what both
// forms have in common.
type subscriptions struct {
	typeURL string
	names   Names
	topics  Topics
	inbox   *inbox
	limit   int // of a response, bytes

	named map[string]*nameSub // by the client's spelling
	wild  *setSub             // nil without a wildcard
	// pending are the names of which there may be something to tell.
	pending []*nameSub
	// rejection is the last NACK's words.
	rejection string
}

func newSubscriptions(typeURL string, names Names, topics Topics, in *inbox, limit int) subscriptions {
	return subscriptions{typeURL: typeURL, names: names, topics: topics, inbox: in, limit: limit, named: map[string]*nameSub{}}
}

// subscribe begins a subscription to a name, or begins it anew: the client may
// have forgotten what it was told.
func (s *subscriptions) subscribe(name string) *nameSub {
	if sub := s.named[name]; sub != nil {
		sub.told = toldNothing
		sub.moveToPending()
		return sub
	}
	sub := &nameSub{subs: s, name: name}
	if key, err := s.names.Key(s.typeURL, name); err != nil {
		sub.err = asError(err)
	} else {
		sub.entry = s.topics.Watch(key, sub)
		if shared := sub.entry.Key().Name; shared == name {
			sub.name = shared // one string for all clients, not one for each
		}
	}
	s.named[sub.name] = sub
	sub.moveToPending()
	return sub
}

// unsubscribe ends a subscription to a name, and says whether there was one.
func (s *subscriptions) unsubscribe(name string) bool {
	sub := s.named[name]
	if sub == nil {
		return false
	}
	delete(s.named, name)
	s.end(sub)
	if len(s.pending) > 2*len(s.named)+minCompact {
		s.pending = slices.DeleteFunc(s.pending, func(sub *nameSub) bool { return sub.ended })
	}
	return true
}

// minCompact is how many subscriptions that have ended may be left in pending
// without looking for them.
const minCompact = 64

func (s *subscriptions) end(sub *nameSub) {
	sub.ended = true
	if sub.entry != nil {
		s.topics.Unwatch(sub)
	}
}

// subscribeWildcard begins the wildcard, or begins it anew.
func (s *subscriptions) subscribeWildcard() {
	if w := s.wild; w != nil && w.set != nil {
		w.set.Restart(&w.SetWatch)
		w.fresh, w.pending, w.errTold = true, true, false
		return
	}
	s.wild = &setSub{subs: s, fresh: true, pending: true}
	if key, err := s.names.Key(s.typeURL, cache.Wildcard); err != nil {
		s.wild.err = asError(err)
	} else {
		s.wild.set = s.topics.WatchSet(key, s.wild)
	}
}

func (s *subscriptions) unsubscribeWildcard() {
	if s.wild != nil && s.wild.set != nil {
		s.topics.Unwatch(s.wild)
	}
	s.wild = nil
}

func (s *subscriptions) subscribed() int { return len(s.named) }

// close ends all subscriptions.
func (s *subscriptions) close() {
	for _, sub := range s.named {
		s.end(sub)
	}
	s.unsubscribeWildcard()
}

// takePending calls f for each name of which there may be something to tell,
// until f returns false: then that name, and the rest, stay pending.
func (s *subscriptions) takePending(f func(*nameSub) bool) {
	for i, sub := range s.pending {
		if sub.ended {
			sub.queued = false
			continue
		}
		if !f(sub) {
			s.pending = append(s.pending[:0], s.pending[i:]...)
			return
		}
		sub.queued = false
	}
	s.pending = nil
}

// describe tells an operator what the client has subscribed to.
func (s *subscriptions) describe() TypeStatus {
	t := TypeStatus{TypeURL: s.typeURL, Subscriptions: len(s.named), LastRejection: s.rejection}
	if s.wild != nil {
		t.Subscriptions++
	}
	return t
}

// asError puts a name's error in the form in which clients are told.
func asError(err error) *cache.Error {
	var e *cache.Error
	if errors.As(err, &e) {
		return e
	}
	return &cache.Error{Code: codes.NotFound, Message: err.Error()}
}
