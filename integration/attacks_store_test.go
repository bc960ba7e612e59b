package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// TestADamagedStoreDelaysNobody damages the file of a running relay's store. The canary sees all updates in time, other
// clients get what they request for the first time, the operator is served, and the relay writes another file that it
// can use after a restart.
func TestADamagedStoreDelaysNobody(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(path string) error
	}{
		{"truncated", func(path string) error { return os.Truncate(path, 0) }},
		{"overwritten", func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			if _, err = f.Write(make([]byte, 1<<22)); err != nil {
				return err
			}
			return f.Close()
		}},
		{"deleted", os.Remove},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cp := startControlPlane(t, delta)
			var clusters []proto.Message
			for i := range 50 {
				clusters = append(clusters, plainCluster(fmt.Sprint("cluster-", i), "1"))
			}
			cp.set(clusters...)
			path := filepath.Join(t.TempDir(), "accepted.db")
			config := relayTo(cp.address, "delta") + fmt.Sprintf("store: {path: %s, wait: 1s}\n", path)
			r := startRelay(t, config)
			watch := startCanary(t, cp, r, startRelay(t, relayTo(cp.address, "delta")))
			all := newClient(t, r, delta, node("all", ""))
			all.subscribe(clusterType, "*")
			all.awaitHas(t, "the clusters", clusters...)
			before, _ := watch.updates(t, 5).percentiles()
			r.awaitStored(t, 51)
			if err := c.damage(path); err != nil {
				t.Fatal(err)
			}
			var seen delays
			for i := range 5 {
				one := newClient(t, r, delta, node(fmt.Sprint("one-", i), ""))
				one.subscribe(clusterType, fmt.Sprint("cluster-", i))
				seen = append(seen, watch.updates(t, 4)...)
				one.awaitHas(t, "what it requests", clusters[i])
				r.metric(t, "xds_relay_store_pending")
				r.mustShow(t, "/api/authorities", "cp.example.com")
			}
			if attacked, alone := seen.percentiles(); attacked > 2*max(alone, before)+mostSlower && !raceDetector() {
				t.Errorf("the canary's updates took %v, and %v without the damage", attacked, alone)
			}
			r.awaitLog(t, `(the relay writes another file)`)
			r.awaitMetric(t, "xds_relay_store_pending", func(n float64) bool { return n == 0 })
			if set, err := filepath.Glob(path + ".aside-*"); err != nil || (len(set) == 1) == (c.name == "deleted") {
				t.Errorf("%q was set aside: %v", set, err)
			}
			cp.set(plainCluster("new", "1"))
			all.awaitHas(t, "a new cluster", plainCluster("new", "1"))
			r.awaitMetric(t, "xds_relay_store_pending", func(n float64) bool { return n == 0 })
			r.kill(t)
			cp.stop()
			r = startRelay(t, config)
			again := newClient(t, r, delta, node("all", ""))
			again.subscribe(clusterType, "*")
			again.awaitHas(t, "what is stored", append(clusters, plainCluster("new", "1"))...)
			if strings.Contains(r.stderr.String(), "set aside") {
				t.Error("the new file cannot be used")
			}
		})
	}
}
