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

// Two clients, of which the first has a change: a reload freezes the rollout, and another one has it go on
// with a shorter soak.
func TestAReloadChangesTheRolloutThatGoesOn(t *testing.T) {
	folder := t.TempDir()
	write := func(label string) {
		text := `{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "c", "altStatName": "` + label + `"}`
		if err := os.WriteFile(filepath.Join(folder, "new"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(folder, "new"), filepath.Join(folder, "a.json")); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	r := &reloadTest{T: t, listen: freeAddress(t)}
	r.relay, _ = runRelay(t, fmt.Sprintf(rolloutConfig, r.listen, folder, "soak: 1h"), slog.New(slog.DiscardHandler))
	for _, id := range []string{"one", "two"} {
		h := hold(t, connectTo(t, r.listen), false, &corev3.Node{Id: id})
		h.awaitHas(t, "at the start", map[string]string{"c": "first"})
		r.everything = append(r.everything, h)
	}
	status := func() gate.Status {
		all := r.relay.rollouts.Status(gate.Which{Authority: "a", AnyPartition: true})
		if len(all) != 1 {
			t.Fatalf("the rollouts are %+v", all)
		}
		return all[0]
	}
	withSecond := func() (n int) {
		for _, h := range r.everything {
			if has, _, _, _ := h.state(); has["c"] == "second" {
				n++
			}
		}
		return n
	}
	write("second")
	await(t, "a first client has the change, and has taken it", func() bool {
		s := status()
		return withSecond() == 1 && len(s.Cohorts) == 1 && s.Cohorts[0].Taken == 1 && s.Cohorts[0].Clients == 2
	})
	r.mustReload(rolloutConfig, r.listen, folder, "soak: 10ms, frozen: true")
	if s := status(); !s.Frozen || s.Phase != rollout.Rolling || s.Step != 0 || withSecond() != 1 {
		t.Fatalf("frozen, the rollout is %+v, and %d clients have the change", s, withSecond())
	}
	for _, tt := range []struct{ config, want string }{
		{"soak: 10ms, types: [cluster]", "authorities[0].rollout.types: they cannot be changed while the relay runs"},
	} {
		if err := r.reload(fmt.Sprintf(rolloutConfig, r.listen, folder, tt.config)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: the error is %v, want in it %q", tt.config, err, tt.want)
		}
	}
	without := strings.Replace(rolloutConfig, ", rollout: {%s}", "", 1)
	if err := r.reload(fmt.Sprintf(without, r.listen, folder)); err == nil || !strings.Contains(err.Error(), "authorities[0]: its rollout cannot be taken away") {
		t.Errorf("without a rollout the error is %v", err)
	}
	r.mustReload(rolloutConfig, r.listen, folder, "soak: 10ms")
	for _, h := range r.everything {
		h.awaitHas(t, "thawed, with a shorter soak", map[string]string{"c": "second"})
	}
	r.mustBeOpen("a rollout that goes on")
}
