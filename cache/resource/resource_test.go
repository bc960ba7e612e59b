package resource

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Field 1 is the name in every xDS resource: BytesValue is one that has it and
// whatever else as unknown fields.
func nameOf(t *rapid.T, value []byte) string {
	t.Helper()
	var m wrapperspb.BytesValue
	if err := proto.Unmarshal(value, &m); err != nil {
		t.Fatal(err)
	}
	return string(m.Value)
}

const testType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

// message encodes a message with a name in field 1 and content in field 2.
func message(name, content string) []byte {
	return wire.AppendString(wire.AppendString(nil, 1, name), 2, content)
}

func spec() *rapid.Generator[Spec] {
	return rapid.Custom(func(t *rapid.T) Spec {
		s := Spec{
			Name:    rapid.StringN(1, 40, 300).Draw(t, "name"),
			Version: rapid.StringN(0, 10, 20).Draw(t, "version"),
			TypeURL: "type.googleapis.com/" + rapid.StringMatching(`[a-z]{1,20}(\.[A-Za-z]{1,150})?`).Draw(t, "type"),
		}
		if rapid.Bool().Draw(t, "has a name inside") {
			inner := s.Name
			if rapid.Bool().Draw(t, "another one") {
				inner = rapid.StringN(1, 10, -1).Draw(t, "inner")
			}
			s.Value = wire.AppendString(s.Value, 1, inner)
		}
		content := rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "content")
		s.Value = wire.AppendString(s.Value, 2, string(content))
		if rapid.Bool().Draw(t, "has extra fields") {
			extra, err := proto.Marshal(&discoveryv3.Resource{Aliases: []string{"other"}, Ttl: durationpb.New(5)})
			if err != nil {
				t.Fatal(err)
			}
			s.Extra = extra
		}
		return s
	})
}

// What is appended is a message that says what the resource is, and the same
// bytes for everybody.
func TestEncodingsSayTheResource(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := spec().Draw(t, "spec")
		r := New(s)
		if rapid.Bool().Draw(t, "of another name") {
			r, s = renamed(t, r, s)
		}
		name := s.Name
		switch rapid.IntRange(0, 2).Draw(t, "renamed") {
		case 0:
			name = rapid.StringN(1, 200, -1).Draw(t, "new name")
		case 1:
			name = cmp.Or(r.Inner(), s.Name)
		}
		before := mem.BufferSlice{mem.SliceBuffer("\x0a\x01x")} // system_version_info, version_info

		version := s.Version
		if version == "" {
			version = fmt.Sprintf("%016x", r.Hash())
		}
		if r.Version() != version || r.Name() != s.Name || r.TypeURL() != s.TypeURL || !bytes.Equal(r.Value(), s.Value) {
			t.Fatalf("%q %q %q %x", r.Name(), r.Version(), r.TypeURL(), r.Value())
		}

		var delta discoveryv3.DeltaDiscoveryResponse
		encoded := r.AppendDelta(before, name, 0)
		if err := proto.Unmarshal(encoded.Materialize(), &delta); err != nil {
			t.Fatal(err)
		}
		if len(delta.Resources) != 1 || delta.SystemVersionInfo != "x" {
			t.Fatalf("delta response: %v", &delta)
		}
		got := delta.Resources[0]
		if !r.Unspelled() || name == s.Name {
			checkAny(t, s, got.Resource)
		} else if inner := nameOf(t, got.Resource.Value); inner != name && inner != "" {
			t.Fatalf("delta: the name inside is %q, want %q", inner, name)
		}
		want := &discoveryv3.Resource{Name: name, Version: version, Resource: got.Resource}
		if s.Extra != nil {
			want.Aliases, want.Ttl = []string{"other"}, durationpb.New(5)
		}
		if !proto.Equal(got, want) {
			t.Fatalf("delta: %v, want %v", got, want)
		}
		if n := encoded.Len() - before.Len(); r.Size(name, 0) < n || name == s.Name && r.Size(name, 0) != n {
			t.Fatalf("size %d, is %d", r.Size(name, 0), n)
		}

		var sotw discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(r.AppendSotW(before, name, 0).Materialize(), &sotw); err != nil {
			t.Fatal(err)
		}
		if len(sotw.Resources) != 1 || sotw.VersionInfo != "x" {
			t.Fatalf("SotW response: %v", &sotw)
		}
		if inner := nameOf(t, sotw.Resources[0].Value); inner != name && inner != "" && name != s.Name {
			t.Fatalf("SotW: the name inside is %q, want %q", inner, name)
		}
		value := sotw.Resources[0].Value
		if !bytes.HasPrefix(value, r.Value()) && !bytes.HasPrefix(value, bytesOf(r.original())) || sotw.Resources[0].TypeUrl != s.TypeURL {
			t.Fatalf("SotW: %v", sotw.Resources[0])
		}
	})
}

