package collections

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/uptime"
	"github.com/xds-relay/xds-relay/urn"
)

// TestSetTranscripts plays testdata/sets/*.txt: views, and globs with redirects in
// them. A step has the lines of TestTranscripts, and
//
//	speaks A B                      before all else: authority A may send names of B
//	view NAME [rename] = URL, ...   before all else: NAME is what clients request: *,
//	                                a glob or a list collection
//	set GLOB = MEMBER; ...          all members of a glob at its authority, each as in
//	                                leaf: `NAME VERSION "text"`, `NAME redirect ...`
//	set GLOB += MEMBER; ...         the changed members: -NAME is removed
//	set GLOB failed CODE TEXT
//	subscribe NAME                  a client subscribes to a view; or to a glob,
//	                                whose redirects are followed
//	subscribe NAME passed           the same, but redirects are passed on to the client
//	clashes                         prints how many there were
//	unsubscribe NAME
//	refuse VIEW MEMBER              a client refuses a member
//
// The changes of a set are printed member by member, and those of a list entry by entry.
func TestSetTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/sets", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			p := &setPlayer{views: map[string]View{}, keys: map[string]cache.Key{}}
			p.t = t
			defer func() { p.origins.close() }()
			datadriven.RunTest(t, path, p.play)
		})
	})
}

type setPlayer struct {
	player
	globs *globs
	t     *testing.T
	views map[string]View
	keys  map[string]cache.Key // of the topics of views, by what clients request
	subs  []*setSub
	logs  strings.Builder
	// speaks are the pairs of which the first authority is believed in the second's names.
	speaks []string
}

// globs has the sets of the authorities.
type globs struct {
	of   *origins
	says map[string]cache.SetUpdate // by name: all that there is, or an error
	// silent is an authority that says nothing yet of what could not be had.
	silent string
}

// setSub is a client's subscription to a set.
type setSub struct {
	cache.SetWatch
	name string
	set  *cache.Set
	last string
}

func (s *setSub) Changed() cache.Waker { return nil }

func (p *setPlayer) play(t *testing.T, d *datadriven.TestData) string {
	p.out.Reset()
	for line := range strings.Lines(d.Input) {
		if err := p.do(strings.TrimSpace(line)); err != nil {
			d.Fatalf(t, "%s: %v", line, err)
		}
	}
	p.settle()
	p.printSets()
	return p.out.String()
}

func (p *setPlayer) do(line string) error {
	cmd, rest, _ := strings.Cut(line, " ")
	if cmd == "view" {
		head, collections, _ := strings.Cut(rest, " = ")
		name, rename, _ := strings.Cut(head, " ")
		v := View{Rename: rename == "rename"}
		for c := range strings.SplitSeq(collections, ", ") {
			u, err := urn.ParseURL(long(c))
			if err != nil {
				return err
			}
			v.Collections = append(v.Collections, u)
		}
		k := cache.Key{Scope: cache.Scope{Derived: fmt.Sprintf("view/%d", len(p.views))}, TypeURL: clusterType, Name: name}
		if name != cache.Wildcard {
			k.Name = long(name)
			k.TypeURL = keyOf(k.Name).TypeURL
		}
		p.views[k.Scope.Derived], p.keys[name] = v, k
		return nil
	}
	if cmd == "speaks" {
		p.speaks = append(p.speaks, rest)
		return nil
	}
	if p.origins == nil {
		p.start()
	}
	args := strings.Fields(rest)
	switch cmd {
	case "set":
		return p.saySet(rest)
	case "subscribe":
		k, isView := p.keys[args[0]]
		if !isView {
			k = derivedKey(long(args[0]))
		}
		if slices.Contains(args, "passed") {
			k.Scope.Derived = cache.Passed
		}
		if !k.IsSet() {
			w := &wanted{}
			w.entry, _ = p.cache.Watch(k, w)
			p.wants[args[0]] = w
			return nil
		}
		s := &setSub{name: args[0]}
		s.set = p.cache.WatchSet(k, s)
		p.subs = append(p.subs, s)
		return nil
	case "unsubscribe":
		i := slices.IndexFunc(p.subs, func(s *setSub) bool { return s.name == args[0] })
		if i < 0 {
			break
		}
		p.cache.Unwatch(p.subs[i])
		p.subs = slices.Delete(p.subs, i, i+1)
		return nil
	case "refuse":
		if len(args) == 1 {
			break
		}
		p.settle()
		member := args[1]
		if strings.ContainsAny(member, "/:") { // and no old-style name
			member = long(member)
		}
		for _, s := range p.subs {
			if s.name == args[0] {
				s.set.Refuse(member, uptime.Millis())
				p.resolver.Refused(s.set.Key(), member, uptime.Millis())
			}
		}
		p.settle()
		return nil
	case "clashes":
		p.settle()
		fmt.Fprintf(&p.out, "clashes: %d\n", p.resolver.Clashes())
		return nil
	}
	return p.player.do(line)
}

