package collections

import (
	"cmp"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// plain evaluates a set, as a recursion over TP1's rules: from the states of the leaf topics
// at one moment, and from its own result at the moment before, which it uses for resources
// that are no longer available.
type plain struct {
	*origins
	was, is *memory
	wrong   string // a topic that should be requested and is not
	// If primary and alternative are both out of date, clients may have either. open are these
	// choices; others are those among them for which the evaluation takes the other one than before.
	others map[string]bool
	open   []string
}

// chosen returns whether a wanted alternative is used.
func (p *plain) chosen(choice string, first cache.Status, other cache.Status, down bool) bool {
	used := other == cache.Present
	if used && down && first == cache.Present {
		p.open = append(p.open, choice)
		used = p.was.used[choice] != p.others[choice]
	}
	if used {
		p.is.used[choice] = true
	}
	return used
}

// memory is the state that one evaluation passes to the next. Its keys are the paths on which
// the evaluation found something, so that it forgets everything that it did not find again.
type memory struct {
	sent     bool
	used     map[string]bool       // alternatives
	contents map[string]string     // of members
	all      map[string]string     // by the names that clients see
	lists    map[string]plainLists // list collections
}

type plainLists struct {
	list   *list // nil if it does not exist
	passed []string
}

func newMemory() *memory {
	return &memory{used: map[string]bool{}, contents: map[string]string{}, lists: map[string]plainLists{}}
}

// plainResult is the result for a single name.
type plainResult struct {
	status  cache.Status
	down    bool // because an authority cannot be reached, or it is out of date
	origin  string
	content string
	list    *list
}

// plainSet is the result for a collection.
type plainSet struct {
	status  cache.Status
	down    bool
	members map[string]string
	// lost are the names of members that cannot be had.
	lost []string
}

func newPlainSet(status cache.Status) plainSet {
	return plainSet{status: status, members: map[string]string{}}
}

func (s *plainSet) add(name, content string) {
	if _, ok := s.members[name]; !ok && content != "" {
		s.members[name] = content
	}
}

// addFound adds a member. lost: it is no longer available.
func (s *plainSet) addFound(name, content string, lost bool) {
	s.add(name, content)
	if lost {
		s.lost = append(s.lost, name)
	}
}

// keep keeps unavailable members as the client has them: as they were at the moment before, or have
// been sent since.
func (p *plain) keep(s plainSet, has map[string]string) {
	for _, name := range s.lost {
		s.add(name, cmp.Or(has[name], p.was.all[name]))
	}
	p.is.all = s.members
}

// client evaluates what a client requested: the first collection that has a member
// counts.
func (p *plain) client(c *worldClient) plainSet {
	all := plainSet{status: cache.Failed, members: map[string]string{}}
	collections, rename := []urn.URL{}, func(name string) string { return name }
	if c.view == nil {
		u, _ := urn.ParseURL(c.key.Name)
		collections = append(collections, u)
	} else {
		collections = c.view.Collections
		if c.view.Rename {
			rename = func(name string) string { return urn.MemberOf(c.key.Name, name) }
		}
	}
	for _, u := range collections {
		one := p.collection(u, rename, nil, u.String())
		if one.status != cache.Failed {
			all.status = cache.Present
		}
		for name, content := range one.members {
			all.add(name, content)
		}
		all.lost = append(all.lost, one.lost...)
	}
	p.keep(all, c.has)
	if p.is.sent = p.was.sent || all.status == cache.Present; p.is.sent {
		all.status = cache.Present
	}
	return all
}

// collection evaluates a URL of a glob or list collection. TP1: "Alternatives": they are
// used for all members at once.
func (p *plain) collection(u urn.URL, rename func(string) string, passed []string, way string) plainSet {
	first := p.primary(u, rename, passed, way)
	alt, ok := u.Alt()
	lost := first.down || p.policies[u.Key().Authority].NotFound && first.status == cache.Absent
	if !ok || !lost {
		return first
	}
	other := p.collection(alt, rename, append(slices.Clone(passed), "or"), way+" or "+alt.String())
	switch {
	case first.status == cache.Present && len(other.members) == 0:
		return first // nothing is no replacement
	case p.chosen(way, first.status, other.status, other.down):
		return other
	case first.status == cache.Present, first.status == cache.Absent && other.status == cache.Absent:
		return first
	}
	first.status, first.down = cache.Failed, first.down || other.down
	return first
}

func (p *plain) primary(u urn.URL, rename func(string) string, passed []string, way string) plainSet {
	switch {
	case len(passed) > reachDepth:
		return newPlainSet(cache.Failed)
	case u.Key().Glob:
		return p.glob(u.Key().Name, rename, way)
	}
	return p.listed(u.Key().Name, rename, passed, way)
}

// glob evaluates the members of a glob. TP1: "Glob": they may be redirects.
func (p *plain) glob(name string, rename func(string) string, way string) plainSet {
	k := keyOf(name)
	if !p.requested[k] {
		p.wrong = short(name) + " is not requested"
		return newPlainSet(cache.Failed)
	}
	var look worldClient
	set := p.cache.WatchSet(k, &look)
	defer p.cache.Unwatch(&look)
	status, err := set.Status()
	all := newPlainSet(status)
	all.down = p.isDown(k, all.status, err)
	set.Since(&look.SetWatch, func(m cache.Member) bool {
		if m.Resource == nil {
			return true
		}
		if to := m.Resource.Redirect(); to != "" {
			was := ""
			if m.Previous != nil {
				_, was = contentOf(m.Previous)
			}
			content, lost := p.member(to, []string{m.Name}, way+" "+m.Name, was)
			all.addFound(rename(m.Name), content, lost)
			return true
		}
		_, content := contentOf(m.Resource)
		p.is.contents[way+" "+m.Name] = content
		all.add(rename(m.Name), content)
		return true
	})
	return all
}

// listed evaluates the members of a list collection. TP1: "List collections".
func (p *plain) listed(name string, rename func(string) string, passed []string, way string) plainSet {
	u, _ := urn.ParseURL(name)
	is := p.url(u, xdstype.Message(collectionType), passed, way)
	all := newPlainSet(is.status)
	all.down = is.down
	of, had := p.was.lists[way]
	switch {
	case is.status == cache.Present:
		of = plainLists{is.list, append(slices.Clone(passed), name)}
		if is.origin != name {
			of.passed = append(of.passed, is.origin)
		}
	case is.status == cache.Absent:
		of = plainLists{}
	case !had:
		return all
	case of.list == nil:
		all.status = cache.Absent
	default:
		all.status = cache.Present
	}
	p.is.lists[way] = of
	if of.list == nil {
		return all
	}
	for _, e := range of.list.entries {
		to := e.locator.String()
		switch {
		case e.inline:
			// The last that was passed is the name of the list that has it.
			inner, content := contentOf(e.resource("it"))
			if !foreignTo(of.passed[len(of.passed)-1], inner) {
				all.add(rename(inner), content)
			}
		case isCollection(e.locator):
			// By another way it is another: what was known of the one says nothing of it.
			one := p.collection(e.locator, rename, of.passed, way+" "+to+of.passed[len(of.passed)-1])
			for name, content := range one.members {
				all.add(name, content)
			}
			all.lost = append(all.lost, one.lost...)
		default:
			content, lost := p.member(to, nil, way+" "+to, "")
			all.addFound(rename(e.locator.Key().Name), content, lost)
		}
	}
	return all
}

// member returns the content of a member at a URL. If the member is unavailable, it is the previous
// content, here or before it became a redirect. It is empty if the member does not exist.
func (p *plain) member(url string, passed []string, way, before string) (content string, lost bool) {
	u, err := urn.ParseURL(url)
	if err != nil {
		panic(err)
	}
	switch is := p.url(u, xdstype.Message(clusterType), passed, way); is.status {
	case cache.Present:
		content = is.content
	case cache.Absent:
	default:
		content, lost = cmp.Or(p.was.contents[way], before), true
	}
	if content != "" {
		p.is.contents[way] = content
	}
	return content, lost
}

// url evaluates a URL of one resource. TP1: "Alternatives".
func (p *plain) url(u urn.URL, typ string, passed []string, way string) plainResult {
	first := p.name(u.Key(), typ, passed, way)
	alt, ok := u.Alt()
	lost := first.down || p.policies[u.Key().Authority].NotFound && first.status == cache.Absent
	if !ok || !lost {
		return first
	}
	var other plainResult
	if passed = append(slices.Clone(passed), "or"); len(passed) > reachDepth {
		other = plainResult{status: cache.Failed}
	} else {
		other = p.url(alt, typ, passed, way)
	}
	switch {
	case p.chosen(way+"?"+u.String(), first.status, other.status, other.down):
		return other
	case first.status == cache.Present, first.status == cache.Absent && other.status == cache.Absent:
		return first
	}
	return plainResult{status: cache.Failed, down: first.down || other.down}
}

// name evaluates a name. TP1: "Server redirects".
func (p *plain) name(key urn.Key, typ string, passed []string, way string) plainResult {
	k := keyOf(key.Name)
	switch {
	case slices.Contains(passed, key.Name):
		return plainResult{status: cache.Failed} // a loop
	case !p.requested[k]:
		p.wrong = short(key.Name) + " is not requested"
		return plainResult{}
	}
	look := &wanted{}
	e, _ := p.cache.Watch(k, look)
	defer p.cache.Unwatch(look)
	is := e.State()
	v := plainResult{status: is.Status, down: p.isDown(k, is.Status, is.Err), origin: key.Name}
	switch {
	case is.Status != cache.Present:
		return v
	case is.Resource.Redirect() == "" && typ == xdstype.Message(collectionType):
		v.list = parseList(is.Resource)
		return v
	case is.Resource.Redirect() == "":
		_, v.content = contentOf(is.Resource)
		return v
	}
	to, err := urn.ParseURL(is.Resource.Redirect())
	if err != nil {
		panic(err)
	}
	if passed = append(slices.Clone(passed), key.Name); len(passed) > reachDepth {
		return plainResult{status: cache.Failed}
	}
	found := p.url(to, typ, passed, way)
	found.down = found.down || v.down
	return found
}

// isDown reports whether a topic has no answer, or is out of date, because its authority
// is unreachable.
func (p *plain) isDown(k cache.Key, status cache.Status, err *cache.Error) bool {
	_, unreachable := p.downs[k.Scope.Authority]
	return status == cache.Failed && err.Code == codes.Unavailable || unreachable && p.policies[k.Scope.Authority].Unreachable
}
