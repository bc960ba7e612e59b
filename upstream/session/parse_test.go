package session

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// The generated messages decide what a response means: the shallow parser must
// accept what they accept, and read the same in it.

func checkDelta(t interface{ Fatalf(string, ...any) }, b []byte) {
	got, err := Delta.Parse(b)
	want := &discoveryv3.DeltaDiscoveryResponse{}
	if proto.Unmarshal(b, want) != nil {
		return // the parser may be less strict: it does not look at everything
	}
	if err != nil {
		t.Fatalf("parseDelta: %v, of what is a DeltaDiscoveryResponse", err)
	}
	head := [3]string{want.GetSystemVersionInfo(), want.GetTypeUrl(), want.GetNonce()}
	if got := [3]string{got.Version, got.TypeURL, got.Nonce}; got != head {
		t.Fatalf("version, type, nonce: %q, want %q", got, head)
	}
	var removed, gotRemoved []string
	removed = append(removed, want.GetRemovedResources()...)
	for _, name := range want.GetRemovedResourceNames() {
		removed = append(removed, name.GetName())
	}
	// The two lists are one here, in the order of the message.
	for _, n := range got.Removed {
		gotRemoved = append(gotRemoved, n.Name)
	}
	slices.Sort(gotRemoved)
	if slices.Sort(removed); !slices.Equal(gotRemoved, removed) {
		t.Fatalf("removed: %q, want %q", gotRemoved, removed)
	}
	checkErrors(t, got.Errors, want.GetResourceErrors())
	if len(got.Resources) != len(want.GetResources()) {
		t.Fatalf("%d resources, want %d", len(got.Resources), len(want.GetResources()))
	}
	for i, r := range want.GetResources() {
		checkResource(t, &got.Resources[i], r)
	}
}

func checkSotW(t interface{ Fatalf(string, ...any) }, b []byte) {
	got, err := SotW.Parse(b)
	want := &discoveryv3.DiscoveryResponse{}
	if proto.Unmarshal(b, want) != nil {
		return
	}
	if err != nil {
		t.Fatalf("parseSotW: %v, of what is a DiscoveryResponse", err)
	}
	head := [3]string{want.GetVersionInfo(), want.GetTypeUrl(), want.GetNonce()}
	if got := [3]string{got.Version, got.TypeURL, got.Nonce}; got != head {
		t.Fatalf("version, type, nonce: %q, want %q", got, head)
	}
	checkErrors(t, got.Errors, want.GetResourceErrors())
	if len(got.Resources) != len(want.GetResources()) {
		t.Fatalf("%d resources, want %d", len(got.Resources), len(want.GetResources()))
	}
	for i, a := range want.GetResources() {
		r := &got.Resources[i]
		if a.GetTypeUrl() == xdstype.Wrapper {
			inner := &discoveryv3.Resource{}
			if proto.Unmarshal(a.GetValue(), inner) == nil && (inner.GetName() != "" || inner.GetResourceName().GetName() != "") {
				checkResource(t, r, inner)
			}
			continue
		}
		if r.typeURL != a.GetTypeUrl() || !bytes.Equal(r.value, a.GetValue()) || !r.Present {
			t.Fatalf("resources[%d]: %q %x, want %q %x", i, r.typeURL, r.value, a.GetTypeUrl(), a.GetValue())
		}
		if name, err := wire.InnerName(a.GetValue()); err == nil && r.Err == nil && r.Name != name {
			t.Fatalf("resources[%d]: name %q, want %q", i, r.Name, name)
		}
	}
}

