package integration

// A view of a list collection and a glob of two authorities, for ordinary clients, while the control plane of
// either authority is killed. docs/views.md, "When something cannot be had".

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
)

// edgeView is a view that serves the members of a list collection and of a glob to wildcard clients of a
// type.
type edgeView struct {
	t          testing.TB
	typeURL    string
	list, glob string
	cloud      *mortal // has the list
	onprem     *mortal // has the glob
}

var edgeAuthorities = []string{"cloud.example.com", "onprem"}

func newEdgeView(t testing.TB, upstream form, typeURL string) *edgeView {
	return &edgeView{
		t: t, typeURL: typeURL, cloud: newMortal(t, upstream), onprem: newMortal(t, upstream),
		list: xdstp(edgeAuthorities[0], typeURL+"Collection", "edge"), glob: xdstp(edgeAuthorities[1], typeURL, "edge/*"),
	}
}

func (v *edgeView) config(upstream form) string {
	short := strings.ToLower(v.typeURL[strings.LastIndexByte(v.typeURL, '.')+1:])
	return authoritiesOf(upstream, fmt.Sprintf(`
views:
  - match: {type: %s, wildcard: true}
    collections: [%q, %q]
`, short, v.list, v.glob), edgeAuthorities, v.cloud, v.onprem)
}

// member returns the full name of a member. cloud/x and onprem/x are members of the list by locators, and
// edge/x is a member of the glob. Other names, of inline entries, are unchanged.
func (v *edgeView) member(short string) string {
	if id, ok := strings.CutPrefix(short, "cloud/"); ok {
		return xdstp(edgeAuthorities[0], v.typeURL, id)
	}
	if id, ok := strings.CutPrefix(short, "onprem/"); ok {
		return xdstp(edgeAuthorities[1], v.typeURL, id)
	}
	if strings.HasPrefix(short, "edge/") {
		return xdstp(edgeAuthorities[1], v.typeURL, short)
	}
	return short
}

// resource returns a member with a content.
func (v *edgeView) resource(short, content string) proto.Message {
	if v.typeURL == clusterType {
		return plainCluster(v.member(short), content)
	}
	return plainListener(v.member(short), content)
}

func (v *edgeView) has(short, content string) said {
	v.t.Helper()
	return has(v.t, v.resource(short, content))
}

func (v *edgeView) gone(short string) said { return gone(v.typeURL, v.member(short)) }

// listOf returns the list. A member NAME=CONTENT is an inline entry, any other a locator.
func (v *edgeView) listOf(members ...string) said {
	v.t.Helper()
	var entries []*xdscorev3.CollectionEntry
	for _, m := range members {
		if name, content, inline := strings.Cut(m, "="); inline {
			entries = append(entries, inlined(v.t, name, content, v.resource(name, content)))
		} else {
			entries = append(entries, located(v.member(m)))
		}
	}
	return listing(v.t, v.list, entries...)
}

// carriedBy returns the content of a member.
func carriedBy(typeURL, value string) string {
	if typeURL == clusterType {
		var m clusterv3.Cluster
		_ = proto.Unmarshal([]byte(value), &m) // on an error, the content is empty
		return m.GetAltStatName()
	}
	var m listenerv3.Listener
	_ = proto.Unmarshal([]byte(value), &m)
	return m.GetStatPrefix()
}

// awaitAll waits until each client has exactly these members, written NAME=CONTENT.
func (v *edgeView) awaitAll(what string, clients []*client, members ...string) {
	v.t.Helper()
	want := map[string]string{}
	for _, m := range members {
		name, content, _ := strings.Cut(m, "=")
		want[v.member(name)] = content
	}
	for _, c := range clients {
		c.await(v.t, fmt.Sprintf("%s: the %s client has %v", what, c.form, members), func(seen *view) bool {
			has := map[string]string{}
			for t, r := range seen.held {
				if t.typeURL == v.typeURL && r.inner == t.name {
					has[t.name] = carriedBy(t.typeURL, r.value)
				}
			}
			return maps.Equal(has, want) || seen.ended != nil
		})
		c.mustLive(v.t)
	}
}

// mustNotLose checks that no client received a removal of these members, nor an error.
func (v *edgeView) mustNotLose(clients []*client, members ...string) {
	v.t.Helper()
	for _, c := range clients {
		c.read(func(seen *view) {
			for _, m := range members {
				if slices.Contains(seen.log, topic{v.typeURL, "-" + v.member(m)}) {
					v.t.Errorf("the %s client received the removal of %s: %v", c.form, m, seen.log)
				}
			}
			if len(seen.errors) > 0 {
				v.t.Errorf("the %s client received errors: %v", c.form, seen.errors)
			}
		})
	}
}

func (v *edgeView) clients(r *relay) (all []*client) {
	v.t.Helper()
	for _, f := range []form{delta, sotw} {
		c := newClient(v.t, r, f, node(string(f), "edge"))
		c.subscribe(v.typeURL, wildcard)
		all = append(all, c)
	}
	return all
}

// eachView runs test for both types with wildcards, and for both forms upstream.
func eachView(t *testing.T, test func(t *testing.T, upstream form, v *edgeView)) {
	t.Helper()
	for _, upstream := range []form{delta, sotw} {
		for short, typeURL := range map[string]string{"listeners": listenerType, "clusters": clusterType} {
			t.Run(fmt.Sprintf("%s, upstream %s", short, upstream), func(t *testing.T) {
				t.Parallel()
				test(t, upstream, newEdgeView(t, upstream, typeURL))
			})
		}
	}
}

