package collections

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// For any redirects, alternatives and lists, over authorities that become reachable and
// unreachable: when nothing more happens, each derived topic has the result of a plain recursion
// over TP1's rules, and no leaf topic is requested that the recursion does not visit.
func TestDerivedEntriesAreWhatTheRulesSay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const few, many = 50, 100
		steps := rapid.SliceOfN(rapid.Custom(drawStep), few, many).Draw(rt, "steps")
		var wrong []string
		synctest.Test(t, func(t *testing.T) { wrong = playModel(t, steps) })
		if len(wrong) > 0 {
			rt.Error(strings.Join(wrong, "\n"))
		}
	})
}

// While a collection has no answer, its alternative is used if it was used before. The
// recursion does not know the past: it allows both that the entry of the alternative is
// followed, and that it is not.
func TestModelAllowsBothCollectionsUntilTheFirstAnswers(t *testing.T) {
	for _, past := range [][]string{nil, {"down c", "up c"}} {
		synctest.Test(t, func(t *testing.T) {
			wrong := playModel(t, append([]string{
				"policy c unreachable",
				"leaf b:l = redirect 1 c:l#alt=a:l",
				"leaf c:l = redirect 1 d:l",
				"leaf a:l = list 1 inline e 1 redirect b/1",
				"subscribe a:l#entry=f",
				"subscribe b:l#entry=e",
			}, past...))
			if len(wrong) > 0 {
				t.Error(strings.Join(wrong, "\n"))
			}
		})
	}
}

// drawStep draws a step, in the syntax of transcripts.
func drawStep(t *rapid.T) string {
	cluster := rapid.SampledFrom([]string{"a/1", "a/2", "b/1", "b/2", "c/1", "c/2"})
	list := rapid.SampledFrom([]string{"a:l", "b:l", "c:l"})
	authority := rapid.SampledFrom([]string{"a", "b", "c"})
	var url func(depth int, ofLists bool) string
	url = func(depth int, ofLists bool) string {
		s, sep := cluster.Draw(t, "cluster"), "#"
		switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
		case ofLists:
			s = list.Draw(t, "list")
		case kind == 0:
			s = "unknown/1"
		case kind == 1:
			s = list.Draw(t, "list") // which is of another type
		case kind < 4:
			s, sep = list.Draw(t, "list")+"#entry="+rapid.SampledFrom([]string{"e", "f"}).Draw(t, "entry"), ","
		}
		if depth > 0 && rapid.Bool().Draw(t, "alt") {
			s += sep + "alt=" + url(depth-1, ofLists)
		}
		return s
	}
	// A version stands for the same content everywhere: nobody is sent another
	// version of what is unchanged.
	word := func() string {
		return rapid.SampledFrom([]string{`1 "x"`, `2 "y"`, `3 "z"`}).Draw(t, "content")
	}
	entry := func(name string) string {
		switch rapid.IntRange(0, 4).Draw(t, "entry kind") {
		case 0:
			return "bad " + name
		case 1:
			return "inline " + name + " 1 other"
		case 2:
			return "inline " + name + " 1 redirect " + url(1, false)
		}
		return "inline " + name + " " + word()
	}
	other := func() string {
		return rapid.SampledFrom([]string{"absent", "failed Unavailable u", "failed PermissionDenied p"}).Draw(t, "other")
	}
	switch rapid.IntRange(0, 11).Draw(t, "step") {
	case 0, 1, 2:
		return "subscribe " + url(2, false)
	case 3:
		return "unsubscribe any"
	case 4:
		return rapid.SampledFrom([]string{"down ", "up "}).Draw(t, "reach") + authority.Draw(t, "authority")
	case 5:
		return "policy " + authority.Draw(t, "authority") + rapid.SampledFrom([]string{"", " unreachable", " notfound", " unreachable notfound"}).Draw(t, "policy")
	case 6:
		name := list.Draw(t, "list")
		switch rapid.IntRange(0, 3).Draw(t, "list says") {
		case 0:
			return "leaf " + name + " = " + other()
		case 1:
			return "leaf " + name + " = redirect 1 " + url(1, true)
		}
		s := "leaf " + name + " = list 1 "
		for _, n := range rapid.SliceOfN(rapid.SampledFrom([]string{"e", "f"}), 0, 3).Draw(t, "entries") {
			s += entry(n) + "; "
		}
		return s
	case 7, 8, 9:
		return "leaf " + cluster.Draw(t, "cluster") + " = redirect 1 " + url(2, false)
	case 10:
		return "leaf " + cluster.Draw(t, "cluster") + " = " + other()
	}
	return "leaf " + cluster.Draw(t, "cluster") + " = " + word()
}

