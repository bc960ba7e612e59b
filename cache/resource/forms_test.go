package resource

import (
	"bytes"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// constraintsFor are those of the variant for who asks with env=value.
func constraintsFor(value string) *discoveryv3.DynamicParameterConstraints {
	return &discoveryv3.DynamicParameterConstraints{Type: &discoveryv3.DynamicParameterConstraints_Constraint{
		Constraint: &discoveryv3.DynamicParameterConstraints_SingleConstraint{
			Key:            "env",
			ConstraintType: &discoveryv3.DynamicParameterConstraints_SingleConstraint_Value{Value: value},
		},
	}}
}

// In every form a client decodes what the resource is, under the name that it
// asked for, and is sent no more than it understands.
func TestFormsSayWhatTheClientUnderstands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := spec().Draw(t, "spec")
		s.Extra = nil
		s.TTL = time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "ttl"))
		var constraints *discoveryv3.DynamicParameterConstraints
		if rapid.Bool().Draw(t, "variant") {
			constraints = constraintsFor(rapid.String().Draw(t, "env"))
			b, err := proto.Marshal(constraints)
			if err != nil {
				t.Fatal(err)
			}
			s.Constraints = string(b)
		}
		r := New(s)
		if rapid.Bool().Draw(t, "alias") {
			r = r.Aliased()
		}
		name := s.Name
		if r.Alias() || rapid.Bool().Draw(t, "renamed") {
			name = rapid.StringN(1, 100, -1).Draw(t, "name")
		}
		f := Form(rapid.IntRange(0, int(WithTTL|Wrapped|ByLocator|Heartbeat)).Draw(t, "form"))
		beat := f&Heartbeat != 0 && f&WithTTL != 0 && s.TTL > 0

		want := &discoveryv3.Resource{Name: name, Version: r.Version()}
		if f&ByLocator != 0 {
			want.Name, want.ResourceName = "", &discoveryv3.ResourceName{Name: name, DynamicParameterConstraints: constraints}
		}
		if f&WithTTL != 0 && s.TTL > 0 {
			want.Ttl = durationpb.New(s.TTL)
		}
		inner, value := "", s.Value
		if r.Inner() != "" && name != s.Name {
			inner = name
		}
		if r.Alias() && name != s.Name {
			inner = r.Inner()
			if !beat {
				want.Aliases = []string{s.Name}
			}
		}
		check := func(got *discoveryv3.Resource, inner string) {
			if beat != (got.Resource == nil) {
				t.Fatalf("heartbeat %v: %v", beat, got)
			}
			if got.Resource != nil {
				checkValue(t, got.Resource, s.TypeURL, value, inner)
			}
			want.Resource = got.Resource
			if !proto.Equal(got, want) {
				t.Fatalf("%v, want %v", got, want)
			}
		}

		var delta discoveryv3.DeltaDiscoveryResponse
		encoded := r.AppendDelta(nil, name, f)
		if err := proto.Unmarshal(encoded.Materialize(), &delta); err != nil {
			t.Fatal(err)
		}
		if r.Size(name, f) < encoded.Len() {
			t.Fatalf("size %d, is %d", r.Size(name, f), encoded.Len())
		}
		check(delta.Resources[0], r.Inner())

		var sotw discoveryv3.DiscoveryResponse
		encoded = r.AppendSotW(nil, name, f)
		if err := proto.Unmarshal(encoded.Materialize(), &sotw); err != nil {
			t.Fatal(err)
		}
		if r.Size(name, f) < encoded.Len() {
			t.Fatalf("size %d, is %d", r.Size(name, f), encoded.Len())
		}
		got := sotw.Resources[0]
		if got.TypeUrl == xdstype.Wrapper {
			if f&(Wrapped|ByLocator) == 0 && want.Ttl == nil {
				t.Fatal("wrapped, which the client does not understand")
			}
			var inside discoveryv3.Resource
			if err := got.UnmarshalTo(&inside); err != nil {
				t.Fatal(err)
			}
			check(&inside, inner)
			return
		}
		if want.Ttl != nil || want.ResourceName != nil {
			t.Fatal("not wrapped")
		}
		checkValue(t, got, s.TypeURL, value, "")
		if r.Inner() != "" && nameOf(t, got.Value) != name {
			t.Fatalf("the name inside is %q, want %q", nameOf(t, got.Value), name)
		}
	})
}

// checkValue checks that an Any is the origin's, with that name inside, if it is
// not empty.
func checkValue(t *rapid.T, got *anypb.Any, typeURL string, value []byte, inner string) {
	t.Helper()
	if got.TypeUrl != typeURL || !bytes.HasPrefix(got.Value, value) {
		t.Fatalf("Any %v, want %x", got, value)
	}
	if inner != "" && nameOf(t, got.Value) != inner {
		t.Fatalf("the name inside is %q, want %q", nameOf(t, got.Value), inner)
	}
}

// The types whose field 1 is not a name are not written into.
func TestWhatHasNoNameInsideKeepsItsFields(t *testing.T) {
	for _, typeURL := range []string{xdstype.LocalityEndpointV3, xdstype.Locator, "type.googleapis.com/envoy.config.listener.v3.ListenerCollection", "type.googleapis.com/example.ThingCollection"} {
		testKeepsItsFields(t, typeURL)
	}
}

