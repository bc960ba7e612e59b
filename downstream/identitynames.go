package downstream

import "slices"

// The names that all streams of one identity subscribe to. A list that several streams have sent is
// watched once for all of them, and counts once.

// checkIdentityNames checks a request against the limit, before anything of it is processed. A list that other streams
// have sent, too, is counted once it is known whether the stream shares it.
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
	if st.uses == nil {
		return nil
	}
	is := namesOf(sess)
	i := slices.IndexFunc(st.counted, func(c countedNames) bool { return c.sess == sess })
	if i < 0 {
		if is == (names{}) {
			return nil
		}
		if i = len(st.counted); i == 0 {
			st.counted = st.ownCounted[:0]
		}
		st.counted = append(st.counted, countedNames{sess: sess})
	}
	was := &st.counted[i].names
	if *was == is {
		return nil
	}
	if e := st.uses.count(*was, is, st.mostIdentityNames()); e != nil {
		return e
	}
	*was = is
	return nil
}

// recountNames counts the names of a type again after a new configuration. No limit applies.
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
		st.uses.replace(was.names, names{})
	}
	st.counted = nil
}

func (st *stream) mostIdentityNames() int {
	if st.uses == nil {
		return 0
	}
	return st.gate.perIdentity.Subscriptions
}