func checkErrors(t interface{ Fatalf(string, ...any) }, got []ResourceError, want []*discoveryv3.ResourceError) {
	if len(got) != len(want) {
		t.Fatalf("%d errors, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.Name.Name != w.GetResourceName().GetName() || g.Err.Message != w.GetErrorDetail().GetMessage() ||
			int32(g.Err.Code) != w.GetErrorDetail().GetCode() {
			t.Fatalf("error %+v, want %v", g, w)
		}
	}
}

func checkResource(t interface{ Fatalf(string, ...any) }, got *Resource, want *discoveryv3.Resource) {
	if got.Err != nil {
		t.Fatalf("resource: %v, of what is %v", got.Err, want)
	}
	name := want.GetName()
	if name == "" {
		name = want.GetResourceName().GetName()
	}
	if got.Name != name || got.Version != want.GetVersion() || !slices.Equal(got.aliases, want.GetAliases()) ||
		got.TTL != ttlOf(want) || got.doNotCache != want.GetCacheControl().GetDoNotCache() || got.Present != (want.GetResource() != nil) ||
		got.typeURL != want.GetResource().GetTypeUrl() || !bytes.Equal(got.value, want.GetResource().GetValue()) {
		t.Fatalf("resource %+v, want %v", got, want)
	}
	constraints := &discoveryv3.DynamicParameterConstraints{}
	if err := proto.Unmarshal([]byte(got.constraints), constraints); err != nil {
		t.Fatalf("constraints: %v", err)
	}
	if w := want.GetResourceName().GetDynamicParameterConstraints(); w != nil && !proto.Equal(constraints, w) {
		t.Fatalf("constraints %v, want %v", constraints, w)
	}
	// Extra is the rest, word for word.
	rest := &discoveryv3.Resource{}
	if err := proto.Unmarshal(got.extra, rest); err != nil {
		t.Fatalf("extra: %v", err)
	}
	wantRest := proto.Clone(want).(*discoveryv3.Resource)
	wantRest.Name, wantRest.Version, wantRest.Resource, wantRest.Ttl, wantRest.ResourceName = "", "", nil, nil, nil
	if !proto.Equal(rest, wantRest) {
		t.Fatalf("extra %v, want %v", rest, wantRest)
	}
}

// ttlOf returns a valid TTL.
func ttlOf(r *discoveryv3.Resource) time.Duration {
	return max(0, r.GetTtl().AsDuration())
}

func genResource(t *rapid.T) *discoveryv3.Resource {
	text := rapid.StringN(0, 6, 24)
	r := &discoveryv3.Resource{Name: text.Draw(t, "name"), Version: text.Draw(t, "version")}
	if rapid.Bool().Draw(t, "present") {
		r.Resource = genAny(t)
	}
	if rapid.Bool().Draw(t, "ttl") {
		r.Ttl = durationpb.New(time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "duration")))
	}
	r.Aliases = rapid.SliceOfN(text, 0, 2).Draw(t, "aliases")
	if rapid.Bool().Draw(t, "names") {
		r.ResourceName = &discoveryv3.ResourceName{Name: text.Draw(t, "resource_name")}
		if rapid.Bool().Draw(t, "constrained") {
			r.ResourceName.DynamicParameterConstraints = is("key", text.Draw(t, "value"))
		}
	}
	if rapid.Bool().Draw(t, "cache_control") {
		r.CacheControl = &discoveryv3.Resource_CacheControl{DoNotCache: rapid.Bool().Draw(t, "do_not_cache")}
	}
	if rapid.Bool().Draw(t, "unknown") {
		r.ProtoReflect().SetUnknown(appendText(nil, 1000, text.Draw(t, "unknown_text")))
	}
	return r
}

func genAny(t *rapid.T) *anypb.Any {
	return &anypb.Any{
		TypeUrl: rapid.SampledFrom([]string{"", "type.googleapis.com/x.Y", xdstype.Wrapper}).Draw(t, "type"),
		Value:   rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "value"),
	}
}

func genErrors(t *rapid.T) []*discoveryv3.ResourceError {
	var errs []*discoveryv3.ResourceError
	for range rapid.IntRange(0, 2).Draw(t, "errors") {
		errs = append(errs, &discoveryv3.ResourceError{
			ResourceName: &discoveryv3.ResourceName{Name: rapid.String().Draw(t, "name")},
			ErrorDetail:  &status.Status{Code: rapid.Int32().Draw(t, "code"), Message: rapid.String().Draw(t, "message")},
		})
	}
	return errs
}

func TestParserReadsWhatTheMessagesRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 6, 24)
		delta := &discoveryv3.DeltaDiscoveryResponse{
			SystemVersionInfo: text.Draw(t, "version"), TypeUrl: text.Draw(t, "type"), Nonce: text.Draw(t, "nonce"),
			RemovedResources: rapid.SliceOfN(text, 0, 3).Draw(t, "removed"),
			ControlPlane:     &corev3.ControlPlane{Identifier: text.Draw(t, "identifier")},
			ResourceErrors:   genErrors(t),
		}
		sotw := &discoveryv3.DiscoveryResponse{
			VersionInfo: text.Draw(t, "version"), TypeUrl: text.Draw(t, "type"), Nonce: text.Draw(t, "nonce"),
			Canary: rapid.Bool().Draw(t, "canary"), ResourceErrors: genErrors(t),
		}
		for range rapid.IntRange(0, 3).Draw(t, "resources") {
			r := genResource(t)
			delta.Resources = append(delta.Resources, r)
			if rapid.Bool().Draw(t, "wrapped") {
				a, err := anypb.New(r)
				if err != nil {
					t.Fatalf("%v", err)
				}
				sotw.Resources = append(sotw.Resources, a)
			} else {
				sotw.Resources = append(sotw.Resources, genAny(t))
			}
		}
		for _, name := range rapid.SliceOfN(text, 0, 2).Draw(t, "removed_names") {
			delta.RemovedResourceNames = append(delta.RemovedResourceNames, &discoveryv3.ResourceName{Name: name})
		}
		b, err := proto.Marshal(delta)
		if err != nil {
			t.Fatalf("%v", err)
		}
		checkDelta(t, b)
		if b, err = proto.Marshal(sotw); err != nil {
			t.Fatalf("%v", err)
		}
		checkSotW(t, b)
	})
}

