package collections

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/uptime"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// TestTranscripts plays testdata/*.txt: derived topics over leaf topics whose states the
// transcript sets. Names are short, see long. A step has any of these lines, which happen
// together:
//
//	leaf NAME = VERSION "text" [ttl] [nocache]   the state of a name at its authority
//	leaf NAME = redirect VERSION NAME
//	leaf NAME = list VERSION [ENTRY; ...]   each `locator NAME`, `inline NAME VERSION
//	                                   "text" [as NAME]`, that being inside,
//	                                   `inline NAME VERSION redirect NAME`,
//	                                   `inline NAME VERSION other`, of another
//	                                   type, or `bad NAME`; _ is no name; and at the
//	                                   end perhaps `unreadable`
//	leaf NAME = absent | failed CODE TEXT | silent
//	subscribe NAME | subscribe NAME again   a client subscribes to a derived topic
//	unsubscribe NAME                   all its clients unsubscribe
//	down AUTHORITY | up AUTHORITY      it becomes unreachable, or reachable again
//	others AUTHORITY                   it answers for other names, in SotW
//	policy AUTHORITY [unreachable] [grace=D] [hysteresis=D] [notfound]
//	wait DURATION
//	loops                              prints how many there have been
//	origins VERSION                    the version of SotW responses that bring leaves from now on, whose own
//	                                   version is then -
//	refuse NAME                        a client refuses what it has of a derived topic
//
// The new states of derived topics are printed with their names, and the leaf topics that
// are requested and given up with + and -. "again" is what a client has refused, and is sent again.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".txt") || strings.Contains(path, "/sets/") {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			p := &player{origins: newStepped(t, Options{}), wants: map[string]*wanted{}}
			defer p.close()
			datadriven.RunTest(t, path, p.play)
			p.leave(p.wants)
		})
	})
}

type player struct {
	*origins
	wants map[string]*wanted
	out   strings.Builder
	loops bool // are to be printed
	// origin is the version of SotW responses, empty in delta.
	origin string
}

