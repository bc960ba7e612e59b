package downstream

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// All clients are sent the same bytes, not copies of them: the resource is
// encoded once, whatever the form, and however many there are.
func TestClientsShareOneEncoding(t *testing.T) {
	const clients = 20
	content := strings.Repeat("x", 1000)
	for _, test := range []struct {
		name  string
		form  string
		names []string
	}{
		{"delta name", deltaForm.name, []string{"a"}},
		{"delta wildcard", deltaForm.name, []string{"*"}},
		{"sotw name", sotwForm.name, []string{"a"}},
		{"sotw wildcard", sotwForm.name, []string{"*"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ch := newTestCache(&recordingSource{}, 1000)
			defer ch.Close()
			server, _ := newTestServer(ch, DefaultMaxResponseBytes)
			var all []*testClient
			for range clients {
				c := newTestClient(server, test.form, &corev3.Node{})
				defer c.close()
				subscribe(t, c, clusterType, test.names...)
				all = append(all, c)
			}
			for round := range 3 {
				putEverywhere(ch, clusterType, "a", fmt.Sprint(content, round))
				seen := map[*byte]bool{}
				for _, c := range all {
					r := c.st.next()
					if r == nil {
						t.Fatalf("round %d: no response", round)
					}
					shared, _ := r.Parts()
					if len(shared) != 1 {
						t.Fatalf("round %d: the response is %+v, want one of one piece", round, r)
					}
					b := shared[0].ReadOnlyData()
					if len(b) < len(content) {
						t.Fatalf("round %d: the shared piece has %d bytes, less than the resource", round, len(b))
					}
					seen[unsafe.SliceData(b)] = true
					// What is encoded for one stream does not grow with the resource.
					msg := r.Encode()
					if private := msg[len(msg)-1].Len(); private > 200 {
						t.Errorf("round %d: %d bytes are encoded for one client", round, private)
					}
				}
				if len(seen) != 1 {
					t.Errorf("round %d: %d clients are sent %d encodings, want 1", round, clients, len(seen))
				}
			}
		})
	}
}

// Both forms share one encoding, and another spelling of the name shares the
// resource's value.
func TestFormsAndSpellingsShareTheValue(t *testing.T) {
	const prefix = "xdstp://known/envoy.config.cluster.v3.Cluster/"
	content := strings.Repeat("x", 1000)
	ch := newTestCache(&recordingSource{}, 1000)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	var all []*testClient
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		for _, name := range []string{prefix + "a:b", prefix + "a%3Ab"} {
			c := newTestClient(server, form, &corev3.Node{})
			defer c.close()
			subscribe(t, c, clusterType, name)
			all = append(all, c)
		}
	}
	res := newTestResource(clusterType, prefix+"a:b", "v1", content)
	ch.Apply(cache.Update{Scope: cache.Scope{Authority: knownAuthority}, TypeURL: clusterType,
		Changes: []cache.Change{{Name: prefix + "a:b", Resource: res}}})
	end := func(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) + uintptr(len(b)) }
	want := end(res.Value())
	for i, c := range all {
		r := c.st.next()
		if r == nil {
			t.Fatalf("client %d: no response", i)
		}
		found := false
		for _, piece := range shared(r) {
			found = found || end(piece.ReadOnlyData()) == want
		}
		if !found {
			t.Errorf("client %d (%s) is sent a copy of the value", i, c.st.form)
		}
	}
}

// Putting a response together costs a few small allocations, whatever the size
// of the resource.
func TestResponseAllocatesLittle(t *testing.T) {
	const (
		runs = 100
		most = 8 // the response, its pieces, its names, its nonce, its private part
	)
	for _, size := range []int{10, 100_000} {
		for _, form := range []string{deltaForm.name, sotwForm.name} {
			t.Run(fmt.Sprintf("%s %d bytes", form, size), func(t *testing.T) {
				ch := newTestCache(&recordingSource{}, 1000)
				defer ch.Close()
				server, _ := newTestServer(ch, DefaultMaxResponseBytes)
				c := newTestClient(server, form, &corev3.Node{})
				defer c.close()
				subscribe(t, c, endpointType, "a")
				putEverywhere(ch, endpointType, "a", strings.Repeat("x", size))
				s := c.st.session(endpointType)
				c.st.next()
				got := testing.AllocsPerRun(runs, func() {
					s.Resend("a")
					if len(c.st.next().Encode()) != 2 {
						t.Error("no response")
					}
				})
				if got > most {
					t.Errorf("%v allocations for a response, want at most %d", got, most)
				}
			})
		}
	}
}

// subscribe sends a first request.
func subscribe(t testing.TB, c *testClient, typeURL string, names ...string) {
	t.Helper()
	var err error
	if c.st.form == deltaForm.name {
		err = c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
	} else {
		err = c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// putEverywhere makes a resource's content known under its name and in the
// wildcard.
func putEverywhere(ch *cache.Cache, typeURL, name, content string) {
	change := []cache.Change{{Name: name, Resource: newTestResource(typeURL, name, "", content)}}
	ch.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: typeURL, Changes: change,
		Sets: []cache.SetUpdate{{Name: cache.Wildcard, Changes: change}}})
}

// shared are the parts of a response that other clients may have too.
func shared(r *session.Response) mem.BufferSlice {
	parts, _ := r.Parts()
	return parts
}