// renamed renames a resource, once or twice, and returns the Spec of what it is then.
func renamed(t *rapid.T, r *Resource, s Spec) (*Resource, Spec) {
	inner := r.Inner()
	for range rapid.IntRange(1, 2).Draw(t, "times") {
		s.Name = rapid.StringN(1, 40, 300).Draw(t, "new name")
		inside := rapid.SampledFrom([]string{"", s.Name, inner, "inside"}).Draw(t, "inside")
		s.Version = "v"
		r = r.Renamed(s.Name, inside, s.Version)
		if want := cmp.Or(inside, s.Name); inner != "" && (r.Inner() != want || nameOf(t, r.Value()) != want) {
			t.Fatalf("the names inside are %q and %q, want %q", r.Inner(), nameOf(t, r.Value()), want)
		}
		if last, err := r.Last(wire.InnerNameField); err != nil || string(last) != r.Inner() || r.ValueSize() != len(r.Value()) {
			t.Fatalf("name %q, %v, want %q; %d bytes, want %d", last, err, r.Inner(), r.ValueSize(), len(r.Value()))
		}
	}
	s.Value = r.Value()
	return r, s
}

// checkAny checks that the Any that a delta client gets is the origin's own, under any name.
func checkAny(t *rapid.T, s Spec, got *anypb.Any) {
	t.Helper()
	if got.TypeUrl != s.TypeURL || !bytes.Equal(got.Value, s.Value) {
		t.Fatalf("Any: %v, want value %x", got, s.Value)
	}
}

// Invariant: what many clients receive shares the same bytes.
func TestEncodingsShareTheValue(t *testing.T) {
	value := message("foo", strings.Repeat("x", 1<<20))
	r := New(Spec{Name: "foo", TypeURL: testType, Value: value})
	nameless := New(Spec{Name: "foo", TypeURL: testType, Value: wire.AppendString(nil, 2, "x")})
	own, other := unsafe.StringData(r.delta), unsafe.SliceData(value)
	if own == other {
		t.Error("the value is not copied: the caller may change it")
	}
	for _, c := range []struct {
		what    string
		msg     mem.BufferSlice
		pieces  int
		private int // bytes
	}{
		{"delta", r.AppendDelta(nil, "foo", 0), 1, 0},
		{"SotW", r.AppendSotW(nil, "foo", 0), 1, 0},
		{"SotW without a name inside", nameless.AppendSotW(nil, "a/b", 0), 1, 1 << 21},
		{"renamed delta", r.AppendDelta(nil, "a/b", 0), 2, 150},
		{"renamed SotW", r.AppendSotW(nil, "a/b", 0), 3, 100},
	} {
		if len(c.msg) != c.pieces {
			t.Errorf("%s: %d pieces, want %d", c.what, len(c.msg), c.pieces)
		}
		private, shared := 0, 0
		all := bytesOf(r.delta)
		for _, p := range c.msg {
			b := p.ReadOnlyData()
			at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(all)))
			if at < uintptr(len(all)) {
				shared += len(b)
			} else {
				private += len(b)
			}
		}
		if shared < len(value) && c.private < len(value) || private > c.private {
			t.Errorf("%s: %d bytes shared and %d private, of a value of %d", c.what, shared, private, len(value))
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		var msg [2]mem.Buffer
		r.AppendSotW(r.AppendDelta(msg[:0], "foo", 0), "foo", 0)
	}); n > 2 { // the header of each buffer
		t.Errorf("%v allocations under the own name", n)
	}
}

