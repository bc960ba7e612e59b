package session

import (
	"encoding/binary"

	"github.com/xds-relay/xds-relay/cache"
)

// The wildcard and globs after a new configuration.

// reconfigureSets looks up the sets again.
func (s *subscriptions) reconfigureSets(r *reconfigured) {
	if s.wild != nil {
		s.reconfigureWildcard(s.wild)
	}
	for _, set := range s.byGlob {
		s.reconfigureGlob(r, set)
	}
}

func (s *subscriptions) reconfigureWildcard(w *setSub) {
	key, err := s.lookUp(w.ref)
	if err == nil && w.set == nil {
		err = s.Host.Enter(key)
	}
	switch {
	case err != nil && w.set == nil:
		if e := asError(err); *e != *w.err {
			w.err, w.errSent = e, w.errSent && isDenial(e)
			w.MoveToPending()
		}
	case err != nil:
		w.stop()
		w.err, w.errSent = asError(err), false
		s.Host.Refused(s.typeURL, w.ref.name, err)
		w.MoveToPending()
	case w.set == nil:
		w.err, w.errSent = nil, false
		w.set, w.moved = w.membersOf(s.Topics.WatchSet(s.Host.Side(key), w)), true
		w.MoveToPending()
	case !leadsTo(key, w.set.Key()):
		w.rebind(key)
	}
}

// reconfigureGlob looks up each spelling of a glob again: what a client may have can depend on the spelling.
func (s *subscriptions) reconfigureGlob(r *reconfigured, set *setSub) {
	var to cache.Key
	var refused []changedLookup
	names := set.spelled.all()
	for _, name := range names {
		key, err := s.lookUp(set.ref.of(name))
		switch {
		case err != nil:
			refused = append(refused, changedLookup{key: cache.Key{Name: name}, err: err})
		case to == (cache.Key{}) || leadsTo(key, set.set.Key()):
			to = key
		}
	}
	ends := len(refused) == len(names)
	if ends {
		set.stop()
	} else if !leadsTo(to, set.set.Key()) {
		wasView := s.isView(set)
		set.rebind(to)
		if wasView && !s.isView(set) {
			r.noViews = append(r.noViews, set)
		}
	}
	for _, of := range refused {
		a := set.ref.of(of.key.Name)
		s.removeSpelling(a)
		set.spelled.remove(a.name)
		sub := s.subscribeName(a, cache.Key{}, of.err)
		if ends {
			sub.set(mayHold, set.sent || set.mayHold || len(set.initial) > 0)
			sub.rare().members = set.initial
		}
		r.refusedGlobs = append(r.refusedGlobs, sub)
	}
	if ends {
		s.removeGlob(set)
		s.endSet(set)
		r.ended = append(r.ended, set)
	}
}

// beginRefusedGlob begins a glob that was refused until now, and reports whether it is no longer refused.
func (s *subscriptions) beginRefusedGlob(sub *nameSub) bool {
	a, held, members := sub.ref(), sub.is(mayHold), sub.rare().members
	s.unsubscribeName(sub)
	again, set := s.subscribe(a)
	if set == nil {
		again.set(mayHold, held)
		again.rare().members = members
		return false
	}
	set.mayHold = set.mayHold || held
	for name, version := range members {
		if _, there := set.initial[name]; !there {
			put(&set.initial, name, version)
		}
	}
	return true
}

// rebind has the subscription watch the topic that its name means now.
func (s *setSub) rebind(key cache.Key) {
	subs := s.subs
	subs.Host.Move(s.set.Key(), key)
	was := s.set
	s.moveTo(subs.Host.Side(key))
	s.waits = s.set.Outdated()
	s.keepContent(was)
	if s.glob() {
		subs.removeGlob(s)
		subs.addGlob(s)
	}
}

// stop ends the watch of a set that is refused from now on. The client keeps what it holds.
func (s *setSub) stop() {
	subs, was := s.subs, s.set
	subs.form.beforeMove(s)
	s.keepContent(was)
	s.mayHold, s.sent = s.mayHold || s.sent, false
	subs.countLostSet(s, false)
	subs.Host.Leave(s.set.Key())
	subs.Topics.Unwatch(s)
	s.SetWatch, s.set = cache.SetWatch{}, nil
}

// keepContent records the content that a client holds of the previous set, in place of its versions: the versions of
// another origin say nothing about it.
func (s *setSub) keepContent(was *members) {
	s.mayHold, s.sent = s.mayHold || s.sent, false
	for name, version := range s.initial {
		if version != "" && version[0] == 0 {
			continue // of a set that it watched before the previous one
		}
		content := ""
		if r := was.Member(memberKey(name)); r != nil && r.Version() == version {
			content = contentMark(r)
		}
		s.initial[name] = content
	}
}

// contentMark represents a resource's content in place of its version. No version of an origin begins like that.
func contentMark(r *cache.Resource) string {
	return string(binary.BigEndian.AppendUint64([]byte{0}, r.Hash()))
}

// isVersion reports that what a client holds, by its version or content, is a resource.
func isVersion(held string, r *cache.Resource) bool {
	return held == r.Version() || held != "" && held[0] == 0 && held == contentMark(r)
}
