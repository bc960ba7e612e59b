package downstream

import (
	"slices"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// The names that all streams of one identity subscribe to. A list that several streams have sent is
// watched once for all of them, and counts once.

// names are those of one type on one stream, as they are counted.
type names struct {
	alone  int
	shared session.NameList
}

// countedNames are the names of a session, as they are counted for its client's identity.
type countedNames struct {
	sess typeSession
	names
}

func namesOf(sess typeSession) names {
	return names{alone: sess.SubscribedAlone(), shared: sess.SharedList()}
}

// identityNames counts names. The zero value is ready.
type identityNames struct {
	n      int
	shared map[session.NameList]int // types of streams by list
}

// with returns how many names there are if was becomes is.
func (c *identityNames) with(was, is names) int {
	n := c.n + is.alone - was.alone
	if is.shared == was.shared {
		return n
	}
	if is.shared != nil && c.shared[is.shared] == 0 {
		n += len(is.shared.All())
	}
	if was.shared != nil && c.shared[was.shared] == 1 {
		n -= len(was.shared.All())
	}
	return n
}

func (c *identityNames) replace(was, is names) {
	c.n = c.with(was, is)
	if is.shared == was.shared {
		return
	}
	if is.shared != nil {
		if c.shared == nil {
			c.shared = map[session.NameList]int{}
		}
		c.shared[is.shared]++
	}
	if was.shared != nil {
		if c.shared[was.shared]--; c.shared[was.shared] == 0 {
			delete(c.shared, was.shared)
		}
	}
}

const tooManyNames = "%d names subscribed to by this identity"

// hasRoom says whether so many more names are none too many.
func (u *identityUse) hasRoom(more, most int) *excess {
	u.mu.Lock()
	defer u.mu.Unlock()
	return over(limitIdentitySubscriptions, u.names.n+more, most, tooManyNames)
}

// count counts the names of a type of a stream, which were counted as was, unless they are too
// many.
func (u *identityUse) count(was, is names, most int) *excess {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n := u.names.with(was, is); n > u.names.n {
		if e := over(limitIdentitySubscriptions, n, most, tooManyNames); e != nil {
			return e
		}
	}
	u.names.replace(was, is)
	return nil
}

// checkIdentityNames holds a request against the limit, before anything of it is done. A list of
// which others have sent the same is counted when it is known whether the stream shares it.
func checkIdentityNames[R request, S typeSession](st *stream, f form[R, S], sess S, req R) *excess {
	most := st.mostIdentityNames()
	if most == 0 {
		return nil
	}
	more := 0
	for range f.names(req) {
		more++
	}
	if more == 0 || st.uses.hasRoom(more, most) == nil {
		return nil
	}
	if more = f.subscribed(sess, req, 0) - sess.Subscribed(); more <= 0 {
		return nil
	}
	return st.uses.hasRoom(more, most)
}

// countNames counts the names of a type for the client's identity until leaveNames.
func (st *stream) countNames(sess typeSession) *excess {
	most := st.mostIdentityNames()
	if most == 0 {
		return nil
	}
	is := namesOf(sess)
	i := slices.IndexFunc(st.counted, func(c countedNames) bool { return c.sess == sess })
	if i < 0 {
		if is == (names{}) {
			return nil
		}
		i = len(st.counted)
		st.counted = append(st.counted, countedNames{sess: sess})
	}
	was := &st.counted[i].names
	if *was == is {
		return nil
	}
	if e := st.uses.count(*was, is, most); e != nil {
		return e
	}
	*was = is
	return nil
}

// recountNames counts the names of a type after a new configuration, which no limit refuses.
func (st *stream) recountNames(sess typeSession) {
	i := slices.IndexFunc(st.counted, func(c countedNames) bool { return c.sess == sess })
	if i < 0 {
		return
	}
	was, is := &st.counted[i].names, namesOf(sess)
	if *was != is {
		_ = st.uses.count(*was, is, 0)
		*was = is
	}
}

func (st *stream) leaveNames() {
	if st.counted == nil {
		return
	}
	st.uses.mu.Lock()
	defer st.uses.mu.Unlock()
	for _, was := range st.counted {
		st.uses.names.replace(was.names, names{})
	}
	st.counted = nil
}

func (st *stream) mostIdentityNames() int {
	if st.uses == nil {
		return 0
	}
	return st.gate.perIdentity.Subscriptions
}
