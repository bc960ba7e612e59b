package downstream

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/xds-relay/xds-relay/internal/wire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// A request is decoded to the same message as by the protobuf library, and refused when the library refuses it,
// whatever its bytes.
func TestDecode(t *testing.T) {
	var known knownNames
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.StringN(0, 8, 30), rapid.Just(strings.Repeat("n", maxKnownNameSize+1)))
		names := rapid.SliceOfN(name, 0, 5)
		node := &corev3.Node{Id: name.Draw(t, "id"), Cluster: "c"}
		versions := rapid.MapOfN(rapid.StringN(0, 4, 8), rapid.StringN(0, 4, 8), 0, 3).Draw(t, "versions")
		var req, got, want proto.Message
		var fields *wire.RequestFields
		if rapid.Bool().Draw(t, "delta") {
			fields, got, want = &wire.DeltaRequest, new(discoveryv3.DeltaDiscoveryRequest), new(discoveryv3.DeltaDiscoveryRequest)
			req = &discoveryv3.DeltaDiscoveryRequest{
				Node: node, TypeUrl: "t", ResponseNonce: name.Draw(t, "nonce"), InitialResourceVersions: versions,
				ResourceNamesSubscribe: names.Draw(t, "subscribe"), ResourceNamesUnsubscribe: names.Draw(t, "unsubscribe"),
				ResourceLocatorsSubscribe: []*discoveryv3.ResourceLocator{{Name: "l", DynamicParameters: versions}},
			}
		} else {
			fields, got, want = &wire.SotWRequest, new(discoveryv3.DiscoveryRequest), new(discoveryv3.DiscoveryRequest)
			req = &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: "t", VersionInfo: "v", ResourceNames: names.Draw(t, "names")}
		}
		data, err := proto.MarshalOptions{AllowPartial: true}.Marshal(req)
		if err != nil {
			t.Skip(err)
		}
		switch rapid.IntRange(0, 3).Draw(t, "harm") {
		case 0:
			at := rapid.IntRange(0, len(data)).Draw(t, "at")
			data = data[:at]
		case 1:
			if len(data) > 0 {
				data[rapid.IntRange(0, len(data)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
			}
		}
		before := string(data)
		wantErr := proto.Unmarshal(data, want)
		used, gotErr := decodeRequest(fields, data, got, &known)
		for i := range data { // nothing may be kept of them
			data[i] = 'x'
		}
		if (wantErr == nil) != (gotErr == nil) {
			t.Fatalf("%q: error %v, want %v", before, gotErr, wantErr)
		}
		if wantErr != nil {
			return
		}
		if !proto.Equal(want, got) {
			t.Fatalf("%q: %v, want %v", before, got, want)
		}
		recycleNames(used)
	})
}

// Names that many clients ask for are one string, and what is remembered of them is
// bounded.
func TestKnownNames(t *testing.T) {
	var known knownNames
	k := known.texts()
	for i := range 3 * maxKnownNames {
		name := fmt.Sprint("n", i)
		if got := k.text([]byte(name)); got != name {
			t.Fatalf("%q became %q", name, got)
		}
		if len(k.names) > maxKnownNames {
			t.Fatalf("%d names are remembered", len(k.names))
		}
	}
	long := strings.Repeat("n", maxKnownNameSize+1)
	if k.text([]byte(long)) != long || k.names[long] != "" {
		t.Error("a long name is remembered")
	}
	name := []byte("one")
	k.text(name)
	if n := testing.AllocsPerRun(10, func() { k.text(name) }); n > 0 {
		t.Errorf("%v allocations for a name that is known", n)
	}
}

// Names that nobody requests any more are forgotten; names in a request that is being read are not.
func TestKnownNamesGoWithTheGarbage(t *testing.T) {
	var known knownNames
	reading := known.texts()
	name := reading.text([]byte("one"))
	runtime.GC()
	if got := known.texts(); got != reading {
		t.Error("while a request is read, another one has other names")
	}
	if got := reading.text([]byte("one")); unsafe.StringData(got) != unsafe.StringData(name) {
		t.Error("a name is allocated again while a request is read")
	}
	runtime.KeepAlive(reading)
	runtime.GC()
	if texts := known.texts(); len(texts.names) > 0 {
		t.Errorf("%d names are remembered after a collection of garbage", len(texts.names))
	}
}
