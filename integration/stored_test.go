package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// storing returns a configuration whose relay stores what it accepts in a folder of the test.
func storing(t testing.TB, config, more string) string {
	t.Helper()
	return config + fmt.Sprintf("store: {path: %s, wait: 1s%s}\n", filepath.Join(t.TempDir(), "accepted.db"), more)
}

// metric returns the sum of a metric's values.
func (r *relay) metric(t testing.TB, name string) (sum float64) {
	t.Helper()
	resp, err := http.Get("http://" + r.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range regexp.MustCompile(`(?m)^`+name+`(?:\{.*\})? (\S+)$`).FindAllSubmatch(text, -1) {
		value, err := strconv.ParseFloat(string(line[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += value
	}
	return sum
}

// awaitMetric waits until a metric has a value.
func (r *relay) awaitMetric(t testing.TB, name string, is func(float64) bool) {
	t.Helper()
	eventually(t, name+" is as wanted", func() error {
		if got := r.metric(t, name); !is(got) {
			return fmt.Errorf("%s is %v", name, got)
		}
		return nil
	})
}

// awaitStored waits until a relay has stored everything that it has accepted, at least that many
// records.
func (r *relay) awaitStored(t testing.TB, records float64) {
	t.Helper()
	r.awaitMetric(t, "xds_relay_store_records_written_total", func(n float64) bool { return n >= records })
	r.awaitMetric(t, "xds_relay_store_pending", func(n float64) bool { return n == 0 })
}

// TestAKilledRelayServesWhatItHadAccepted checks that a killed relay, after its restart, serves what it
// had accepted to clients that connect while the control plane is away, and reports no resource as
// removed. When the control plane is back, the relay serves its state, and clients receive only what has
// changed.
func TestAKilledRelayServesWhatItHadAccepted(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			cp := startControlPlane(t, upstream)
			before := []proto.Message{
				plainCluster("stays", "1"), plainCluster("changes", "1"), plainCluster("goes", "1"),
				plainEndpoints("at-stays", 1), plainEndpoints("at-changes", 1),
			}
			cp.set(before...)
			config := storing(t, relayTo(cp.address, string(upstream)), "")
			r := startRelay(t, config)
			open := func(f form, id string) *client {
				c := newClient(t, r, f, node(id, ""))
				c.subscribe(clusterType, wildcard)
				c.subscribe(endpointType, "at-stays", "at-changes")
				return c
			}
			for _, f := range []form{delta, sotw} {
				open(f, "before").awaitHas(t, "all resources", before...)
			}
			r.awaitStored(t, 6) // the set has a record of its own
			cp.stop()
			r.kill(t)

			r = startRelay(t, config)
			clients := []*client{open(delta, "after-delta"), open(sotw, "after-sotw")}
			for _, c := range clients {
				c.awaitHas(t, "what was stored", before...)
			}
			if n := r.metric(t, "xds_relay_store_stale_topics"); n != 3 {
				t.Errorf("%v topics are stale, want 3", n)
			}
			// A client that reconnects with a resource that the store does not have keeps it.
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connect(t, r.address)).DeltaAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
				Node: node("resumes", ""), TypeUrl: clusterType, ResourceNamesSubscribe: []string{wildcard},
				InitialResourceVersions: map[string]string{"newer": "9", "stays": "old"},
			}); err != nil {
				t.Fatal(err)
			}
			resp, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			var sent []string
			for _, r := range resp.GetResources() {
				sent = append(sent, r.GetName())
			}
			slices.Sort(sent)
			if len(resp.GetRemovedResources()) > 0 || !slices.Equal(sent, []string{"changes", "goes"}) {
				t.Errorf("a client that resumes is sent %v", resp)
			}
			// The relay does not report a resource that was never stored as absent.
			never := newClient(t, r, delta, node("never", ""))
			never.subscribe(endpointType, "at-stays", "never")
			never.await(t, "it learns that a name cannot be had", func(v *view) bool {
				return v.errors[topic{endpointType, "never"}] != "" && v.held[topic{endpointType, "at-stays"}].value != ""
			})

			cp.set(plainCluster("changes", "2"), plainCluster("comes", "1"), plainEndpoints("at-changes", 2))
			cp.remove(clusterType, "goes")
			cp.start()
			after := []proto.Message{plainCluster("stays", "1"), plainCluster("changes", "2"), plainCluster("comes", "1"), plainEndpoints("at-changes", 2)}
			for _, c := range clients {
				c.awaitHas(t, "what is now", after...)
				c.await(t, "it receives the removal", func(v *view) bool { return v.gone[topic{clusterType, "goes"}] })
				c.mustLive(t)
				c.read(func(v *view) {
					if len(v.gone) != 1 {
						t.Errorf("it received removals: %v", v.gone)
					}
				})
			}
			r.awaitMetric(t, "xds_relay_store_stale_topics", func(n float64) bool { return n == 0 })
		})
	}
}