func playModel(t *testing.T, steps []string) (wrong []string) {
	const depth = 6
	p := &player{origins: newOrigins(t, Options{Depth: depth}), wants: map[string]*wanted{}}
	defer p.close()
	for i, step := range steps {
		cmd, name, _ := strings.Cut(step, " ")
		switch {
		case cmd == "subscribe" && (p.wants[name] != nil || !canWant(name)):
			continue
		case cmd == "unsubscribe":
			names := slices.Sorted(maps.Keys(p.wants))
			if len(names) == 0 {
				continue
			}
			step = "unsubscribe " + names[i%len(names)]
		}
		if err := p.do(step); err != nil {
			return append(wrong, step+": "+err.Error())
		}
		p.settle()
		m := &model{origins: p.origins, depth: depth, met: map[string]bool{}}
		for name, w := range p.wants {
			if err := m.check(w); err != nil {
				wrong = append(wrong, fmt.Sprintf("after step %d, %s: %s: %v", i, step, name, err))
			}
		}
		for k := range p.requested {
			if _, met := m.met[k.Name]; !met {
				wrong = append(wrong, fmt.Sprintf("after step %d, %s: %s is requested, for nothing", i, step, short(k.Name)))
			}
		}
		for name, must := range m.met {
			if must && !p.requested[keyOf(name)] {
				wrong = append(wrong, fmt.Sprintf("after step %d, %s: %s is not requested", i, step, short(name)))
			}
		}
		if len(wrong) > 0 {
			return append(wrong, "the steps were\n"+strings.Join(steps[:i+1], "\n"))
		}
	}
	p.leave(p.wants)
	return nil
}

// canWant reports whether a client can request a derived topic with a name.
func canWant(name string) bool {
	u, err := urn.ParseURL(long(name))
	if err != nil {
		return false
	}
	_, entry := u.Entry()
	_, alt := u.Alt()
	return entry || u.Key().Type == xdstype.Message(clusterType) && (alt || slices.Contains(known, u.Key().Authority))
}

// model evaluates TP1's rules by themselves.
type model struct {
	*origins
	depth    int
	met      map[string]bool // names of which something had to be known, false if only perhaps
	optional int             // what is met only perhaps has to be known
}

// outcome is the result for a name.
type outcome struct {
	status  cache.Status
	content string // of a resource, with its version and where it was found
	version string
	origin  string
	code    codes.Code // of the error, if there is one
	down    bool
	list    *list
}

func fails(code codes.Code) []outcome { return []outcome{{status: cache.Failed, code: code}} }

// check compares the state of a derived topic with the possible outcomes.
func (m *model) check(w *wanted) error {
	name := w.entry.Key().Name
	u, err := urn.ParseURL(name)
	if err != nil {
		return err
	}
	home := u.Key().Name
	if entry, ok := u.Entry(); ok {
		home += "#entry=" + entry
	}
	is := w.entry.State()
	var want []string
	for _, o := range m.url(u, xdstype.Message(clusterType), nil) {
		got := outcome{status: is.Status, down: o.down}
		if is.Err != nil {
			got.code = is.Err.Code
		}
		switch o.status {
		case cache.Requested:
			return nil // what was there stays
		case cache.Failed:
			// And so it does when it cannot be had any more.
			got.status = cache.Failed
		case cache.Present:
			if o.origin != home {
				o.version = fmt.Sprintf("%s~%08x", o.version, uint32(xxhash.Sum64String(o.origin)))
			}
			if got.origin = o.origin; is.Resource != nil {
				got.version = is.Resource.Version()
				inside, content := contentOf(is.Resource)
				if got.content = content; inside != name || is.Resource.Name() != name {
					if o.origin != name || inside != "" { // which is as the authority has it
						return fmt.Errorf("it is called %s, and %s inside", is.Resource.Name(), inside)
					}
				}
			}
		}
		if got == o {
			return nil
		}
		want = append(want, fmt.Sprintf("%+v", o))
	}
	return fmt.Errorf("%s, want %s", w.says(), strings.Join(want, " or "))
}

// url evaluates a URL. There is more than one outcome where a state that is out of date may
// stay.
func (m *model) url(u urn.URL, typ string, path []string) (all []outcome) {
	alt, ok := u.Alt()
	if !ok {
		return m.one(u, typ, path)
	}
	firsts := m.one(u, typ, path)
	if len(firsts) > 1 {
		// Which of them it is decides whether the alternative is requested.
		m.optional++
		defer func() { m.optional-- }()
	}
	for _, first := range firsts {
		if !first.down && !(m.policies[u.Key().Authority].NotFound && first.status == cache.Absent) {
			if all = append(all, first); first.status == cache.Requested {
				// Until it is known what there is now, an alternative that is used stays.
				m.optional++
				for _, second := range m.url(alt, typ, append(slices.Clone(path), "or")) {
					if second.status == cache.Present {
						all = append(all, second)
					}
				}
				m.optional--
			}
			continue
		}
		seconds := fails(codes.FailedPrecondition)
		if len(path) < m.depth {
			seconds = m.url(alt, typ, append(slices.Clone(path), "or"))
		}
		for _, second := range seconds {
			switch {
			case second.status == cache.Present:
				all = append(all, second)
				if second.down && first.status == cache.Present {
					all = append(all, first)
				}
			case first.status == cache.Present:
				all = append(all, first)
			case second.status == cache.Requested || first.status == cache.Requested:
				all = append(all, outcome{})
			case second.status == cache.Absent && first.status == cache.Absent:
				all = append(all, first)
			default:
				both := outcome{status: cache.Failed, code: second.code, down: first.down || second.down}
				if first.status == cache.Failed {
					both.code = first.code
				}
				all = append(all, both)
			}
		}
	}
	return all
}