func (p *player) play(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd != "step" {
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	p.out.Reset()
	for line := range strings.Lines(d.Input) {
		if err := p.do(strings.TrimSpace(line)); err != nil {
			d.Fatalf(t, "%s: %v", line, err)
		}
	}
	p.settle()
	p.print()
	return p.out.String()
}

func (p *player) do(line string) error {
	cmd, rest, _ := strings.Cut(line, " ")
	args := strings.Fields(rest)
	switch cmd {
	case "leaf":
		name, what, _ := strings.Cut(rest, " = ")
		c, err := p.parse(long(name), what)
		p.say(c)
		return err
	case "subscribe":
		if len(args) > 1 {
			p.wants[rest] = p.want(long(args[0]))
			p.wants[rest].quiet = true
			return nil
		}
		p.wants[args[0]] = p.want(long(args[0]))
	case "unsubscribe":
		p.cache.Unwatch(p.wants[args[0]])
		delete(p.wants, args[0])
	case "down", "up":
		p.reach(args[0], cmd == "down")
	case "others":
		p.settle()
		p.mu.Lock()
		p.others[args[0]] = time.Now()
		p.mu.Unlock()
	case "policy":
		var policy Policy
		for _, a := range args[1:] {
			key, value, _ := strings.Cut(a, "=")
			d, _ := time.ParseDuration(value)
			switch key {
			case "unreachable":
				policy.Unreachable = true
			case "grace":
				policy.Grace = d
			case "hysteresis":
				policy.Hysteresis = d
			case "notfound":
				policy.NotFound = true
			default:
				return fmt.Errorf("no policy is called %s", key)
			}
		}
		p.mu.Lock()
		p.policies[args[0]] = policy
		p.mu.Unlock()
		p.resolver.ReachabilityChanged()
	case "wait":
		d, err := time.ParseDuration(args[0])
		p.settle()
		p.wait(d)
		return err
	case "loops":
		p.loops = true
	case "origins":
		p.origin = args[0]
	case "refuse":
		p.settle()
		w := p.wants[args[0]]
		w.refused, w.woken = w.entry.Refuse(uptime.Millis()), false
		p.resolver.Refused(w.entry.Key(), w.entry.Name(), uptime.Millis())
		p.settle()
	default:
		return fmt.Errorf("unknown")
	}
	return nil
}

// parse parses a state of a leaf topic.
func (p *player) parse(name, what string) (cache.Change, error) {
	c := cache.Change{Name: name, Origin: p.originVersion()}
	spec := cache.Spec{Name: name, TypeURL: keyOf(name).TypeURL}
	kind, rest, _ := strings.Cut(what, " ")
	switch kind {
	case "absent":
		c.Gone = true
		return c, nil
	case "silent":
		c.Err = &cache.Error{Code: codes.DeadlineExceeded, Message: "no answer for 15s", Unanswered: true}
		return c, nil
	case "failed":
		code, text, _ := strings.Cut(rest, " ")
		for i := codes.Code(0); i < 17; i++ {
			if i.String() == code {
				c.Err = &cache.Error{Code: i, Message: text}
				return c, nil
			}
		}
		return c, fmt.Errorf("no code is called %s", code)
	case "redirect":
		version, to, _ := strings.Cut(rest, " ")
		spec.Version, spec.TypeURL, spec.Redirect = version, xdstype.Locator, long(to)
		spec.Value = mustMarshal(p, locator(p, long(to)))
	case "list":
		version, list, _ := strings.Cut(rest, " ")
		var entries [][]byte
		for e := range strings.SplitSeq(list, ";") {
			if e = strings.TrimSpace(e); e != "" && e != "unreadable" {
				entries = append(entries, p.entry(e))
			}
		}
		spec.Version, spec.Value = version, collection(name, entries...).Value()
		if strings.HasSuffix(list, "; unreadable") {
			spec.Value = append(spec.Value, 0xff)
		}
	default:
		_, content, _ := strings.Cut(rest, `"`)
		content, flags, _ := strings.Cut(content, `"`)
		spec.Version, spec.Value = kind, clusterNamed(p, name, content)
		if strings.Contains(flags, "ttl") {
			spec.TTL = time.Minute
		}
		spec.DoNotCache = strings.Contains(flags, "nocache")
	}
	spec.Version = strings.TrimPrefix(spec.Version, "-")
	c.Resource = cache.NewResource(spec)
	return c, nil
}

// originVersion returns the version of a SotW response, nil in delta.
func (p *player) originVersion() *cache.OriginVersion {
	if p.origin == "" {
		return nil
	}
	return cache.NewOriginVersion("server", p.origin)
}

func (p *player) entry(e string) []byte {
	f := strings.Fields(e)
	if f[0] == "locator" {
		return locatorEntry(p, long(f[1]))
	}
	name := strings.TrimPrefix(f[1], "_")
	if f[0] == "bad" {
		return inlineEntry(p, name, "1", nil)
	}
	inside := name
	if len(f) > 5 && f[4] == "as" {
		inside = f[5]
		if strings.ContainsAny(inside, "/:") { // and no old-style name
			inside = long(inside)
		}
	}
	value := &anypb.Any{TypeUrl: clusterType, Value: clusterNamed(p, inside, strings.Trim(f[3], `"`))}
	switch f[3] {
	case "redirect":
		value = anyOf(p, locator(p, long(f[4])))
	case "other":
		value = anyOf(p, value)
	}
	return inlineEntry(p, name, f[2], value)
}

// print prints the changes.
func (p *player) print() {
	for _, name := range slices.Sorted(maps.Keys(p.wants)) {
		w := p.wants[name]
		if says := w.says(); says != w.last && !w.quiet {
			w.last = says
			fmt.Fprintf(&p.out, "%s: %s\n", name, says)
		}
		if st := w.entry.State(); w.woken && st.Resource != nil && w.refused.Renewed(&st) {
			fmt.Fprintf(&p.out, "%s: again\n", name)
			w.refused = cache.Refused{}
		}
	}
	// Of one topic in the order of events; of several there is none.
	slices.SortStableFunc(p.news, func(a, b string) int {
		return strings.Compare(a[strings.IndexByte(a, ' '):], b[strings.IndexByte(b, ' '):])
	})
	for _, n := range p.news {
		fmt.Fprintln(&p.out, n)
	}
	p.news = nil
	if p.loops {
		fmt.Fprintf(&p.out, "loops: %d\n", p.resolver.Loops())
		p.loops = false
	}
}
