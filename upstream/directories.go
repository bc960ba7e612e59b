package upstream

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// TP1: "Glob": a name is in one directory, and a glob is one directory. Clients choose
// how many there are of both, so neither is looked for among all of the other: names and
// members are kept by the glob of their directory. That is not begun before there is a
// glob that needs it, as most types have none.

// isKey says that a name is spelled canonically, and not bad: a bad name is in no
// directory, whichever it seems to be in.
func isKey(name string) bool {
	k, err := urn.KeyOf(name)
	return err == nil && k.Name == name
}

// directoryOf returns the glob of the directory that a name is in, empty if it is in none.
func directoryOf(name string) string {
	if glob, ok := urn.GlobOf(name); ok && isKey(name) {
		return glob
	}
	return ""
}

// directories are the names of a type by their directories. The zero value is not begun.
type directories struct {
	byGlob map[string]map[string]*subscription
}

// in returns the names in a glob's directory. names are all names there are.
func (d *directories) in(glob string, names map[string]*subscription) map[string]*subscription {
	if d.byGlob == nil {
		d.byGlob = map[string]map[string]*subscription{}
		for _, sub := range names {
			d.add(sub)
		}
	}
	return d.byGlob[glob]
}

func (d *directories) add(sub *subscription) {
	if d.byGlob == nil {
		return
	}
	glob := directoryOf(sub.name)
	if glob == "" {
		return
	}
	if d.byGlob[glob] == nil {
		d.byGlob[glob] = map[string]*subscription{}
	}
	d.byGlob[glob][sub.name] = sub
}

func (d *directories) remove(sub *subscription) {
	if d.byGlob == nil {
		return
	}
	if glob := directoryOf(sub.name); glob != "" {
		if delete(d.byGlob[glob], sub.name); len(d.byGlob[glob]) == 0 {
			delete(d.byGlob, glob)
		}
	}
}

// parts are the members of the wildcard by their directories. The zero value is not
// begun.
type parts struct {
	byGlob map[string]*cache.Resources
}

// put notes a member, or that there is none if r is nil.
func (p *parts) put(key string, r *cache.Resource) {
	if p.byGlob == nil {
		return
	}
	glob := directoryOf(key)
	part := p.byGlob[glob]
	switch {
	case glob == "":
	case r == nil:
		if part.Delete(key); part.Len() == 0 {
			delete(p.byGlob, glob)
		}
	case part == nil:
		part = &cache.Resources{}
		p.byGlob[glob] = part
		fallthrough
	default:
		part.Put(key, r)
	}
}

// inWildcard returns the members of the wildcard that are in a glob's directory.
func (s *subscriptions) inWildcard(glob string) *cache.Resources {
	members := s.members()
	if members.Len() == 0 {
		return nil
	}
	p := &s.wildcard.set.parts
	if p.byGlob == nil {
		p.byGlob = map[string]*cache.Resources{}
		for key, r := range members.All() {
			p.put(key, r)
		}
	}
	return p.byGlob[glob]
}

// keep keeps the subscription to a name.
func (s *subscriptions) keep(sub *subscription) {
	s.names[sub.name] = sub
	s.near.add(sub)
}
