package downstream

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// endpointsOf returns an update by which the endpoints of these names have a version and, if
// it is not 0, a TTL.
func endpointsOf(version string, ttl time.Duration, names ...string) cache.Update {
	u := cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType}
	for _, name := range names {
		r := newTestResource(endpointType, name, version, version+" of "+name)
		if ttl > 0 {
			r = r.WithTTL(ttl)
		}
		u.Changes = append(u.Changes, cache.Change{Name: name, Resource: r})
	}
	return u
}

// Clients that request the same names are sent the same buffer, from the second client on. This also holds after a
// change. They are never sent old state, or what other clients requested.
func TestClientsWithTheSameNamesShareAResponse(t *testing.T) {
	names := benchNames(20)
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			c := newTestCache(silentSource{}, 1<<20)
			defer c.Close()
			server, _ := newTestServer(c, DefaultMaxResponseBytes)
			var held []mem.BufferSlice // who has it keeps it shared
			come := func(names []string, version string) mem.BufferSlice {
				client := newTestClient(server, form, &corev3.Node{Id: "test"})
				t.Cleanup(client.close)
				subscribe(t, client, endpointType, names...)
				r := client.st.next()
				if r == nil {
					t.Fatal("no response")
				}
				msg := r.Encode()
				held = append(held, msg)
				got := decode(t, form, r)
				if len(got.resources) != len(names) {
					t.Fatalf("%d resources, want %d", len(got.resources), len(names))
				}
				for i, res := range got.resources {
					if res.name != names[i] {
						t.Errorf("resource %d is %s, want %s", i, res.name, names[i])
					}
					if want := version + " of " + res.name; res.content != want {
						t.Errorf("%s is %q, want %q", res.name, res.content, want)
					}
				}
				return msg
			}
			first := newTestClient(server, form, &corev3.Node{Id: "test"})
			defer first.close()
			subscribe(t, first, endpointType, names...)
			put := func(version string, names ...string) { c.Apply(endpointsOf(version, 0, names...)) }
			same := func(a, b mem.BufferSlice) bool {
				return len(a) == len(b) && &a[0].ReadOnlyData()[0] == &b[0].ReadOnlyData()[0]
			}
			for round := range 3 {
				version := fmt.Sprint("v", round)
				put(version, names...)
				come(names, version)
				second := come(names, version)
				if third := come(names, version); len(third) != 2 || !same(second, third) {
					t.Errorf("round %d: %d buffers after one of %d, and not the same", round, len(third), len(second))
				}
				if others := come(names[:10], version); same(others, second) {
					t.Error("who asks for less is sent all")
				}
			}
			// Of one that changes alone, the whole is another.
			put("v2 and more", names[3])
			put("v2", names[3])
			if back := come(names, "v2"); len(back) != 2 && len(back) != len(names)+1 {
				t.Errorf("%d buffers", len(back))
			}
		})
	}
}

// What is remembered is bounded, and large resources are not copied.
func TestJoinsAreBounded(t *testing.T) {
	var j batches
	pair := func(i, size int) []*cache.Resource {
		one := newTestResource(endpointType, fmt.Sprint("a", i), "", strings.Repeat("x", size))
		return []*cache.Resource{one, newTestResource(endpointType, fmt.Sprint("b", i), "", "")}
	}
	sizeOf := func(all []*cache.Resource) (n int) {
		for _, r := range all {
			n += r.EncodedSize(true)
		}
		return n
	}
	for i := range 3 * mostRemembered {
		all := pair(i, 10)
		if j.Join(session.Parts{Resources: all}, true, sizeOf(all)) != nil {
			t.Fatal("joined for the first who is sent it")
		}
		if b := j.Join(session.Parts{Resources: all}, true, sizeOf(all)); b == nil || b.Len() != sizeOf(all) {
			t.Fatal("not joined for the second")
		}
		if len(j.sent) > mostRemembered {
			t.Fatalf("%d are remembered", len(j.sent))
		}
	}
	large := pair(0, 2*mostEach)
	for range 3 {
		if j.Join(session.Parts{Resources: large}, true, sizeOf(large)) != nil {
			t.Fatal("a large one was copied")
		}
	}
	// The same number of bytes and the same hash do not make them the same.
	all := pair(0, 10)
	j.Join(session.Parts{Resources: all}, true, sizeOf(all))
	mine := j.Join(session.Parts{Resources: all}, true, sizeOf(all))
	twins := pair(0, 10)
	if again := j.Join(session.Parts{Resources: twins}, true, sizeOf(twins)); again == nil || &again.ReadOnlyData()[0] == &mine.ReadOnlyData()[0] {
		t.Error("other resources were taken for these")
	}
	sotw := all[0].EncodedSize(false) + all[1].EncodedSize(false)
	j.Join(session.Parts{Resources: all}, false, sotw)
	if b := j.Join(session.Parts{Resources: all}, false, sotw); b == nil || string(b.ReadOnlyData()) != string(all[1].AppendBytes(all[0].AppendBytes(nil, false), false)) {
		t.Error("what is for delta was taken for SotW")
	}
}

// Resources with a TTL have the same size in both forms, as a response counts them. Still, clients of one form do not
// get the batch of the other.
func TestWhatIsJoinedIsOfOneForm(t *testing.T) {
	var j batches
	var resources []*cache.Resource
	for _, name := range []string{"a", "b"} {
		resources = append(resources, newTestResource(endpointType, name, "1", "x").WithTTL(time.Minute))
	}
	join := func(delta bool) mem.Buffer {
		var parts session.Parts
		size := 0
		for _, r := range resources {
			size += parts.Add(r, cache.WithTTL, delta)
		}
		j.Join(parts, delta, size)
		return j.Join(parts, delta, size)
	}
	if a, b := join(true), join(false); a == nil || b == nil || bytes.Equal(a.ReadOnlyData(), b.ReadOnlyData()) {
		t.Errorf("clients of both forms are sent the same: %q and %q", a.ReadOnlyData(), b.ReadOnlyData())
	}
}