func (p *setPlayer) start() {
	log := slog.New(slog.NewTextHandler(&p.logs, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch a.Key {
		case slog.TimeKey, slog.LevelKey:
			return slog.Attr{}
		}
		a.Value = slog.StringValue(shortAll(a.Value.String()))
		return a
	}}))
	o := newStepped(p.t, Options{Views: p.views, SpeaksFor: func(authority, other string) bool {
		return slices.Contains(p.speaks, authority+" "+other)
	}, Log: log})
	p.player = player{origins: o, wants: map[string]*wanted{}}
	p.globs = &globs{of: o, says: map[string]cache.SetUpdate{}}
}

// saySet sets an authority's state of a glob.
func (p *setPlayer) saySet(line string) error {
	short, what, _ := strings.Cut(line, " ")
	name := long(short)
	if strings.HasPrefix(what, "failed") {
		c, err := p.parse(name, what)
		p.globs.say(cache.SetUpdate{Name: name, Err: c.Err})
		return err
	}
	op, list, _ := strings.Cut(what, " ")
	u := cache.SetUpdate{Name: name, Extent: cache.WholeIf(op == "="), Origin: p.originVersion()}
	for m := range strings.SplitSeq(list, ";") {
		m = strings.TrimSpace(m)
		if m == "" {
			continue
		}
		if gone, ok := strings.CutPrefix(m, "-"); ok {
			u.Changes = append(u.Changes, cache.Change{Name: long(gone), Gone: true})
			continue
		}
		short, what, _ := strings.Cut(m, " ")
		c, err := p.parse(long(short), what)
		if err != nil {
			return err
		}
		u.Changes = append(u.Changes, c)
	}
	p.globs.say(u)
	return nil
}

// say sets an authority's state of a glob. If the glob was sent before, it is sent again at once.
func (g *globs) say(u cache.SetUpdate) {
	before := g.says[u.Name]
	if u.Err == nil && !u.Extent.Full() {
		members := map[string]cache.Change{}
		for _, c := range append(before.Changes, u.Changes...) {
			members[c.Name] = c
			if c.Gone {
				delete(members, c.Name)
			}
		}
		g.says[u.Name] = cache.SetUpdate{Name: u.Name, Extent: cache.Whole, Changes: slices.Collect(maps.Values(members))}
	} else if u.Err == nil || before.Changes == nil {
		g.says[u.Name] = u
	}
	g.of.mu.Lock()
	_, down := g.of.downs[keyOf(u.Name).Scope.Authority]
	g.of.mu.Unlock()
	if k := keyOf(u.Name); !down && g.status(k) != cache.Requested {
		g.of.cache.Apply(cache.Update{Scope: k.Scope, TypeURL: k.TypeURL, Sets: []cache.SetUpdate{u}})
	}
}

