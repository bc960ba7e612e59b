package graph

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// The graphs of these tests are written as "lds:edge>rds:shop rds:shop>cds:cart,cds:gone": a resource and its
// references. After a name, ? means optional, + many, / from elsewhere.

func parse(t testing.TB, text string) *Graph {
	t.Helper()
	b := NewBuilder()
	for _, resource := range strings.Fields(text) {
		id, named, _ := strings.Cut(resource, ">")
		var references []Reference
		for _, name := range strings.Split(named, ",") {
			if name == "" {
				continue
			}
			r := Reference{}
			for last := name[len(name)-1]; strings.ContainsRune("?+/", rune(last)); last = name[len(name)-1] {
				name = name[:len(name)-1]
				r.Optional = r.Optional || last == '?'
				r.Many = r.Many || last == '+'
				if last == '/' {
					r.Source = Elsewhere
				}
			}
			r.To = idOf(t, name)
			references = append(references, r)
		}
		b.Add(idOf(t, id), references)
	}
	return b.Graph()
}

func idOf(t testing.TB, text string) ID {
	t.Helper()
	word, name, _ := strings.Cut(text, ":")
	typeURL, err := xdstype.Parse(word)
	if err != nil {
		t.Fatal(err)
	}
	return ID{typeURL, name}
}

func print(ids []ID) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = xdstype.Of(id.TypeURL).Abbreviation + ":" + id.Name
	}
	return strings.Join(words, " ")
}

const shop = "lds:edge>rds:shop,sds:cert rds:shop>cds:cart,cds:gone cds:cart>eds:cart-v2 eds:cart-v2 sds:cert cds:old>eds:old eds:old"

func TestWhatIsReached(t *testing.T) {
	for _, c := range []struct{ rule, graph, from, want string }{
		{"breadth first, with what is not there", shop, "lds:edge", "lds:edge rds:shop sds:cert cds:cart cds:gone eds:cart-v2"},
		{"the members of a set, and not the set", "lds:edge>srds:*+ srds:a>rds:r srds:b", "lds:edge", "lds:edge srds:a srds:b rds:r"},
		{"a glob has its directory", "lds:edge>srds:xdstp://x/envoy.config.route.v3.ScopedRouteConfiguration/d/*+ srds:xdstp://x/envoy.config.route.v3.ScopedRouteConfiguration/d/1 srds:xdstp://x/envoy.config.route.v3.ScopedRouteConfiguration/e/1",
			"lds:edge", "lds:edge srds:xdstp://x/envoy.config.route.v3.ScopedRouteConfiguration/d/1"},
		{"names are what they mean", "lds:edge>cds:xdstp://x/envoy.config.cluster.v3.Cluster/%61?z=1&b=2 cds:xdstp://x/envoy.config.cluster.v3.Cluster/a?b=2&z=1>eds:e eds:e",
			"lds:edge", "lds:edge cds:xdstp://x/envoy.config.cluster.v3.Cluster/a?b=2&z=1 eds:e"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			if got := print(parse(t, c.graph).Reach(idOf(t, c.from))); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestWhatIsUnused(t *testing.T) {
	for _, c := range []struct{ rule, graph, want string }{
		{"no listener leads there", shop, "cds:old eds:old"},
		{"a cycle does not use itself", "lds:edge cds:a>cds:b cds:b>cds:a", "cds:a cds:b"},
		{"any cluster may be that of a header", "lds:edge>cds:*+ cds:a>eds:a eds:a eds:b", "eds:b"},
		{"runtimes are used by themselves", "rtds:r sds:s", "sds:s"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			if got := print(parse(t, c.graph).Unused()); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if got := print(parse(t, shop).Unused(idOf(t, "cds:old"))); got != "" {
		t.Errorf("what is a root is used, and what it leads to; got %q", got)
	}
}

func TestReferencesThatLeadNowhere(t *testing.T) {
	for _, c := range []struct{ rule, graph, want string }{
		{"it is not there", shop, "rds:shop>cds:gone"},
		{"a name for several needs none", "rds:shop>vhds:shop/*+,cds:*+", ""},
		{"what is elsewhere is not looked for", "lds:edge>sds:cert/", ""},
		{"each place is one", "rds:a>cds:x,cds:x rds:b>cds:x", "rds:a>cds:x rds:a>cds:x rds:b>cds:x"}, //nolint:dupword // the same twice is the point
	} {
		t.Run(c.rule, func(t *testing.T) {
			var got []string
			for _, e := range parse(t, c.graph).Dangling() {
				got = append(got, print([]ID{e.From})+">"+print([]ID{e.To}))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestCycles(t *testing.T) {
	for _, c := range []struct{ rule, graph, want string }{
		{"none", shop, ""},
		{"one that names itself", "cds:a>cds:a cds:b>cds:a", "cds:a"},
		{"two groups", "cds:a>cds:b cds:b>cds:c,cds:a cds:c>cds:d cds:d>cds:c cds:e>cds:a", "cds:c cds:d; cds:a cds:b"},
		{"what is optional makes none", "cds:a>cds:b? cds:b>cds:a", ""},
		{"a group that is reached by two ways", "cds:a>cds:b,cds:c cds:b>cds:c cds:c>cds:b", "cds:b cds:c"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			var got []string
			for _, cycle := range parse(t, c.graph).Cycles() {
				got = append(got, print(cycle))
			}
			if strings.Join(got, "; ") != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Two resources are in one cycle exactly if each leads to the other.
func TestCyclesAreWhatLeadsToItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "resources")
		name := func(i int) ID { return ID{xdstype.ClusterV3, fmt.Sprint(i)} }
		b := NewBuilder()
		for i := range n {
			var references []Reference
			for _, to := range rapid.SliceOfN(rapid.IntRange(0, n), 0, 3).Draw(t, "names") { // n is not there
				references = append(references, Reference{To: name(to)})
			}
			b.Add(name(i), references)
		}
		g := b.Graph()
		leads := func(from, to ID) bool { // in one step or more
			for _, r := range g.From(from) {
				if slices.Contains(g.Reach(r.To), to) {
					return true
				}
			}
			return false
		}
		for i := range n {
			inCycle := slices.ContainsFunc(g.Cycles(), func(cycle []ID) bool { return slices.Contains(cycle, name(i)) })
			if inCycle != leads(name(i), name(i)) {
				t.Fatalf("%d: in a cycle is %v", i, inCycle)
			}
		}
	})
}

// Long chains cause no recursion, and nothing is visited twice.
func TestALongChain(t *testing.T) {
	const n = 50_000
	b := NewBuilder()
	for i := range n {
		to := Reference{To: ID{xdstype.ClusterV3, fmt.Sprint((i + 1) % n)}}
		b.Add(ID{xdstype.ClusterV3, fmt.Sprint(i)}, []Reference{to, to})
	}
	g := b.Graph()
	first := ID{xdstype.ClusterV3, "0"}
	if cycles := g.Cycles(); len(cycles) != 1 || len(cycles[0]) != n {
		t.Errorf("%d cycles", len(cycles))
	}
	if len(g.Reach(first)) != n || len(g.Unused(first)) != 0 || len(g.Dangling()) != 0 {
		t.Error("not all of it")
	}
}