// one evaluates a URL without its alternative.
func (m *model) one(u urn.URL, typ string, path []string) (all []outcome) {
	entry, ok := u.Entry()
	if !ok {
		return m.name(u.Key(), typ, path)
	}
	name := u.Key().Name + "#entry=" + entry
	switch {
	case u.Key().Type != typ+"Collection":
		return fails(codes.InvalidArgument)
	case slices.Contains(path, name):
		return fails(codes.FailedPrecondition)
	}
	lists := m.name(u.Key(), typ+"Collection", path)
	if len(lists) > 1 {
		// Which of them it is decides which entry's redirect is followed.
		m.optional++
		defer func() { m.optional-- }()
	}
	for _, in := range lists {
		if in.status != cache.Present {
			all = append(all, in)
			continue
		}
		i := slices.IndexFunc(in.list.entries, func(e listEntry) bool { return e.inline && e.name == entry })
		switch {
		case i < 0:
			all = append(all, outcome{status: cache.Absent, code: codes.NotFound, down: in.down})
		case in.list.entries[i].err != nil:
			all = append(all, outcome{status: cache.Failed, code: codes.InvalidArgument, down: in.down})
		case in.list.entries[i].value == nil:
			all = append(all, m.redirect(in, in.list.entries[i].locator, name, typ, path)...)
		case xdstype.Message(in.list.entries[i].typeURL) != typ:
			all = append(all, fails(codes.InvalidArgument)...)
		default:
			r := in.list.entries[i].resource("it")
			_, content := contentOf(r)
			all = append(all, outcome{
				status: cache.Present, content: content, version: r.Version(),
				origin: in.origin + "#entry=" + entry, code: in.code, down: in.down,
			})
		}
	}
	return all
}

func (m *model) name(key urn.Key, typ string, path []string) []outcome {
	leaf := cache.Key{Scope: cache.Scope{Authority: key.Authority}, TypeURL: xdstype.Prefix + typ, Name: key.Name}
	switch {
	case key.Type != typ:
		return fails(codes.InvalidArgument)
	case !slices.Contains(known, key.Authority):
		return []outcome{{status: cache.Failed, code: codes.Unavailable, down: true}}
	case slices.Contains(path, key.Name):
		return fails(codes.FailedPrecondition)
	}
	is := m.leafState(leaf)
	o := outcome{status: is.Status, origin: key.Name}
	if is.Err != nil {
		o.code = is.Err.Code
	}
	_, unreachable := m.downs[key.Authority]
	o.down = is.Status == cache.Failed && o.code == codes.Unavailable || unreachable && m.policies[key.Authority].Unreachable
	switch {
	case is.Status != cache.Present:
		o.origin = ""
	case is.Resource.TypeURL() == xdstype.Locator:
		to, err := urn.ParseURL(is.Resource.Redirect())
		if err != nil {
			panic(err)
		}
		return m.redirect(o, to, key.Name, typ, path)
	case typ == xdstype.Message(clusterType):
		_, o.content = contentOf(is.Resource)
		o.version = is.Resource.Version()
	default:
		o.list = parseList(is.Resource)
	}
	return []outcome{o}
}

// redirect follows what is at the end of a path.
func (m *model) redirect(from outcome, to urn.URL, name, typ string, path []string) []outcome {
	path = append(slices.Clone(path), name)
	if len(path) > m.depth {
		return fails(codes.FailedPrecondition)
	}
	all := m.url(to, typ, path)
	for i := range all {
		all[i].down = all[i].down || from.down
		if all[i].status == cache.Present && all[i].code == codes.OK {
			all[i].code = from.code
		}
	}
	return all
}

// leafState returns the state of a leaf topic.
func (m *model) leafState(k cache.Key) cache.State {
	m.met[k.Name] = m.met[k.Name] || m.optional == 0
	if !m.requested[k] {
		return cache.State{} // it would have to be requested
	}
	w := &wanted{}
	e, _ := m.cache.Watch(k, w)
	defer m.cache.Unwatch(w)
	return e.State()
}
