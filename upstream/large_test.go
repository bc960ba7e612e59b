package upstream

import (
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
)

// A large response is announced before its resources are stored, so that there is memory for them. A small one
// is not announced.
func TestLargeResponsesAreAnnounced(t *testing.T) {
	var announced []int
	stored := ""
	var state func() string
	o := Options{Protocol: Delta, LargeResponse: func(bytes int) {
		announced = append(announced, bytes)
		stored = state()
	}}
	run(t, o, func(b *bench) {
		e := b.watch("cds", "a")["a"]
		state = func() string { return e.State().Status.String() }
		st := b.next()
		st.delta(t)
		large := deltaResponse(t, "cds", "1", "a")
		large.ControlPlane = &corev3.ControlPlane{Identifier: strings.Repeat("x", largeResponse)}
		b.respond(st, large)
		if want := []int{proto.Size(large)}; !slices.Equal(announced, want) {
			t.Errorf("announced responses of %v bytes, want %v", announced, want)
		}
		if stored != "requested" {
			t.Errorf("when the response was announced its resource was %s", stored)
		}
		b.want(e, "present v1")
		small := deltaResponse(t, "cds", "2", "a")
		small.ControlPlane = &corev3.ControlPlane{Identifier: strings.Repeat("x", largeResponse/2)}
		b.respond(st, small)
		b.want(e, "present v2")
		if len(announced) != 1 {
			t.Errorf("announced responses of %v bytes, want one", announced)
		}
	})
}