// TestUnionLivesThroughTheDeathOfEither checks that a wildcard client has the union of a list collection and
// a glob, and follows both. When either authority is down, the client keeps its members and follows the other
// authority. When the authority is back, the client receives its changes.
func TestUnionLivesThroughTheDeathOfEither(t *testing.T) {
	eachView(t, func(t *testing.T, upstream form, v *edgeView) {
		v.cloud.start(v.listOf("cloud/web", "health=1"), v.has("cloud/web", "1"), v.has("cloud/admin", "1"))
		v.onprem.start(v.has("edge/http", "1"), v.has("edge/https", "1"))
		r := startRelay(t, v.config(upstream))
		all := v.clients(r)
		v.awaitAll("in the beginning", all, "cloud/web=1", "health=1", "edge/http=1", "edge/https=1")

		v.cloud.say(v.has("cloud/web", "2"))
		v.awaitAll("a member of the list changes", all, "cloud/web=2", "health=1", "edge/http=1", "edge/https=1")
		v.cloud.say(v.listOf("cloud/web", "cloud/admin", "health=2"))
		v.awaitAll("the list changes", all, "cloud/web=2", "cloud/admin=1", "health=2", "edge/http=1", "edge/https=1")
		v.onprem.say(v.has("edge/http", "2"), v.has("edge/tcp", "1"), v.gone("edge/https"))
		v.awaitAll("the glob changes", all, "cloud/web=2", "cloud/admin=1", "health=2", "edge/http=2", "edge/tcp=1")

		v.cloud.kill()
		v.onprem.say(v.has("edge/http", "3"), v.has("edge/udp", "1"), v.gone("edge/tcp"))
		v.awaitAll("the list's authority is down, and the glob changes", all, "cloud/web=2", "cloud/admin=1", "health=2", "edge/http=3", "edge/udp=1")
		all = append(all, v.clients(r)...)
		v.awaitAll("new clients connect while it is down", all, "cloud/web=2", "cloud/admin=1", "health=2", "edge/http=3", "edge/udp=1")
		v.cloud.start(v.listOf("cloud/web", "health=3"), v.has("cloud/web", "3"))
		v.awaitAll("the list's authority is back, with another list", all, "cloud/web=3", "health=3", "edge/http=3", "edge/udp=1")

		v.onprem.kill()
		v.cloud.say(v.listOf("onprem/late", "cloud/web", "cloud/admin", "health=3"), v.has("cloud/web", "4"), v.has("cloud/admin", "4"))
		v.awaitAll("the glob's authority is down, and the list changes", all, "cloud/web=4", "cloud/admin=4", "health=3", "edge/http=3", "edge/udp=1")
		all = append(all, v.clients(r)...)
		v.awaitAll("new clients connect while it is down", all, "cloud/web=4", "cloud/admin=4", "health=3", "edge/http=3", "edge/udp=1")
		v.onprem.start(v.has("edge/http", "4"), v.has("edge/tcp", "4"), v.has("onprem/late", "4"))
		v.awaitAll("the glob's authority is back, with other members, and one that the list names", all, "cloud/web=4", "cloud/admin=4", "health=3", "edge/http=4", "edge/tcp=4", "onprem/late=4")

		v.cloud.kill()
		v.onprem.kill()
		all = append(all, v.clients(r)...)
		v.awaitAll("both authorities are down", all, "cloud/web=4", "cloud/admin=4", "health=3", "edge/http=4", "edge/tcp=4", "onprem/late=4")
		v.onprem.start(v.has("edge/http", "5"), v.has("onprem/late", "5"))
		v.awaitAll("the glob's authority is back", all, "cloud/web=4", "cloud/admin=4", "health=3", "edge/http=5", "onprem/late=5")
		v.cloud.start(v.listOf("cloud/web", "health=5"), v.has("cloud/web", "5"))
		v.awaitAll("both authorities are back", all, "cloud/web=5", "health=5", "edge/http=5")
		v.mustNotLose(all, "cloud/web", "health", "edge/http")
	})
}

// TestUnionBeginsWhileOneIsDead checks that a relay that starts while one authority is down serves the
// members of the other authority at once, and those of the first authority when it starts.
func TestUnionBeginsWhileOneIsDead(t *testing.T) {
	eachView(t, func(t *testing.T, upstream form, v *edgeView) {
		onprem := []said{v.has("edge/http", "1")}
		cloud := []said{v.listOf("cloud/web", "health=1"), v.has("cloud/web", "1")}
		for _, dead := range []string{"the list's authority", "the glob's authority"} {
			t.Run(dead, func(t *testing.T) {
				one, late, lives, comes := v.onprem, v.cloud, onprem, cloud
				first, changed := "edge/http=1", v.has("edge/http", "2")
				after := []string{"edge/http=2", "cloud/web=1", "health=1"}
				if dead == "the glob's authority" {
					one, late, lives, comes = v.cloud, v.onprem, cloud, onprem
					first, changed = "cloud/web=1 health=1", v.has("cloud/web", "2")
					after = []string{"edge/http=1", "cloud/web=2", "health=1"}
				}
				one.start(lives...)
				defer one.kill()
				defer late.kill()
				r := startRelay(t, v.config(upstream))
				all := v.clients(r)
				v.awaitAll("one authority is down", all, strings.Fields(first)...)
				one.say(changed)
				all = append(all, v.clients(r)...)
				v.awaitAll("the other authority's members change", all, strings.Fields(strings.Replace(first, "=1", "=2", 1))...)
				late.start(comes...)
				v.awaitAll("the authority that was down starts", all, after...)
				v.mustNotLose(all, "edge/http", "cloud/web", "health")
			})
		}
	})
}