// Names that clients make up cost no copies of what they lead to.
func TestARenamedResourceSharesTheValue(t *testing.T) {
	const long = 1 << 20
	r := New(Spec{Name: "foo", TypeURL: testType, Value: message("foo", strings.Repeat("x", long))})
	var all []*Resource
	cost := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			all = append(all[:0], r.Renamed("bar", "", "1"), r.Renamed("baz", "inside", "1"))
		}
	}).AllocedBytesPerOp()
	if cost > 4<<10 {
		t.Errorf("two names take %d bytes", cost)
	}
	for i, renamed := range append(all, all[0].Renamed("again", "", "2")) {
		var msg mem.BufferSlice
		msg = renamed.AppendSotW(renamed.AppendDelta(msg, renamed.Name(), 0), renamed.Name(), 0)
		shared := 0
		for _, p := range msg {
			if unsafe.SliceData(p.ReadOnlyData()) == unsafe.StringData(withoutName(r.original())) {
				shared++
			}
		}
		if shared != 2 {
			t.Errorf("resource %d: %d of 2 forms share the value", i, shared)
		}
	}
}

// A resource that is replaced by one that had another name has changed only if something else differs.
func TestTheFormerNameIsNotInTheHash(t *testing.T) {
	as := func(name, content string) *Resource {
		return New(Spec{Name: name, TypeURL: testType, Value: message(name, content)}).Renamed("n", "", "1")
	}
	if as("a", "x").Hash() != as("b", "x").Hash() || as("a", "x").Hash() != New(Spec{Name: "n", TypeURL: testType, Value: message("n", "x")}).Hash() {
		t.Error("the former name is in the hash")
	}
	if as("a", "x").Hash() == as("a", "y").Hash() {
		t.Error("the content is not in the hash")
	}
}

func TestHashIsThatOfTheContent(t *testing.T) {
	base := Spec{Name: "foo", Version: "1", TypeURL: testType, Value: message("foo", "x")}
	renamed, again := base, base
	renamed.Name, again.Version = "bar", "2"
	if h := New(base).Hash(); h != New(renamed).Hash() || h != New(again).Hash() {
		t.Error("name or version are in the hash")
	}
	aliased := base
	aliased.Extra = wire.AppendString(nil, wire.ResourceAliases, "alias")
	if New(aliased).Hash() != New(base).Hash() {
		t.Error("aliases are in the hash, which change with who asks how")
	}
	for what, change := range map[string]func(*Spec){
		"type":  func(s *Spec) { s.TypeURL += "x" },
		"value": func(s *Spec) { s.Value = message("foo", "y") },
		"extra": func(s *Spec) { s.Extra = wire.AppendString(nil, 9, "metadata") },
	} {
		s := base
		change(&s)
		if New(s).Hash() == New(base).Hash() {
			t.Errorf("%s is not in the hash", what)
		}
	}
}

func TestVersionsOfTheContentHaveTheSameLength(t *testing.T) {
	for _, h := range []uint64{0, 1, 1 << 60, 1<<64 - 1} {
		if got, want := FormatHash(h), fmt.Sprintf("%016x", h); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func FuzzInnerName(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(message("foo", "bar"))
	f.Add(append(message("foo", "bar"), message("baz", "")...))
	f.Add([]byte("\x08\x01\x0a\x03foo"))
	f.Add([]byte("\x0b\x0a\x03foo\x0c"))
	f.Add([]byte("\x0a\x04foo"))
	f.Add([]byte("\xc0\xd2\xd2\xd2\x30\xc0\x30")) // a field number that is too large
	f.Fuzz(func(t *testing.T, value []byte) {
		name, err := wire.InnerName(value)
		var m wrapperspb.BytesValue
		if protoErr := proto.Unmarshal(value, &m); (err == nil) != (protoErr == nil) {
			t.Fatalf("error %v, protobuf's %v", err, protoErr)
		}
		if err == nil && name != string(m.Value) {
			t.Fatalf("name %q, want %q", name, m.Value)
		}
		// Whatever the value is, the fields around it are right.
		r := New(Spec{Name: "n", TypeURL: testType, Value: value})
		var delta discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(r.AppendDelta(nil, "other", 0).Materialize(), &delta); err != nil {
			t.Fatal(err)
		}
	})
}

// Resources of a type share their traits, and looking for these costs nothing: a response may have very many.
func TestLookingForTheTraitsOfAResourceCostsNoAllocation(t *testing.T) {
	common.Clear() // other tests may have filled it
	commonCount.Store(0)
	of := traits{typeURL: xdstype.ClusterV3, same: true}
	if got := testing.AllocsPerRun(100, func() { of.shared() }); got != 0 {
		t.Errorf("%v allocations", got)
	}
	if same := of; same.shared() != of.shared() {
		t.Error("they are not shared")
	}
}
