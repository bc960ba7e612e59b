package history

import (
	"cmp"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Log has the changes of one authority. A nil *Log keeps nothing.
type Log struct {
	history *History
	// changes has what changed, and first the first answers.
	changes, first ring
	lines          loglines.Shared
}

// Record keeps what updates have changed. before is what the cache had before it got them, in the same order. It is
// called only if the Log is On.
func (l *Log) Record(cause Cause, updates []cache.Update, before []cache.Before) {
	for i := range updates {
		var e Entry
		if l.compare(&e, &updates[i], &before[i]); e.Added+e.Changed+e.Removed+e.First == 0 {
			continue
		}
		l.describe(&e, cause, &updates[i])
		l.add(&e)
	}
}

// KeepBack keeps what clients do not get yet of a response with these updates. It is called after everything else of
// the response was recorded.
func (l *Log) KeepBack(updates []cache.Update) {
	if !l.On() {
		return
	}
	for i := range updates {
		u := &updates[i]
		kept, more := u.Receipt.TakeKeptBack(u.TypeURL)
		if len(kept) == 0 {
			continue
		}
		e := Entry{Kept: kept, KeptMore: more}
		l.describe(&e, "", u)
		l.add(&e)
	}
}

// On reports whether the Log keeps anything.
func (l *Log) On() bool { return l != nil && l.history.on.Load() }

// compare notes what an update changes.
func (l *Log) compare(e *Entry, u *cache.Update, before *cache.Before) {
	if len(before.Entries) > 0 {
		for i := range u.Changes {
			c, was := &u.Changes[i], before.Entries[i]
			switch {
			case was == nil || !c.HasState():
			case was.Status == cache.Requested || was.Status == cache.Failed && was.Resource == nil:
				e.First++
			default:
				e.note("", c, was.Resource)
			}
		}
	}
	var others map[string]struct{} // the names that another set of the update, or an entry, has changed
	if len(u.Sets) > 1 || len(e.Changes) > 0 && len(u.Sets) > 0 {
		others = map[string]struct{}{}
		for i := range e.Changes {
			others[e.Changes[i].Name] = struct{}{}
		}
	}
	for i := range u.Sets {
		set, was := &u.Sets[i], &before.Sets[i]
		switch {
		case !was.Known || set.Err != nil:
		case !was.Present:
			for j := range set.Changes {
				if set.Changes[j].Resource != nil {
					e.First++
				}
			}
		default:
			for j := range set.Changes {
				c, old := &set.Changes[j], was.Member(j)
				switch {
				case !c.HasState():
				case was.Beginning && old == nil && c.Resource != nil:
					e.First++
				case others == nil:
					e.note(set.Name, c, old)
				default:
					if _, is := others[c.Name]; !is && e.note(set.Name, c, old) {
						others[c.Name] = struct{}{}
					}
				}
			}
		}
	}
}

// note notes a change of a name that had a resource, nil for none. It reports whether the content has changed.
func (e *Entry) note(set string, c *cache.Change, old *cache.Resource) bool {
	switch is := c.Resource; {
	case is == nil && old == nil, is != nil && old != nil && is.Hash() == old.Hash():
		return false
	case old == nil:
		e.Added++
	case is == nil:
		e.Removed++
	default:
		e.Changed++
	}
	if len(e.Changes) < mostNames {
		e.Changes = append(e.Changes, changeOf(set, c.Name, old, c.Resource))
	}
	return true
}

// describe notes where an update comes from.
func (l *Log) describe(e *Entry, cause Cause, u *cache.Update) {
	e.Scope, e.TypeURL, e.Cause, e.Responses, e.Progress = u.Scope, u.TypeURL, cause, 1, u.Progress
	e.Server = u.Server
	if r := u.Receipt; r != nil {
		e.Server = cmp.Or(u.Server, r.Server)
		e.Receipt = Receipt{At: r.At, Version: r.Version, Nonce: r.Nonce, Response: r.Number}
		if r.RolledOut {
			e.Cause = RolledOut
		}
	}
}

// add adds an entry to its ring, and logs it.
func (l *Log) add(e *Entry) {
	if e.Added+e.Changed+e.Removed+len(e.Kept) > 0 {
		l.changes.add(l.history, e, apart)
	} else {
		l.first.add(l.history, e, 0)
	}
	if log, ok := l.lines.Next(l.history.log); ok {
		log.Info("resources changed", "authority", e.Scope.Authority, "partition", e.Scope.Partition, "type_url", e.TypeURL,
			"added", e.Added, "changed", e.Changed, "removed", e.Removed, "first_answers", e.First, "kept_back", len(e.Kept)+e.KeptMore,
			"cause", string(e.Cause), "server", e.Server, "version", e.Receipt.Version, "nonce", e.Receipt.Nonce)
	}
}
