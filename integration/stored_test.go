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

// storing returns the configuration with a store in a folder of the test.
func storing(t testing.TB, config, more string) string {
	t.Helper()
	return config + fmt.Sprintf("store: {path: %s, wait: 1s%s}\n", filepath.Join(t.TempDir(), "accepted.db"), more)
}

// metric returns the sum of a metric's values over all labels.
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

// awaitMetric waits until a metric satisfies is.
func (r *relay) awaitMetric(t testing.TB, name string, is func(float64) bool) {
	t.Helper()
	eventually(t, name+" has the wanted value", func() error {
		if got := r.metric(t, name); !is(got) {
			return fmt.Errorf("%s is %v", name, got)
		}
		return nil
	})
}

// awaitStored waits until the relay has stored everything that it has accepted, and at least so many records.
func (r *relay) awaitStored(t testing.TB, records float64) {
	t.Helper()
	r.awaitMetric(t, "xds_relay_store_records_written_total", func(n float64) bool { return n >= records })
	r.awaitMetric(t, "xds_relay_store_pending", func(n float64) bool { return n == 0 })
}

// TestAKilledRelayServesWhatItHadAccepted checks that a relay that was killed serves the stored resources
// after its restart, while the control plane is away, and reports no removals. When the control plane is
// back, clients receive its changes and only those removals that it has made.
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
			r.awaitStored(t, 6) // five resources, and a record for the set
			cp.stop()
			r.kill(t)

			r = startRelay(t, config)
			clients := []*client{open(delta, "after-delta"), open(sotw, "after-sotw")}
			for _, c := range clients {
				c.awaitHas(t, "the stored resources", before...)
			}
			if n := r.metric(t, "xds_relay_store_stale_topics"); n != 3 {
				t.Errorf("the metrics count %v stale topics, want 3", n)
			}
			// A client that resumes keeps a resource that the store does not have.
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
				t.Errorf("a client that resumes received %v, want changes and goes, and no removals", resp)
			}
			// For a resource that was never stored, the relay sends an error, but not that it does not exist.
			never := newClient(t, r, delta, node("never", ""))
			never.subscribe(endpointType, "at-stays", "never")
			never.await(t, "the client has an error for the name that was never stored", func(v *view) bool {
				return v.errors[topic{endpointType, "never"}] != "" && v.held[topic{endpointType, "at-stays"}].value != ""
			})

			cp.set(plainCluster("changes", "2"), plainCluster("comes", "1"), plainEndpoints("at-changes", 2))
			cp.remove(clusterType, "goes")
			cp.start()
			after := []proto.Message{plainCluster("stays", "1"), plainCluster("changes", "2"), plainCluster("comes", "1"), plainEndpoints("at-changes", 2)}
			for _, c := range clients {
				c.awaitHas(t, "the control plane's resources", after...)
				c.await(t, "the client receives the removal", func(v *view) bool { return v.gone[topic{clusterType, "goes"}] })
				c.mustLive(t)
				c.read(func(v *view) {
					if len(v.gone) != 1 {
						t.Errorf("the client received the removals %v, want one", v.gone)
					}
				})
			}
			r.awaitMetric(t, "xds_relay_store_stale_topics", func(n float64) bool { return n == 0 })
		})
	}
}

// TestARestartedRelayIsSentWhatHasChanged checks that a restarted relay resumes at the control plane with the
// stored versions, so that the control plane sends only changes, and that clients receive no stored resource
// that has changed.
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
		// Otherwise the control plane would also send the change to the stream of the killed relay.
		cp.await(t, "the killed relay's stream has ended", func(s *seen) bool { return len(s.streams) == 0 })
		cp.set(changed...)
		sentBefore := look(cp.recorder, func(s *seen) int { return len(s.sent) })
		r = startRelay(t, config)
		c := open()
		c.awaitHas(t, "the changed resources", changed...)
		c.await(t, "the client has all resources", func(v *view) bool { return len(v.held) == len(all) })
		c.read(func(v *view) {
			for _, m := range changed {
				if got := v.received(typeOf(m), 0); len(slices.Compact(got)) != len(got) {
					t.Errorf("the client received a resource twice: %v", got)
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
				want = []string{"at-0"} // the relay requests one name again, to get an answer
			}
			if !slices.Equal(sent, want) {
				t.Errorf("the control plane sent %v, want %v", sent, want)
			}
		})
		r.awaitStored(t, float64(len(changed)))
		r.kill(t)
	}
}

// TestAMuteControlPlaneIsWaitedForAWhile checks that clients receive the stored resources if a control plane
// accepts streams and sends nothing.
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
		c.awaitHas(t, "the stored resources", resources...)
	}
}

// TestAStoreThatCannotBeUsedIsSetAside checks that the relay renames an unreadable store, starts with an
// empty one, and logs the reason.
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
	c.awaitHas(t, "the endpoints", plainEndpoints("e", 1))
	r.awaitStored(t, 1)
	if n := r.metric(t, "xds_relay_store_files_set_aside_total"); n != 1 {
		t.Errorf("the metrics count %v files that were set aside, want 1", n)
	}
}