func seeds(f *testing.F) {
	f.Helper()
	body, _ := proto.Marshal(&anypb.Any{TypeUrl: "t/x", Value: appendText(nil, 1, "a")})
	var res []byte
	res = appendText(res, wire.ResourceVersion, "v")
	res = appendText(res, wire.ResourceAny, string(body))
	res = appendText(res, wire.ResourceName, "a")
	res = appendText(res, wire.ResourceAliases, "b")
	res = appendText(res, wire.ResourceTTL, "\x08\x05")
	res = appendText(res, wire.ResourceNameMessage, string(appendText(nil, wire.NameName, "c")))
	// A message field that occurs twice is merged.
	res = appendText(res, wire.ResourceAny, string(appendText(nil, wire.AnyValue, "\x0a\x01z")))
	wrap := appendText(appendText(nil, wire.AnyTypeURL, xdstype.Wrapper), wire.AnyValue, string(res))
	// Wire types other than a field's, and groups.
	odd := protowire.AppendVarint(protowire.AppendTag(nil, wire.ResponseResources, protowire.VarintType), 7)
	odd = protowire.AppendTag(odd, 99, protowire.StartGroupType)
	odd = appendText(odd, 1, "x")
	odd = protowire.AppendTag(odd, 99, protowire.EndGroupType)
	odd = protowire.AppendFixed64(protowire.AppendTag(odd, 100, protowire.Fixed64Type), 1)

	resErr := appendText(nil, wire.ErrorName, string(appendText(nil, wire.NameName, "e")))
	resErr = appendText(resErr, wire.ErrorDetail, "\x08\x05")
	resErr = appendText(resErr, wire.ErrorDetail, string(appendText(nil, wire.StatusMessage, "m")))

	for _, elements := range [][]byte{res, wrap, body, {}, {0xff}} {
		b := appendText(nil, wire.ResponseVersion, "1")
		b = appendText(b, wire.ResponseResources, string(elements))
		b = appendText(b, wire.ResponseTypeURL, "t/x")
		b = appendText(b, wire.ResponseNonce, "n")
		b = append(b, odd...)
		f.Add(b)
		f.Add(appendText(appendText(b, wire.DeltaRemoved, "r"), wire.DeltaErrors, string(resErr)))
		f.Add(appendText(appendText(b, wire.DeltaRemovedNames, string(appendText(nil, wire.NameName, "r"))), wire.SotWErrors, string(resErr)))
		f.Add(b[:len(b)-1])
	}
	f.Add([]byte{})
}

func FuzzParseDelta(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		checkDelta(t, b)
		if !bytes.Equal(b, before) {
			t.Fatal("the parser has written to the response")
		}
	})
}

func FuzzParseSotW(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		checkSotW(t, b)
		if !bytes.Equal(b, before) {
			t.Fatal("the parser has written to the response")
		}
	})
}

// FuzzAccept: a session accepts any response, and every bad resource
// is in the NACK or counted in its "and N more".
func FuzzAccept(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, form := range []Form{Delta, SotW} {
			r, err := form.Parse(b)
			if err != nil {
				continue
			}
			for _, asked := range [][]string{{cache.Wildcard}, {"a", "b", "r"}} {
				of := newTopics(cache.Scope{}, r.TypeURL, asked[0] == cache.Wildcard)
				u := of.NewUpdate()
				for _, name := range asked {
					of.Start(name, nil, &u)
				}
				s := form.Begin(of)
				s.Requests(t0, 1<<20)
				again := *r
				again.Resources = slices.Clone(r.Resources) // of which a session may take away names
				_, nack := s.Response(t0, &again)
				for i := range r.Resources {
					if r.Resources[i].Err != nil && !strings.Contains(nack, fmt.Sprintf("resources[%d]", i)) &&
						!strings.Contains(nack, "more") && again.Resources[i].Err != nil {
						t.Fatalf("resources[%d] (%v) is not in the NACK: %s", i, r.Resources[i].Err, nack)
					}
				}
				if len(nack) > 4*maxMessage {
					t.Fatalf("a NACK of %d bytes", len(nack))
				}
				s.Requests(t0, 1<<20)
			}
		}
	})
}

func TestNackIsBounded(t *testing.T) {
	r := &Response{TypeURL: "t/x"}
	for range 10_000 {
		r.Resources = append(r.Resources, Resource{})
	}
	v := accept(r, false, speaker{}, taster.Warn)
	if len(v.nack) > 2*maxMessage || !strings.HasSuffix(v.nack, "more") {
		t.Fatalf("%d bytes, ending in %q", len(v.nack), v.nack[len(v.nack)-20:])
	}
	r = &Response{TypeURL: "t/x", Resources: []Resource{{Name: strings.Repeat("x", 1<<20)}, {}}}
	r.Resources[0].Present = true
	if v := accept(r, false, speaker{}, taster.Warn); len(v.nack) > 3*maxMessage {
		t.Fatalf("%d bytes", len(v.nack))
	}
}

