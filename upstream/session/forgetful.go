package session

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// A delta control plane has to report what is gone of initial_resource_versions. Some (java-control-plane) do not
// read these: a new stream gets everything that is requested, and nothing about the rest. Such a control plane shows
// that it has not read them: it sends again what was listed, in the same version. Then its first answer is the
// whole, once it is complete (see grace.go): what was listed and does not come is gone.
//
// A control plane that has restarted may have given all resources other versions. If it sends a member of the wildcard
// again with the same content, and not all of them, it has either not read the list, or knows that the others are held
// in the version that they have. So the relay opens another stream, on which it lists one of the others without its
// version. A control plane that reads the list sends this one, or that it is gone. One that does not sends what it
// sent before.

// sendsAgain reports whether a response has a resource that the control plane was told to be held, in the version that
// it was told.
func (v *resourceUpdate) sendsAgain(held *cache.Resource) bool {
	return v.resource != nil && held != nil && v.resource.Version != "" && v.resource.Version == held.OriginVersion()
}

// renews reports whether a response has the content of a held resource, with another version.
func (v *resourceUpdate) renews(held *cache.Resource) bool {
	return v.resource != nil && held != nil && v.resource.Version != held.OriginVersion() && bytes.Equal(v.resource.value, held.Value())
}

// noteTold notes a response for a name that was listed with its version.
func (n *Names) noteTold(v *resourceUpdate) {
	sub := n.subs[v.key]
	if sub == nil || !sub.told {
		return
	}
	sub.told = false
	n.unsaid = max(0, n.unsaid-1)
	n.forgets = n.forgets || n.sets == nil && len(v.aliases) == 0 && v.sendsAgain(sub.answer.Resource)
}

// awaitTold schedules the removal of the names that were listed and have not come.
func (n *Names) awaitTold(now time.Time) {
	if !n.forgets {
		return
	}
	if n.toldAt.IsZero() {
		for sub := range n.all() {
			if sub.told {
				n.unsaid++
			}
		}
	}
	n.toldAt = now.Add(graceTime)
}

// loseTold removes the names that were listed and have not come, if it is time.
func (n *Names) loseTold(now time.Time, u *cache.Update) {
	if n.toldAt.IsZero() || now.Before(n.toldAt) {
		return
	}
	n.forgets, n.toldAt, n.unsaid = false, time.Time{}, 0
	if n.sets != nil {
		return // what came again may have been for these
	}
	for _, name := range n.sorted() {
		sub := n.subs[name]
		if !sub.told {
			continue
		}
		sub.told = false
		n.expiries.End(name)
		v := resourceUpdate{key: name, gone: true}
		if c, ok := n.take(&v); ok {
			u.Changes = append(u.Changes, c)
			n.forgotten++
		}
		u.Changes = n.takeAliases([]resourceUpdate{v}, u.Changes)
	}
}

// invite notes that a member was listed without its version.
func (c *set) invite(key string) {
	if c.invited == nil {
		c.invited = map[string]struct{}{}
	}
	c.invited[key] = struct{}{}
}

// noteTold notes the first response for a wildcard whose members were listed with their versions.
func (s *Sets) noteTold(now time.Time, v *accepted) {
	c := s.wildcard
	if len(s.globs) > 0 || s.names != nil {
		c.told, c.unsaid = false, nil // what comes again may be for these
	}
	if c.told {
		c.told = false
		s.noteRepeats(c, v)
	}
	if c.unsaid == nil {
		return
	}
	for i := range v.list {
		delete(c.unsaid, v.list[i].key)
	}
	s.graces.Set(c, now.Add(s.habits.grace()))
}

// noteRepeats notes whether the first response repeats members that were listed with their versions.
func (s *Sets) noteRepeats(c *set, v *accepted) {
	repeats, renews := false, false
	for i := range v.list {
		o := &v.list[i]
		if _, invited := c.invited[o.key]; invited {
			continue
		}
		held := c.members.Get(o.key)
		repeats = repeats || o.sendsAgain(held)
		renews = renews || o.renews(held)
	}
	switch {
	case repeats || renews && !s.habits.readsList():
		c.renewed = !repeats
		c.unsaid = make(map[string]struct{}, c.members.Len())
		for key := range c.members.All() {
			c.unsaid[key] = struct{}{}
		}
	case c.doubted != "":
		c.doubted = ""
		s.habits.readList()
	}
}

// doubt reports whether it is not known that the members that have not come are gone. In that case it lists one of them
// on another stream.
func (s *Sets) doubt(c *set) bool {
	doubted := c.doubted
	c.doubted = ""
	_, lost := c.unsaid[doubted]
	switch {
	case !c.renewed || lost:
		return false
	case doubted != "":
		s.habits.readList()
	case len(c.unsaid) > 0:
		c.doubted, c.silent = slices.Min(slices.Collect(maps.Keys(c.unsaid))), true
		c.doubts = len(c.unsaid)
	}
	return true
}

// loseTold removes the members that were listed and have not come, and returns their removals.
func (s *Sets) loseTold(c *set) []cache.Change {
	if c.unsaid == nil || s.doubt(c) {
		c.unsaid = nil
		return nil
	}
	var lost []cache.Change
	for _, key := range slices.Sorted(maps.Keys(c.unsaid)) {
		if c.members.Get(key) != nil {
			c.put(key, nil)
			s.drop(key)
			lost = append(lost, cache.Change{Name: key, Gone: true, Origin: c.origin})
		}
	}
	c.unsaid = nil
	s.forgotten += len(lost)
	return lost
}

// Unsaid returns how many resources are held that the control plane, which may not have read that, has not sent again.
func (t *Topics) Unsaid() (n int) {
	if t.Names != nil {
		n += t.Names.unsaid
	}
	if t.Sets != nil && t.Sets.wildcard != nil {
		switch c := t.Sets.wildcard; {
		case c.unsaid != nil:
			n += len(c.unsaid)
		case c.doubted != "":
			n += c.doubts
		}
	}
	return n
}

// TakeForgotten returns how many resources were removed since the last call because the control plane does not read
// initial_resource_versions, and has not sent them again on a new stream.
func (t *Topics) TakeForgotten() (n int) {
	for k := range t.each {
		c := k.common()
		n += c.forgotten
		c.forgotten = 0
	}
	return n
}
