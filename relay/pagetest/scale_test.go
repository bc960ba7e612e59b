package pagetest

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

var scale = flag.Int("scale", 0, "measure the page with so many clients (make page-scale)")

// cpu returns the CPU time of this process.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// How long pages take with many clients, and what open pages cost. The test prints figures, and checks only that the
// pages exist.
func TestScaleOfThePage(t *testing.T) {
	if *scale == 0 {
		t.Skip("it takes a minute: make page-scale runs it")
	}
	w := brokenworld.Start(t)
	b := &browser{t, w.Operator}
	clients := make([]*brokenworld.Client, *scale)
	for i := range clients {
		if i%100 == 0 {
			w.Dial(t)
		}
		clients[i] = w.Connect(t, &corev3.Node{Id: fmt.Sprintf("client-%05d", i), Cluster: "web"}, nil)
		clients[i].Subscribe(t, xdstype.ListenerV3, "*")
		clients[i].Subscribe(t, xdstype.ClusterV3, "*")
		if i%100 == 99 || i == *scale-1 { // the page is measured, not a herd
			clients[i].Await(t, "cart")
		}
	}
	for _, c := range clients {
		c.Await(t, "cart")
	}
	for _, path := range []string{"/ui/clients", "/ui/clients?search=client-0999", "/ui/clients?search=nothing", fmt.Sprintf("/ui/clients?after=%d", *scale-60), "/ui/client?client=client-00042", "/ui", "/ui/resource?authority=" + brokenworld.Shop + "&type=cluster&name=cart", "/ui/propagation"} {
		var took []time.Duration
		var bytes uint64
		for range 7 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			began := time.Now()
			b.page(path)
			took = append(took, time.Since(began))
			runtime.ReadMemStats(&after)
			bytes = after.TotalAlloc - before.TotalAlloc
		}
		slices.Sort(took)
		t.Logf("%s: %v (median of 7), %d KB allocated", path, took[3].Round(10*time.Microsecond), bytes>>10)
	}
	// Changes, alternately with and without open pages.
	const rounds, changes, pages = 3, 8, 8
	port := 10000
	change := func() time.Duration {
		before := cpu(t)
		for range changes {
			port++
			name := fmt.Sprintf("web-%d", port)
			w.WriteFile(t, brokenworld.Shop, "more.yaml", fmt.Sprintf(more, name, port))
			for _, c := range clients {
				c.Await(t, name)
			}
		}
		return (cpu(t) - before) / changes
	}
	change()
	for range rounds {
		closed := change()
		var open []io.Closer
		for i := range pages {
			answer := b.listen([]string{"/ui", "/ui/clients", "/ui/client?client=client-00042", "/ui/propagation"}[i%4])
			if answer.StatusCode != http.StatusOK {
				t.Fatalf("an open page has status %d", answer.StatusCode)
			}
			go func() { _, _ = io.Copy(io.Discard, answer.Body) }()
			open = append(open, answer.Body)
		}
		with := change()
		before, began := cpu(t), time.Now()
		timer := time.NewTimer(6 * time.Second)
		<-timer.C
		idle := float64(cpu(t)-before) / float64(time.Since(began))
		for _, o := range open {
			_ = o.Close()
		}
		t.Logf("CPU of a change to all %d clients: %v, with %d open pages %v (%.2f); %d open pages and no changes: %.1f %% of a core", *scale, closed.Round(time.Millisecond), pages, with.Round(time.Millisecond), float64(with)/float64(closed), pages, 100*idle)
	}
	if _, text := b.page("/ui/clients?search=client-0"); !strings.Contains(text, "client-00000") {
		t.Error("the list lacks a client")
	}
}

const more = `
resources:
  - "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: %s
    address: {socket_address: {address: 0.0.0.0, port_value: %d}}
`
