package store

import (
	"bytes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// A resource may be stored twice, as clients requested it: under its name, and as a member of a wildcard or of its
// directory's glob. If clients request only one of the two, the control plane's changes of that one count for both.
// Otherwise a client that had the newer state would receive the older one after a restart.

// setOf returns the set that may have a name's resource as a member. If there is none, it returns a key that no set
// has.
func setOf(k cache.Key) cache.Key {
	if k.Scope.OldStyle {
		k.Name = cache.Wildcard
	} else {
		k.Name, _ = urn.GlobOf(k.Name)
	}
	return k
}

// pair gives a name and a member that are the same resource the newer of their states.
func (n *notes) pair() {
	if len(n.sets) == 0 {
		return
	}
	for k, named := range n.entries {
		set := n.sets[setOf(k)]
		if set == nil {
			continue
		}
		switch member, there := set.members[k.Name]; {
		case !there:
		case named.time.After(member.time):
			set.members[k.Name] = named
		case member.time.After(named.time) && speaksForName(setOf(k), member):
			n.entries[k] = member
		}
	}
}

// speaksForName reports whether a set's change of a member also counts for the member's name. A wildcard need not
// contain every resource that clients can request by name.
func speaksForName(set cache.Key, member state) bool {
	return member.resource != nil || set.Name != cache.Wildcard
}

// membersOf is a transaction's knowledge of a set: the hash of its key, and whether any members are stored.
type membersOf struct {
	hash []byte
	any  bool
}

func (b *batch) membersOf(set cache.Key) (membersOf, error) {
	is, known := b.sets[set]
	if known {
		return is, nil
	}
	key, err := b.store.keys.of(&Record{Topic: set, Set: true})
	if err != nil {
		return is, err
	}
	is.hash = key[1:]
	is.any = b.mayHave(append([]byte{memberKind}, is.hash...))
	if b.sets == nil {
		b.sets = map[cache.Key]membersOf{}
	}
	b.sets[set] = is
	return is, nil
}

// mayHave reports whether a set has stored members, or had some before the newest transactions.
func (b *batch) mayHave(prefix []byte) bool {
	if len(b.store.journal.members[string(prefix)])+len(b.staged.members[string(prefix)]) > 0 {
		return true
	}
	key, _ := b.view.records.Cursor().Seek(prefix)
	return bytes.HasPrefix(key, prefix)
}

// putMember updates the member that is a name's resource, if it is stored.
func (b *batch) putMember(k cache.Key, st state) error {
	set := setOf(k)
	if set.Name == "" {
		return nil
	}
	of, err := b.membersOf(set)
	if err != nil || !of.any {
		return err
	}
	key, err := b.store.keys.member(of.hash, k.Name)
	if err != nil || !b.there(key) {
		return err
	}
	return b.put(key, &Record{Topic: set, Member: k.Name, Resource: st.resource, Time: st.time, Server: st.server})
}

// putName updates the record of a member's name, if there is one.
func (b *batch) putName(set cache.Key, name string, st state) error {
	if !speaksForName(set, st) {
		return nil
	}
	r := Record{Topic: cache.Key{Scope: set.Scope, TypeURL: set.TypeURL, Name: name}, Resource: st.resource, Time: st.time, Server: st.server}
	key, err := b.store.keys.of(&r)
	if err != nil || !b.there(key) {
		return err
	}
	return b.put(key, &r)
}
