package feed

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/xds-relay/xds-relay/cache"
)

// distinguish has a version name one content, because a client that resumes with a version is sent nothing if the
// resource has it. A control plane may give a version again to another content, for example if it counts from 1 after a
// restart, and so may another server, unless the servers share their versions. Then clients see the version with the
// content's hash: see cache.Resource.Marked. What a server says of the same version and content keeps the version that
// clients have seen.
//
// The control plane is told its own versions: see cache.Resource.OriginVersion. The caller holds mu.
func (f *Feed) distinguish(s *Link, updates []cache.Update) {
	if len(f.Servers.Names) == 0 {
		return // directories and derived resources have hashes
	}
	foreign := f.Servers.Foreign != nil && f.Servers.Foreign(s.index)
	mark := ""
	if foreign {
		mark = "-" + strconv.FormatUint(xxhash.Sum64String(f.Servers.Names[s.index])>>32, 16)
	}
	for i := range updates {
		distinguishOrigins(&updates[i], mark)
		f.distinguishIn(&updates[i], foreign)
	}
}

// distinguishIn is distinguish for the resources of one update. The slices belong to the source.
func (f *Feed) distinguishIn(u *cache.Update, foreign bool) {
	u.Changes, _ = f.distinguished(u, u.Changes, nil, foreign)
	for i := range u.Sets {
		_, set := f.Cache.Find(cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: u.Sets[i].Name})
		if set == nil {
			continue // the cache ignores it
		}
		if changes, copied := f.distinguished(u, u.Sets[i].Changes, set, foreign); copied {
			u.Sets = slices.Clone(u.Sets)
			u.Sets[i].Changes = changes
		}
	}
}

// distinguished returns changes of names, or of a set's members, with the versions that clients may see. They are copied if
// any of them has another version.
func (f *Feed) distinguished(u *cache.Update, changes []cache.Change, set *cache.Set, foreign bool) (_ []cache.Change, copied bool) {
	for i := range changes {
		r := changes[i].Resource
		if r == nil || r.VersionIsHash() {
			continue
		}
		if seen := versioned(r, f.former(u, changes[i].Name, set), foreign); seen != r {
			if !copied {
				changes, copied = slices.Clone(changes), true
			}
			changes[i].Resource = seen
		}
	}
	return changes, copied
}

// former returns what a name, or a set's member, stood for, nil for nothing.
func (f *Feed) former(u *cache.Update, name string, set *cache.Set) *cache.Resource {
	if set != nil {
		return set.Member(name)
	}
	e, _ := f.Cache.Find(cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: name})
	if e == nil {
		return nil
	}
	st := e.Snapshot()
	return cmp.Or(st.Resource, st.Previous)
}

// versioned returns a resource with the version that clients may see. before is what its name stood for, nil for nothing.
func versioned(r, before *cache.Resource, foreign bool) *cache.Resource {
	same := before != nil && before.Name() == r.Name() && before.OriginVersion() == r.OriginVersion()
	switch {
	case same && before.Hash() == r.Hash() && before.Version() == before.OriginVersion():
		return r // also of another server: it shares this version
	case same, foreign:
		return r.Marked()
	}
	return r
}

// distinguishOrigins marks the versions that an update's resources have as a whole.
func distinguishOrigins(u *cache.Update, mark string) {
	if mark == "" {
		return
	}
	u.Origin.Distinguish(mark)
	for i := range u.Changes {
		u.Changes[i].Origin.Distinguish(mark)
	}
	for i := range u.Sets {
		u.Sets[i].Origin.Distinguish(mark)
		for j := range u.Sets[i].Changes {
			u.Sets[i].Changes[j].Origin.Distinguish(mark)
		}
	}
}