func testKeepsItsFields(t *testing.T, typeURL string) {
	t.Helper()
	r := New(Spec{Name: "a", TypeURL: typeURL, Value: wire.AppendString(nil, 1, "endpoint")})
	var delta discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(r.AppendDelta(nil, "b", 0).Materialize(), &delta); err != nil {
		t.Fatal(err)
	}
	if got := delta.Resources[0]; got.Name != "b" || !bytes.Equal(got.Resource.Value, r.Value()) {
		t.Errorf("%v", got)
	}
	var sotw discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(r.AppendSotW(nil, "b", Wrapped).Materialize(), &sotw); err != nil {
		t.Fatal(err)
	}
	if got := sotw.Resources[0]; got.TypeUrl != xdstype.Wrapper {
		t.Errorf("%v, want it wrapped, as there is no name in it", got)
	}
}

// What clients share is what each of them would be sent by itself.
func TestCommonFormsAreWhatEachClientIsSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := spec().Draw(t, "spec")
		s.TTL = time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "ttl"))
		r := New(s)
		f := Form(rapid.IntRange(0, int(WithTTL|Wrapped|ByLocator|Heartbeat)).Draw(t, "form"))
		name := rapid.SampledFrom([]string{s.Name, s.Name + "x"}).Draw(t, "name")
		for delta, encode := range map[bool]func(Form) []byte{
			true:  func(f Form) []byte { return r.AppendDelta(nil, name, f).Materialize() },
			false: func(f Form) []byte { return r.AppendSotW(nil, name, f).Materialize() },
		} {
			form, ok := r.SharedForm(name, f, delta)
			if !ok {
				continue
			}
			want := encode(f)
			if got := encode(form); !bytes.Equal(got, want) {
				t.Fatalf("delta %v: form %b is\n%q, form %b is\n%q", delta, form, got, f, want)
			}
			switch {
			case form == 0:
				if got := r.AppendBytes(nil, delta); !bytes.Equal(got, want) {
					t.Fatalf("delta %v: plain is\n%q, want\n%q", delta, got, want)
				}
			case form&Heartbeat != 0:
				if got := r.AppendHeartbeat(nil, delta); !bytes.Equal(got, want) || r.HeartbeatSize(delta) != len(want) {
					t.Fatalf("delta %v: the heartbeat is %d bytes,\n%q, want\n%q", delta, r.HeartbeatSize(delta), got, want)
				}
			}
		}
	})
}

// In delta the name inside stays as the control plane wrote it. In SotW it stays for a client that requests its normal
// form, and is otherwise the client's. What the relay has resolved has the referring resource's, or the client's in both.
func TestTheNameInside(t *testing.T) {
	const begins = "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/"
	const (
		alt     = "n#alt=" + begins + "m"
		folded  = "n%23alt=" + begins + "m"
		escaped = "n%23alt=xdstp%3A//a/envoy.config.endpoint.v3.ClusterLoadAssignment/m"
	)
	for _, c := range []struct {
		origin, requested, delta, sotw string
		renamed                        func(*Resource) *Resource
	}{
		{origin: "n", requested: "n", delta: "n", sotw: "n"},
		{origin: "n%2D1?b=1&a=2", requested: "n-1?a=2&b=1", delta: "n%2D1?b=1&a=2", sotw: "n%2D1?b=1&a=2"},
		{origin: "n1?zone=a&env=b", requested: "n1?env=b&zone=a", delta: "n1?zone=a&env=b", sotw: "n1?zone=a&env=b"},
		{origin: "a%3Ab", requested: "a:b", delta: "a%3Ab", sotw: "a%3Ab"},
		{origin: "n1?env=a%2Fb", requested: "n1?env=a/b", delta: "n1?env=a%2Fb", sotw: "n1?env=a%2Fb"},
		{origin: "n:1", requested: "n%3A1", delta: "n:1", sotw: "n%3A1"},
		{origin: "n", requested: "n?id=x", delta: "n", sotw: "n?id=x"}, // a parameter that the relay drops
		{origin: "m", requested: folded, delta: folded, sotw: folded, renamed: func(r *Resource) *Resource { return r.Renamed(begins+alt, "", "1") }},
		{origin: "m", requested: folded, delta: alt, sotw: alt, renamed: func(r *Resource) *Resource { return r.Renamed(begins+alt, begins+alt, "1") }},
		{origin: "m", requested: folded, delta: escaped, sotw: escaped, renamed: func(r *Resource) *Resource { return r.Renamed(begins+alt, begins+escaped, "1") }},
		{origin: "m", requested: escaped, delta: alt, sotw: escaped, renamed: func(r *Resource) *Resource { return r.Renamed(begins+alt, begins+alt, "1") }},
		{origin: "m", requested: "r?a=2&b=1", delta: "r?b=1&a=2", sotw: "r?b=1&a=2", renamed: func(r *Resource) *Resource { return r.Renamed(begins+"r?a=2&b=1", begins+"r?b=1&a=2", "1") }},
	} {
		const typeURL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
		r := New(Spec{Name: begins + c.origin, TypeURL: typeURL, Value: message(begins+c.origin, "x")})
		if c.renamed != nil {
			r = c.renamed(r)
		}
		var delta discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(r.AppendDelta(nil, begins+c.requested, 0).Materialize(), &delta); err != nil {
			t.Fatal(err)
		}
		var sotw discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(r.AppendSotW(nil, begins+c.requested, 0).Materialize(), &sotw); err != nil {
			t.Fatal(err)
		}
		for form, got := range map[string]struct {
			value []byte
			want  string
		}{"delta": {delta.Resources[0].Resource.Value, c.delta}, "SotW": {sotw.Resources[0].Value, c.sotw}} {
			if name, err := wire.InnerName(got.value); err != nil || name != begins+got.want {
				t.Errorf("%s, %s requested as %s: the name inside is %s, %v, want %s", form, c.origin, c.requested, name, err, begins+got.want)
			}
		}
	}
}