func TestResourcesDoNotKeepTheResponse(t *testing.T) {
	b := appendText(nil, wire.ResponseTypeURL, "t/x")
	body := appendText(appendText(nil, wire.AnyTypeURL, "t/x"), wire.AnyValue, string(appendText(nil, 1, "name")))
	res := appendText(appendText(nil, wire.ResourceName, "name"), wire.ResourceAny, string(body))
	b = appendText(b, wire.ResponseResources, string(appendText(res, wire.ResourceAliases, "alias")))
	r, err := Delta.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	subs := NewNames(Config{Scope: cache.Scope{}, TypeURL: "t/x"})
	u := subs.NewUpdate()
	subs.start("name", nil, &u)
	s := newDelta(&Topics{Names: subs})
	s.Requests(t0, 1<<20)
	update, nack := s.Response(t0, r)
	if nack != "" {
		t.Fatal(nack)
	}
	clear(b) // as when the buffer is used again
	got := update.Changes[0].Resource
	if got.Name() != "name" || !bytes.Equal(got.Value(), appendText(nil, 1, "name")) {
		t.Fatalf("%q %q", got.Name(), got.Value())
	}
}

// However many resources a response has, their slice is allocated once or twice, and each has
// one string of its own: its name. The type is that of the others.
func TestParsingAllocatesANameForEachResource(t *testing.T) {
	for _, n := range []int{1, 2, 100, 1000} {
		msg := encodedClusters(n)
		const once = 8 // the response, its slices, types and nonce; more with the race detector
		got := testing.AllocsPerRun(10, func() {
			if r, err := Delta.Parse(msg); err != nil || len(r.Resources) != n {
				t.Fatal(err)
			}
		})
		if most := float64(n + once); got > most {
			t.Errorf("%d resources are parsed with %.0f allocations, want at most %.0f", n, got, most)
		}
	}
}

// A cleared response keeps the memory of its lists for the next one, but not that of a very large list, whichever
// list that is, even if the response was only parsed up to its first resources.
func TestAClearedResponseKeepsNoLargeRoom(t *testing.T) {
	many := func(field protowire.Number, n int) (msg []byte) {
		for i := range n {
			msg = appendText(msg, field, fmt.Sprint(i))
		}
		return appendText(msg, wire.ResponseTypeURL, "t/x")
	}
	resource := appendText(nil, wire.ResponseResources, "")
	bad := slices.Concat(resource, resource, appendText(nil, wire.ResponseVersion, "\xff"), bytes.Repeat(resource, 2*mostRoom))
	for _, of := range []struct {
		what string
		msg  []byte
		kept bool
	}{
		{"few resources", encodedClusters(100), true},
		{"many resources", encodedClusters(2 * mostRoom), false},
		{"many removals", many(wire.DeltaRemoved, 2*mostRoom), false},
		{"many resources after what cannot be parsed", bad, false},
	} {
		t.Run(of.what, func(t *testing.T) {
			var r Response
			if err := Delta.ParseInto(&r, of.msg); err == nil {
				accept(&r, true, speaker{}, taster.Off)
			}
			r.Clear()
			if room := max(cap(r.Resources), cap(r.updates)); room > mostRoom || (room > 0) != of.kept {
				t.Errorf("it has room for %d", room)
			}
		})
	}
}

// The answer to a resource with an invalid name does not depend on whether it was held before.
func TestNamelessIsTheSameWhetherHeldOrNot(t *testing.T) {
	const typeURL = "type.googleapis.com/acme.Unknown"
	body := appendText(appendText(nil, wire.AnyTypeURL, typeURL), wire.AnyValue, string(appendText(nil, 1, "xdstp://a\x01/acme.Unknown/*")))
	msg := appendText(appendText(nil, wire.ResponseResources, string(body)), wire.ResponseTypeURL, typeURL)
	for _, looked := range []bool{false, true} {
		topics := &Topics{Sets: NewSets(Config{TypeURL: typeURL})}
		u := topics.NewUpdate()
		topics.Start(cache.Wildcard, nil, &u)
		s := SotW.Begin(topics)
		s.Requests(t0, 1<<20)
		r, err := SotW.Parse(msg)
		if err != nil {
			t.Fatal(err)
		}
		if looked {
			r.MarkHeld(topics)
		}
		if _, nack := s.Response(t0, r); nack != "" {
			t.Errorf("with MarkHeld %t it is rejected: %s", looked, nack)
		}
	}
}