// TestARestartedRelayIsSentWhatHasChanged checks that a relay that starts while the control plane is
// there asks with the versions of what it has stored, so that it is sent only what has changed,
// and that no client is sent what was stored before.
func TestARestartedRelayIsSentWhatHasChanged(t *testing.T) {
	cp := startControlPlane(t, delta)
	var all []proto.Message
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprint("at-", i))
		all = append(all, plainCluster(fmt.Sprint("c-", i), "1"), plainEndpoints(names[i], 1))
	}
	cp.set(all...)
	config := strings.Replace(storing(t, relayTo(cp.address, "delta"), ""), "wait: 1s", "wait: 1h", 1)
	r := startRelay(t, config)
	open := func() *client {
		c := newClient(t, r, delta, node("c", ""))
		c.subscribe(clusterType, wildcard)
		c.subscribe(endpointType, names...)
		return c
	}
	open().awaitHas(t, "all resources", all...)
	r.awaitStored(t, 101)
	r.kill(t)
	for _, changed := range [][]proto.Message{{plainCluster("c-7", "2"), plainEndpoints("at-7", 2)}, nil} {
		// To the stream of the relay that was killed, the control plane would send it, too.
		cp.await(t, "the killed relay's stream to end", func(s *seen) bool { return len(s.streams) == 0 })
		cp.set(changed...)
		sentBefore := look(cp.recorder, func(s *seen) int { return len(s.sent) })
		r = startRelay(t, config)
		c := open()
		c.awaitHas(t, "what has changed", changed...)
		c.await(t, "it has all", func(v *view) bool { return len(v.held) == len(all) })
		c.read(func(v *view) {
			for _, m := range changed {
				if got := v.received(typeOf(m), 0); len(slices.Compact(got)) != len(got) {
					t.Errorf("it was sent something twice: %v", got)
				}
			}
		})
		cp.read(func(s *seen) {
			var sent []string
			for _, is := range s.sent[sentBefore:] {
				sent = append(sent, is.name)
			}
			slices.Sort(sent)
			want := []string{"at-7", "c-7"}
			if changed == nil {
				want = []string{"at-0"} // which is asked for once more, so that there is an answer
			}
			if !slices.Equal(sent, want) {
				t.Errorf("the control plane sent %v, want %v", sent, want)
			}
		})
		r.awaitStored(t, float64(len(changed)))
		r.kill(t)
	}
}

// TestAMuteControlPlaneIsWaitedForAWhile checks that clients receive stored resources if a control plane
// accepts connections and sends nothing.
func TestAMuteControlPlaneIsWaitedForAWhile(t *testing.T) {
	cp := startControlPlane(t, delta)
	resources := []proto.Message{plainCluster("c", "1"), plainEndpoints("e", 1)}
	cp.set(resources...)
	config := storing(t, relayTo(cp.address, "delta"), "")
	r := startRelay(t, config)
	open := func(f form) *client {
		c := newClient(t, r, f, node("c", ""))
		c.subscribe(clusterType, wildcard)
		c.subscribe(endpointType, "e")
		return c
	}
	open(delta).awaitHas(t, "all resources", resources...)
	r.awaitStored(t, 3)
	r.kill(t)
	mute := startHandmade(t)
	r = startRelay(t, strings.Replace(config, cp.address, mute.address, 1))
	clients := []*client{open(delta), open(sotw)}
	mute.stream(t)
	for _, c := range clients {
		c.awaitHas(t, "what was stored", resources...)
	}
}

// TestAStoreThatCannotBeUsedIsSetAside checks that the relay starts empty, and says why.
func TestAStoreThatCannotBeUsedIsSetAside(t *testing.T) {
	cp := startControlPlane(t, delta)
	cp.set(plainEndpoints("e", 1))
	config := storing(t, relayTo(cp.address, "delta"), "")
	path := regexp.MustCompile(`path: (\S+),`).FindStringSubmatch(config)[1]
	if err := os.WriteFile(path, []byte(strings.Repeat("this is no database. ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startRelay(t, config)
	r.awaitLog(t, `level=ERROR msg="the store cannot be used and was set aside.* renamed_to=(\S+)`)
	c := newClient(t, r, delta, node("c", ""))
	c.subscribe(endpointType, "e")
	c.awaitHas(t, "what there is", plainEndpoints("e", 1))
	r.awaitStored(t, 1)
	if n := r.metric(t, "xds_relay_store_files_set_aside_total"); n != 1 {
		t.Errorf("%v files were set aside", n)
	}
}
