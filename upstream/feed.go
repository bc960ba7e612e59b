package upstream

// feed is what a stream has of one type.
type feed struct {
	topics  *topics
	session session // nil without a stream
	// stale: what was requested on the stream is not wanted there any more, so that the next
	// one is needed. Without a session, what is wanted waits for it.
	stale    bool
	lastNack string // that was logged
	entry    entry
	gather   gather
	calm     calm
}

func (f *feed) typeURL() string { return f.topics.typeURL() }

// wanted returns how many names and sets are wanted.
func (f *feed) wanted() int { return f.topics.wanted() }

// begun says whether the control plane has had a request on the present stream.
func (f *feed) begun() bool { return f.session != nil && f.session.begun() }

func (s *Stream) newNames(typeURL string) *names {
	n := newNames(s.scope, typeURL)
	n.modest = s.opts.Modest
	s.configure(&n.core)
	return n
}

func (s *Stream) newSets(typeURL string) *sets {
	of := newSets(s.scope, typeURL)
	of.noGlobs = s.opts.NoGlobs
	if p := s.opts.Presence; p != nil {
		of.habits = &p.habits
	}
	s.configure(&of.core)
	return of
}

func (s *Stream) configure(c *core) {
	c.speaks, c.check = s.opts.Speaks, s.opts.Tally.Mode()
	c.saidBy(server{s.scope, s.opts.peers})
}

// place makes topics the stream's feed of their type. What was there before is not the
// stream's any more; if it was requested, the topics have to wait for the next stream. The
// caller holds mu.
func (s *Stream) place(of *topics) *feed {
	typeURL := of.typeURL()
	f := s.feeds[typeURL]
	if f == nil {
		f = &feed{}
		s.feeds[typeURL] = f
	}
	f.stale = f.stale || f.begun()
	f.topics, f.session, f.lastNack = of, nil, ""
	if s.live && !f.stale {
		f.session = s.form.session(of)
	}
	return f
}
