package relay

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/rollout"
	"github.com/xds-relay/xds-relay/rollout/gate"
)

const rolloutConfig = `
listeners: [{address: "%s"}]
authorities: [{name: a, directory: %q, rollout: {%s}}]
old_style_names: [{authority: a}]
`

// rolloutTest is a relay with a directory that has the cluster c, and two clients with a wildcard.
type rolloutTest struct {
	*reloadTest
	folder string
}

func startRollout(t *testing.T, config string) *rolloutTest {
	t.Helper()
	r := &rolloutTest{&reloadTest{T: t, listen: freeAddress(t)}, t.TempDir()}
	r.write("first")
	r.relay, _ = runRelay(t, r.config(config), slog.New(slog.DiscardHandler))
	for _, id := range []string{"one", "two"} {
		h := hold(t, connectTo(t, r.listen), false, &corev3.Node{Id: id})
		h.awaitHas(t, "at the start", map[string]string{"c": "first"})
		r.everything = append(r.everything, h)
	}
	return r
}

// config returns a configuration with the settings of a rollout, or without one if they are empty.
func (r *rolloutTest) config(settings string) string {
	if settings == "" {
		return fmt.Sprintf(strings.Replace(rolloutConfig, ", rollout: {%s}", "", 1), r.listen, r.folder)
	}
	return fmt.Sprintf(rolloutConfig, r.listen, r.folder, settings)
}

// write changes the cluster c.
func (r *rolloutTest) write(label string) {
	r.Helper()
	text := `{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "c", "altStatName": "` + label + `"}`
	if err := os.WriteFile(filepath.Join(r.folder, "new"), []byte(text), 0o600); err != nil {
		r.Fatal(err)
	}
	if err := os.Rename(filepath.Join(r.folder, "new"), filepath.Join(r.folder, "a.json")); err != nil {
		r.Fatal(err)
	}
}

func (r *rolloutTest) load(settings string) {
	r.Helper()
	if err := r.reload(r.config(settings)); err != nil {
		r.Fatal(err)
	}
}

// statuses returns the rollouts of the authority.
func (r *rolloutTest) statuses() []gate.Status {
	return r.relay.rollouts.Status(gate.Which{Authority: "a", AnyPartition: true})
}

// with counts the clients that have a version of the cluster.
func (r *rolloutTest) with(label string) (n int) {
	for _, h := range r.everything {
		if has, _, _, _ := h.state(); has["c"] == label {
			n++
		}
	}
	return n
}

// awaitFirst waits until one client has a version of the cluster and has acknowledged it, and the other one has not.
func (r *rolloutTest) awaitFirst(label string) {
	r.Helper()
	await(r.T, "a first client has "+label+", and has taken it", func() bool {
		all := r.statuses()
		return r.with(label) == 1 && len(all) == 1 && len(all[0].Cohorts) == 1 && all[0].Cohorts[0].Taken == 1 && all[0].Cohorts[0].Clients == 2
	})
}

func (r *rolloutTest) awaitAll(when, label string) {
	r.Helper()
	for _, h := range r.everything {
		h.awaitHas(r.T, when, map[string]string{"c": label})
	}
	r.mustBeOpen(when)
}

// Two clients, of which the first has a change: a reload freezes the rollout, and another one continues it with a
// shorter soak.
func TestAReloadChangesTheRolloutThatGoesOn(t *testing.T) {
	r := startRollout(t, "soak: 1h")
	r.write("second")
	r.awaitFirst("second")
	r.load("soak: 10ms, frozen: true")
	if s := r.statuses(); len(s) != 1 || !s[0].Frozen || s[0].Phase != rollout.Rolling || s[0].Step != 0 || r.with("second") != 1 {
		t.Fatalf("frozen, the rollouts are %+v, and %d clients have the change", s, r.with("second"))
	}
	r.load("soak: 10ms")
	r.awaitAll("thawed, with a shorter soak", "second")
}

// One of the clients that were connected before gets a change first.
func TestAReloadAddsARollout(t *testing.T) {
	r := startRollout(t, "")
	r.load("soak: 1h")
	await(t, "the clients have joined", func() bool {
		all := r.statuses()
		return len(all) == 1 && len(all[0].Cohorts) == 1 && all[0].Cohorts[0].Clients == 2
	})
	r.write("second")
	r.awaitFirst("second")
	r.load("soak: 10ms")
	r.awaitAll("the rollout goes on", "second")
}

// What is pending goes to all clients, and so does the next change. Another rollout can be added.
func TestAReloadTakesARolloutAway(t *testing.T) {
	for _, settings := range []string{"soak: 1h", "soak: 1h, frozen: true"} {
		t.Run(settings, func(t *testing.T) {
			r := startRollout(t, settings)
			r.write("second")
			if strings.Contains(settings, "frozen") {
				await(t, "the change is pending", func() bool { s := r.statuses(); return len(s) == 1 && s[0].Total == 1 })
			} else {
				r.awaitFirst("second")
			}
			r.load("")
			r.awaitAll("without the rollout", "second")
			await(t, "the clients have left it", func() bool { return len(r.statuses()) == 0 })
			r.write("third")
			r.awaitAll("the next change", "third")
			r.load("soak: 1h")
			r.write("fourth")
			r.awaitFirst("fourth")
		})
	}
}

// What is pending of a type that is not rolled out any more goes to all clients.
func TestAReloadChangesTheTypesOfARollout(t *testing.T) {
	r := startRollout(t, "soak: 1h, types: [cluster, listener]")
	r.write("second")
	r.awaitFirst("second")
	r.load("soak: 1h, types: [cluster]")
	r.awaitFirst("second")
	r.load("soak: 1h, types: [listener]")
	r.awaitAll("clusters are not rolled out", "second")
	r.write("third")
	r.awaitAll("the next change of a cluster", "third")
	r.load("soak: 1h, types: [cluster]")
	r.write("fourth")
	r.awaitFirst("fourth")
}
