package integration

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestOnlyTheClientOverALimitIsRefused checks that a listener enforces the limits of its configuration, that
// the metrics count refusals, and that other clients are served.
func TestOnlyTheClientOverALimitIsRefused(t *testing.T) {
	t.Parallel()
	cp := startControlPlane(t, delta)
	cp.set(plainEndpoints("good", 1))
	config := strings.Replace(relayTo(cp.address, "delta"), "  - address: 127.0.0.1:0\n", `  - address: 127.0.0.1:0
    limits: {subscriptions: 10, name_bytes: 64, streams: 3}
`, 1)
	r := startRelay(t, config)
	good := newClient(t, r, sotw, node("good", ""))
	good.subscribe(endpointType, "good")
	good.awaitHas(t, "its endpoints", plainEndpoints("good", 1))

	var many []string
	for i := range 100_000 {
		many = append(many, fmt.Sprintf("e%d", i))
	}
	for i, bad := range []struct {
		names []string
		want  string
		limit string
	}{
		{many, "100000 names subscribed to on this stream, but limits.subscriptions is 10", "subscriptions"},
		{[]string{strings.Repeat("x", 65)}, "a name of 65 bytes, but limits.name_bytes is 64", "name_bytes"},
	} {
		c := newClient(t, r, delta, node("bad", ""))
		c.subscribe(endpointType, bad.names...)
		c.awaitEnd(t, bad.want)
		r.awaitLog(t, `level=WARN msg="client went over a limit, and is refused".* client=bad limit=`+bad.limit)
		cp.set(plainEndpoints("good", uint32(2+i)))
		good.awaitHas(t, "the changed endpoints", plainEndpoints("good", uint32(2+i)))
	}

	// Refused streams do not count as open.
	for i := range 2 {
		c := newClient(t, r, delta, node(fmt.Sprint("also good ", i), ""))
		c.subscribe(endpointType, "good")
		c.awaitHas(t, "its endpoints", plainEndpoints("good", 3))
	}
	newClient(t, r, delta, node("one too many", "")).awaitEnd(t, "4 open streams on this listener, but limits.streams is 3")

	metrics := fetch(t, "http://"+r.admin+"/metrics")
	for _, limit := range []string{"subscriptions", "name_bytes", "streams"} {
		if want := fmt.Sprintf("xds_relay_downstream_limits_exceeded_total{limit=%q} 1\n", limit); !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// awaitEnd waits until the relay has refused the stream, and checks the reason.
func (c *client) awaitEnd(t testing.TB, why string) {
	t.Helper()
	c.await(t, "the relay refuses the stream", func(v *view) bool { return v.ended != nil })
	c.read(func(v *view) {
		if status.Code(v.ended) != codes.ResourceExhausted || status.Convert(v.ended).Message() != why {
			t.Errorf("the stream ended with %v, want RESOURCE_EXHAUSTED: %s", v.ended, why)
		}
	})
}
