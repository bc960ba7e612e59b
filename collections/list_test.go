package collections

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev3 "github.com/cncf/xds/go/xds/core/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

const (
	clusterType    = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	collectionType = clusterType + "Collection"
)

// parseList parses the first version of a list collection.
func parseList(r *cache.Resource) *list { return parseListAfter(r, &list{}) }

// collection returns a list collection of the entries, each an encoded CollectionEntry.
func collection(name string, entries ...[]byte) *cache.Resource {
	var value []byte
	for _, e := range entries {
		value = protowire.AppendTag(value, 1, protowire.BytesType)
		value = protowire.AppendBytes(value, e)
	}
	return cache.NewResource(cache.Spec{Name: name, Version: "1", TypeURL: collectionType, Value: value})
}

func mustMarshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func locator(t testing.TB, url string) *corev3.ResourceLocator {
	t.Helper()
	u, err := urn.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	m, err := u.Proto()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func locatorEntry(t testing.TB, url string) []byte {
	t.Helper()
	return mustMarshal(t, &corev3.CollectionEntry{ResourceSpecifier: &corev3.CollectionEntry_Locator{Locator: locator(t, url)}})
}

func inlineEntry(t testing.TB, name, version string, value *anypb.Any) []byte {
	t.Helper()
	return mustMarshal(t, &corev3.CollectionEntry{ResourceSpecifier: &corev3.CollectionEntry_InlineEntry_{
		InlineEntry: &corev3.CollectionEntry_InlineEntry{Name: name, Version: version, Resource: value},
	}})
}

func anyOf(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	return &anypb.Any{TypeUrl: xdstype.Prefix + string(m.ProtoReflect().Descriptor().FullName()), Value: mustMarshal(t, m)}
}

func cluster(t testing.TB, name string) *anypb.Any {
	t.Helper()
	return anyOf(t, &clusterv3.Cluster{Name: name})
}

// describe prints a list, an entry a line.
func (l *list) describe() string {
	var b strings.Builder
	for i, e := range l.entries {
		switch {
		case e.err != nil:
			fmt.Fprintf(&b, "%d: %s\n", i, e.err.Error())
			continue
		case e.inline:
			fmt.Fprintf(&b, "%d: inline %q version %q", i, e.name, e.version)
		default:
			fmt.Fprintf(&b, "%d: locator", i)
		}
		if e.value != nil || e.locator == (urn.URL{}) {
			fmt.Fprintf(&b, " %s of %d bytes", xdstype.Message(e.typeURL), len(e.value))
		}
		if e.locator != (urn.URL{}) {
			fmt.Fprintf(&b, " -> %s", e.locator)
		}
		b.WriteString("\n")
	}
	if l.err != nil {
		fmt.Fprintf(&b, "rest: %s\n", l.err.Error())
	}
	return b.String()
}

func TestListCollectionIsTakenApart(t *testing.T) {
	const name = "xdstp://a/envoy.config.cluster.v3.ClusterCollection/c"
	opaque := &anypb.Any{TypeUrl: "type.googleapis.com/not.known.T", Value: []byte{0x0a, 1, 'x'}}
	// As two messages of one field, which protobuf takes together.
	split := append(protowire.AppendTag(nil, 2, protowire.BytesType), 3, 0x0a, 1, 'n')
	split = append(split, inlineEntry(t, "", "2", opaque)...)
	bare := mustMarshal(t, &corev3.ResourceLocator{Authority: "a", ResourceType: "T", Id: "x", Scheme: corev3.ResourceLocator_HTTP})
	for _, c := range []struct {
		about   string
		entries [][]byte
		want    string
	}{
		{"none", nil, ""},
		{"locators, with directives", [][]byte{
			locatorEntry(t, "xdstp://a/envoy.config.cluster.v3.Cluster/x"),
			locatorEntry(t, "xdstp://b/envoy.config.cluster.v3.Cluster/y#alt=xdstp://a/envoy.config.cluster.v3.Cluster/y"),
			locatorEntry(t, "xdstp://b/envoy.config.cluster.v3.Cluster/all/*"),
		}, `
0: locator -> xdstp://a/envoy.config.cluster.v3.Cluster/x
1: locator -> xdstp://b/envoy.config.cluster.v3.Cluster/y#alt=xdstp://a/envoy.config.cluster.v3.Cluster/y
2: locator -> xdstp://b/envoy.config.cluster.v3.Cluster/all/*
`},
		{"inline entries, one anonymous, one of a type that nobody knows, one a redirect", [][]byte{
			inlineEntry(t, "x", "8.5.4", cluster(t, "x")),
			inlineEntry(t, "", "3.9.0", cluster(t, "y")),
			inlineEntry(t, "o", "", opaque),
			inlineEntry(t, "r", "1", anyOf(t, locator(t, "xdstp://b/envoy.config.cluster.v3.Cluster/z"))),
		}, `
0: inline "x" version "8.5.4" envoy.config.cluster.v3.Cluster of 3 bytes
1: inline "" version "3.9.0" envoy.config.cluster.v3.Cluster of 3 bytes
2: inline "o" version "" not.known.T of 3 bytes
3: inline "r" version "1" -> xdstp://b/envoy.config.cluster.v3.Cluster/z
`},
		{"a mistake is one of its entry", [][]byte{
			{0xff},
			{},
			inlineEntry(t, "x", "1", cluster(t, "x")),
			inlineEntry(t, "x", "2", cluster(t, "other")),
			inlineEntry(t, "x y", "1", cluster(t, "x")),
			inlineEntry(t, "none", "1", nil),
			inlineEntry(t, "bad", "1", &anypb.Any{TypeUrl: clusterType, Value: []byte{0x0a, 9}}),
			inlineEntry(t, "worse", "1", &anypb.Any{TypeUrl: "type.googleapis.com/not.known.T", Value: []byte{0x0a, 9}}),
			append([]byte{0x0a, byte(len(bare))}, bare...),
			inlineEntry(t, "r", "1", &anypb.Any{TypeUrl: xdstype.Locator, Value: bare}),
			locatorEntry(t, "xdstp://a/envoy.config.cluster.v3.Cluster/x"),
		}, `
0: InvalidArgument: entry 0 of the list collection: it cannot be read: unexpected EOF
1: InvalidArgument: entry 1 of the list collection: it is neither a locator nor an inline entry
2: inline "x" version "1" envoy.config.cluster.v3.Cluster of 3 bytes
3: InvalidArgument: entry 3, "x", of the list collection: its name is also that of entry 2
4: InvalidArgument: entry 4, "x y", of the list collection: its name has forbidden characters (want one or more of [a-zA-Z0-9_-./~:])
5: InvalidArgument: entry 5, "none", of the list collection: it has no resource
6: InvalidArgument: entry 6, "bad", of the list collection: its resource is not a valid envoy.config.cluster.v3.Cluster: cannot parse invalid wire-format data
7: InvalidArgument: entry 7, "worse", of the list collection: its resource is not a valid not.known.T: unexpected EOF
8: InvalidArgument: entry 8 of the list collection: its locator: xds.core.v3.ResourceLocator.scheme: HTTP is not supported (want XDSTP)
9: InvalidArgument: entry 9, "r", of the list collection: its locator: xds.core.v3.ResourceLocator.scheme: HTTP is not supported (want XDSTP)
10: locator -> xdstp://a/envoy.config.cluster.v3.Cluster/x
`},
		{"of a oneof the last counts, and pieces of it are one message", [][]byte{
			append(locatorEntry(t, "xdstp://a/envoy.config.cluster.v3.Cluster/x"), inlineEntry(t, "x", "1", opaque)...),
			append(inlineEntry(t, "x", "1", opaque), locatorEntry(t, "xdstp://a/envoy.config.cluster.v3.Cluster/x")...),
			split,
		}, `
0: inline "x" version "1" not.known.T of 3 bytes
1: locator -> xdstp://a/envoy.config.cluster.v3.Cluster/x
2: inline "n" version "2" not.known.T of 3 bytes
`},
	} {
		if got := parseList(collection(name, c.entries...)).describe(); got != strings.TrimPrefix(c.want, "\n") {
			t.Errorf("%s:\n%swant\n%s", c.about, got, c.want)
		}
	}

	cut := cache.NewResource(cache.Spec{Name: name, TypeURL: collectionType,
		Value: append(collection(name, inlineEntry(t, "x", "1", opaque)).Value(), 0x0a, 9)})
	const want = `0: inline "x" version "1" not.known.T of 3 bytes
rest: InvalidArgument: list collection xdstp://a/envoy.config.cluster.v3.ClusterCollection/c: entry 1 and those after it cannot be read: unexpected EOF
`
	if got := parseList(cut).describe(); got != want {
		t.Errorf("cut off:\n%swant\n%s", got, want)
	}
}

// The parsed list has the content of the protobuf messages.
func TestListCollectionIsWhatItsMessageSays(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-zA-Z0-9_./~:-]{1,4}`), 0, 6, rapid.ID[string]).Draw(rt, "names")
		var entries [][]byte
		for _, n := range names {
			if rapid.Bool().Draw(rt, "inline") {
				entries = append(entries, inlineEntry(t, n, n, cluster(t, n)))
			} else {
				entries = append(entries, locatorEntry(t, "xdstp://a/envoy.config.cluster.v3.Cluster/x#entry="+n))
			}
		}
		l := parseList(collection("c", entries...))
		if len(l.entries) != len(entries) || l.err != nil {
			rt.Fatalf("%d entries and error %v, want %d", len(l.entries), l.err, len(entries))
		}
		for i, b := range entries {
			var m corev3.CollectionEntry
			if err := proto.Unmarshal(b, &m); err != nil {
				rt.Fatal(err)
			}
			e := l.entries[i]
			switch in := m.GetInlineEntry(); {
			case e.err != nil:
				rt.Fatal(e.err)
			case in == nil && (e.inline || e.locator.String() != "xdstp://a/envoy.config.cluster.v3.Cluster/x#entry="+names[i]):
				rt.Fatalf("%+v, want a locator", e)
			case in != nil && (e.name != in.GetName() || e.version != in.GetVersion() || e.typeURL != in.GetResource().GetTypeUrl() || string(e.value) != string(in.GetResource().GetValue())):
				rt.Fatalf("%+v, want %v", e, in)
			case in != nil && l.entry(names[i]) != &l.entries[i]:
				rt.Fatalf("entry %q is not found by its name", names[i])
			}
		}
	})
}

// A collection that is parsed after another one is the same as if it were parsed alone, and entries that
// both have are parsed, and made into resources, once.
func TestListCollectionAfterAnother(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(label string) (entries [][]byte) {
			for _, n := range rapid.SliceOfN(rapid.IntRange(0, 9), 0, 8).Draw(rt, label) {
				name := fmt.Sprint(n % 4)
				switch {
				case n == 0:
					entries = append(entries, inlineEntry(t, "", "1", cluster(t, "anonymous")))
				case n == 1:
					entries = append(entries, inlineEntry(t, "bad", "1", nil))
				case n < 4:
					entries = append(entries, locatorEntry(t, "xdstp://a/envoy.config.cluster.v3.Cluster/"+name))
				default:
					entries = append(entries, inlineEntry(t, name, fmt.Sprint(n), cluster(t, name)))
				}
			}
			return entries
		}
		before, entries := parseList(collection("c", draw("before")...)), draw("after")
		for i := range before.entries {
			if e := &before.entries[i]; e.name != "" && e.err == nil {
				e.resourceMade = e.resource(e.name)
			}
		}
		l, want := parseListAfter(collection("c", entries...), before), parseList(collection("c", entries...))
		if l.describe() != want.describe() || !maps.Equal(l.named, want.named) {
			rt.Fatalf("after another it is\n%sand by itself\n%s", l.describe(), want.describe())
		}
		for i, e := range l.entries {
			if string(e.value) != string(want.entries[i].value) {
				rt.Fatalf("entry %d has value %q, want %q", i, e.value, want.entries[i].value)
			}
			if e.resourceMade != nil && (e.resourceMade.Name() != e.name || e.resourceMade.Version() != e.version || string(e.resourceMade.Value()) != string(e.value)) {
				rt.Fatalf("entry %d is not the resource that was made of another", i)
			}
		}
	})

	x, y, z := inlineEntry(t, "x", "1", cluster(t, "x")), inlineEntry(t, "y", "1", cluster(t, "y")), inlineEntry(t, "z", "1", cluster(t, "z"))
	before := parseList(collection("c", x, y, z))
	made := before.entries[2].resource("z")
	before.entries[2].resourceMade = made
	for _, after := range [][][]byte{{x, y, z}, {z}, {y, z}, {inlineEntry(t, "x", "2", cluster(t, "x")), y, z}, {x, y, inlineEntry(t, "new", "1", cluster(t, "new")), z}} {
		l := parseListAfter(collection("c", after...), before)
		if got := l.entry("z").resourceMade; got != made && len(after) > 1 {
			t.Errorf("of %d entries the last one, which is the same, is made again", len(after))
		}
	}
}

func FuzzListCollection(f *testing.F) {
	f.Add(collection("c", inlineEntry(f, "x", "1", cluster(f, "x")), locatorEntry(f, "xdstp://a/T/x#alt=xdstp://b/T/x")).Value())
	f.Add([]byte{0x0a, 0})
	f.Fuzz(func(t *testing.T, value []byte) {
		l := parseList(cache.NewResource(cache.Spec{Name: "c", TypeURL: collectionType, Value: value}))
		for _, e := range l.entries {
			if e.err == nil && !e.inline && e.locator.String() == "" {
				t.Error("an entry is nothing and no mistake")
			}
			if e.err == nil && e.inline && e.locator.String() == "" {
				e.resource("n")
			}
		}
	})
}
