package relay

import (
	"fmt"
	"log/slog"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// moveConfig serves clients of cluster c1 from one authority, and all others from a.
const moveConfig = `
listeners: [{address: "%s"}]
authorities:
- {name: a, servers: [{address: "%s"}]}
- {name: b, servers: [{address: "%s"}]}
old_style_names:
- {when: 'node.cluster == "c1"', authority: %s}
- {authority: a}
`

// A client moves to topics that others watch, of an authority that gets other servers at the same time. The relay
// does not give it the topics' content, which is from the old servers.
func TestAClientMovesToAnAuthorityThatGetsOtherServers(t *testing.T) {
	t.Parallel()
	few, many := startLabelledPlane(t, "few", "m1", "m2"), startLabelledPlane(t, "many", "m1", "m2", "m4")
	next := startLabelledPlane(t, "next", "m1", "m2", "m4")
	next.answers = make(chan struct{})
	r := &reloadTest{T: t, listen: freeAddress(t)}
	r.relay, _ = runRelay(t, fmt.Sprintf(moveConfig, r.listen, few.address, many.address, "b"), slog.New(slog.DiscardHandler))
	conn := connectTo(t, r.listen)
	type client struct {
		*holder
		names []string
	}
	var moved, others []client
	for _, sotw := range []bool{false, true} {
		for i, names := range [][]string{nil, {"m1", "m4"}, {"m1", "m4"}} { // two that share a list
			at := client{hold(t, conn, sotw, &corev3.Node{Id: fmt.Sprint("moved", sotw, i), Cluster: "c1"}, names...), names}
			moved = append(moved, at)
			others = append(others, client{hold(t, conn, sotw, &corev3.Node{Id: fmt.Sprint("other", sotw, i), Cluster: "c2"}, names...), names})
			r.everything = append(r.everything, at.holder)
		}
	}
	has := func(label string, of client, known ...string) map[string]string {
		all := map[string]string{}
		for _, name := range known {
			if name != "m2" || of.names == nil {
				all[name] = label
			}
		}
		return all
	}
	for i := range moved {
		moved[i].awaitHas(t, "before", has("many", moved[i], "m1", "m2", "m4"))
		others[i].awaitHas(t, "before", has("few", others[i], "m1", "m2"))
	}
	r.mustReload(moveConfig, r.listen, next.address, many.address, "a")
	after := hold(t, conn, false, &corev3.Node{Id: "after", Cluster: "c2"})
	after.awaitHas(t, "a client that comes while the new server has not answered", map[string]string{"m1": "few", "m2": "few"})
	for _, of := range moved {
		if is, _, removed, _ := of.state(); len(removed) > 0 || is["m4"] != "many" {
			t.Errorf("the client for %v has %v before the new server has answered, and was sent the removal of %v", of.names, is, removed)
		}
	}
	close(next.answers)
	for i := range moved {
		moved[i].awaitHas(t, "after", has("next", moved[i], "m1", "m2", "m4"))
		others[i].awaitHas(t, "after", has("next", others[i], "m1", "m2", "m4"))
	}
	r.mustBeOpen("clients that have moved")
}

// A name that a client was denied is allowed again, and means a topic without an answer. The client may have dropped
// the name, so the relay does not wait for the topic: a state without it takes it from a client that has kept it in
// spite of the error. So a client with that state need not have the newest configuration.
func TestAStateDoesNotWaitForANameThatWasDenied(t *testing.T) {
	t.Parallel()
	const config = `
listeners: [{address: "%s"}]
authorities:
- {name: a, servers: [{address: "%s"}]}
- {name: b, servers: [{address: "%s"}]}
old_style_names: [{authority: b, partition: '"%s"'}]
rights:
- {when: 'name == "m2"', allow: '%t'}
- {allow: 'true'}
`
	now, next := startLabelledPlane(t, "now", "m1", "m2"), startLabelledPlane(t, "next", "m1", "m2")
	silent := startLabelledPlane(t, "now", "m1", "m2")
	silent.answers = make(chan struct{})
	r := &reloadTest{T: t, listen: freeAddress(t)}
	r.relay, _ = runRelay(t, fmt.Sprintf(config, r.listen, now.address, now.address, "one", true), slog.New(slog.DiscardHandler))
	x := "xdstp://a/envoy.config.cluster.v3.Cluster/x"
	kept := hold(t, connectTo(t, r.listen), true, &corev3.Node{Id: "kept"}, "m2", x)
	kept.awaitHas(t, "before", map[string]string{"m2": "now", x: "now"})
	r.mustReload(config, r.listen, now.address, now.address, "one", false)
	kept.await(t, "an error", func() bool { return kept.errors["m2"] != "" })
	kept.awaitHas(t, "with the error", map[string]string{"m2": "now", x: "now"})
	r.mustReload(config, r.listen, next.address, silent.address, "two", true)
	kept.awaitHas(t, "while there is no answer for the name", map[string]string{x: "next"})
	if _, _, removed, _ := kept.state(); len(removed) != 1 || !kept.isExcused(0) {
		t.Errorf("removed %v; want m2, which the client was denied", removed)
	}
	close(silent.answers)
	kept.awaitHas(t, "after the answer", map[string]string{"m2": "now", x: "next"})
}

// A client is denied a name, and before it has received the error, the name's authority is gone. The relay does not
// delay what the client may have because of that name.
func TestAStateDoesNotWaitForANameThatWasDeniedAndIsGone(t *testing.T) {
	t.Parallel()
	const config = `
listeners: [{address: "%s"}]
authorities:
- {name: a, servers: [{address: "%s"}]}
%s
old_style_names: [{authority: a, partition: '"%s"'}]
`
	now, next := startLabelledPlane(t, "now", "m1", "m2"), startLabelledPlane(t, "next", "m1", "m2")
	silent := startLabelledPlane(t, "silent", "m1", "m2")
	silent.answers = make(chan struct{})
	b := fmt.Sprintf("- {name: b, servers: [{address: %q}]}\n", now.address)
	denied := func(what string) string {
		return "rights:\n- {when: '" + what + "', allow: 'false'}\n- {allow: 'true'}\n"
	}
	r := &reloadTest{T: t, listen: freeAddress(t)}
	r.relay, _ = runRelay(t, fmt.Sprintf(config, r.listen, now.address, b+denied(`name == "m2"`), "one"), slog.New(slog.DiscardHandler))
	h := hold(t, connectTo(t, r.listen), true, &corev3.Node{Id: "n"}, "m2", namedOfB)
	h.awaitHas(t, "before", map[string]string{namedOfB: "now"})
	// The topic that the client may have is without an answer, and it may not have the other: no state can be sent.
	r.mustReload(config, r.listen, silent.address, b+denied(`authority == "b" && name.startsWith("xdstp:")`), "two")
	await(t, "the name is requested", func() bool { return silent.opened() > 0 })
	r.mustReload(config, r.listen, next.address, "", "one")
	h.await(t, "after", func() bool { return h.has["m2"] == "next" })
	close(silent.answers)
}