// status returns the status of a set, Requested if nobody requests it.
func (g *globs) status(k cache.Key) cache.Status {
	g.of.mu.Lock()
	requested, news := g.of.requested[k], g.of.news
	g.of.mu.Unlock()
	if !requested {
		return cache.Requested
	}
	w := &setSub{}
	s := g.of.cache.WatchSet(k, w)
	g.of.cache.Unwatch(w)
	g.of.mu.Lock()
	g.of.news = g.of.news[:len(news)] // without what came of looking
	g.of.mu.Unlock()
	is, _ := s.Status()
	return is
}

// settle sends the requested sets, until there is nothing more to do.
func (g *globs) settle() {
	for said := true; said; {
		said = false
		g.of.settle()
		g.of.mu.Lock()
		requested := slices.SortedFunc(maps.Keys(g.of.requested), func(a, b cache.Key) int { return strings.Compare(a.Name, b.Name) })
		downs := maps.Clone(g.of.downs)
		g.of.mu.Unlock()
		for _, k := range requested {
			if !k.IsSet() {
				continue
			}
			is := g.status(k)
			u, ok := g.says[k.Name]
			switch _, down := downs[k.Scope.Authority]; {
			case is == cache.Requested && down:
				u = cache.SetUpdate{Name: k.Name, Err: unavailable(k)}
			case is == cache.Failed && !down && ok && u.Err == nil && k.Scope.Authority != g.silent:
			case is != cache.Requested, !ok:
				continue
			}
			said = true
			g.of.cache.Apply(cache.Update{Scope: k.Scope, TypeURL: k.TypeURL, Sets: []cache.SetUpdate{u}})
		}
	}
}

func (p *setPlayer) settle() {
	if p.origins != nil {
		p.globs.settle()
	}
}

// printSets prints the changes of sets, and the log lines.
func (p *setPlayer) printSets() {
	for _, s := range p.subs {
		is, err := s.set.Status()
		says := fmt.Sprintf("%s, %d members", is, s.set.Len())
		if err != nil {
			says = fmt.Sprintf("%s: %s", is, shortAll(err.Error()))
		}
		if says != s.last {
			s.last = says
			fmt.Fprintf(&p.out, "%s: %s\n", s.name, says)
		}
		var lines []string
		s.set.Since(&s.SetWatch, func(m cache.Member) bool {
			lines = append(lines, describeMember(m))
			return true
		})
		slices.Sort(lines)
		for _, l := range lines {
			fmt.Fprintf(&p.out, "  %s\n", l)
		}
	}
	for _, l := range slices.Sorted(strings.Lines(p.logs.String())) {
		p.out.WriteString(l)
	}
	p.logs.Reset()
	for _, name := range slices.Sorted(maps.Keys(p.wants)) {
		w := p.wants[name]
		is := w.entry.State()
		if r := is.Resource; r != nil && r.TypeURL() == collectionType {
			if r.Version() != w.last {
				w.last = r.Version()
				fmt.Fprintf(&p.out, "%s: version %s\n", name, w.last)
				for line := range strings.Lines(parseList(r).describe()) {
					fmt.Fprintf(&p.out, "  %s\n", shortAll(line))
				}
			}
			delete(p.wants, name)
			defer func() { p.wants[name] = w }()
		}
	}
	p.player.print()
}

func describeMember(m cache.Member) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", map[cache.News]string{cache.Changed: "+", cache.Removed: "-", cache.TTLRenewed: "beat", cache.TTLChanged: "ttl", cache.ErrorOnly: "!", cache.Renewed: "again"}[m.News], short(m.Name))
	if m.News == cache.Changed {
		inner, content := contentOf(m.Resource)
		fmt.Fprintf(&b, " %s %q", m.Resource.Version(), content)
		if inner != m.Name {
			fmt.Fprintf(&b, " INSIDE %q", inner)
		}
		if m.Resource.Name() != m.Name {
			fmt.Fprintf(&b, " NAMED %q", m.Resource.Name())
		}
	}
	if m.Err != nil {
		fmt.Fprintf(&b, " %s", shortAll(m.Err.Error()))
	}
	return b.String()
}

func unavailable(k cache.Key) *cache.Error {
	return &cache.Error{Code: codes.Unavailable, Message: k.Scope.Authority + " is down"}
}
