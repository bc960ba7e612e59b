package downstream

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// trialHost gives each stream one trial, of which a test decides, and records what the stream says of it.
type trialHost struct {
	cache  *cache.Cache
	client *testClient
	trial  *scriptedTrial
}

type scriptedTrial struct {
	scope   cache.Scope
	wake    func()
	showing []uint64 // the last one stays
	asked   uint64
	news    map[string]bool // versions that are not accepted
	alsoNew uint64          // the hash of another new resource
	// differing are the topics that differ.
	differing []string
	all       bool
	said      []string
	ended     bool
	filled    func() bool // nil: yes
}

func (t *scriptedTrial) RollsOut(string) bool { return true }
func (t *scriptedTrial) Showing() uint64 {
	is := t.showing[0]
	if len(t.showing) > 1 {
		t.showing = t.showing[1:]
	}
	return is
}
func (t *scriptedTrial) say(format string, args ...any) {
	t.said = append(t.said, fmt.Sprintf(format, args...))
}
func (t *scriptedTrial) Moved(showing uint64) { t.say("moved %d", showing) }
func (t *scriptedTrial) Filled() bool         { return t.filled == nil || t.filled() }
func (t *scriptedTrial) Ended() bool          { return t.ended }
func (t *scriptedTrial) Revision() uint64     { return t.asked }
func (t *scriptedTrial) Differing(string) ([]string, bool) {
	return t.differing, t.all
}
func (t *scriptedTrial) IsNew(hash uint64) bool {
	return t.alsoNew == hash || slices.ContainsFunc(slices.Collect(maps.Keys(t.news)), func(version string) bool { return versionOfC(version).Hash() == hash })
}
func (t *scriptedTrial) Settled()            { t.say("settled") }
func (t *scriptedTrial) Withdraw()           { t.say("withdrawn") }
func (t *scriptedTrial) Sent(showing uint64) { t.say("sent %d", showing) }
func (t *scriptedTrial) Untouched(showing, revision uint64) {
	t.say("untouched %d as of %d", showing, revision)
}
func (t *scriptedTrial) Acked(showing uint64) { t.say("acked %d", showing) }
func (t *scriptedTrial) Rejected(showing uint64, words string, _ chain.Rejecters, news []uint64) {
	t.say("rejected %d: %s, %d new", showing, words, len(news))
}
func (t *scriptedTrial) Leave(ended bool) { t.say("left %v", ended) }

// Join implements Rollouts.
func (h *trialHost) Join(scope cache.Scope, c TrialClient) (Trial, uint64) {
	h.trial.scope, h.trial.wake = scope, c.Wake
	h.trial.say("joined, eligible %v", c.Eligible)
	return h.trial, 0
}

// newTrialHost has a client that has answered what is accepted: the cluster c in version 1.
func newTrialHost(t *testing.T) *trialHost {
	t.Helper()
	h := &trialHost{trial: &scriptedTrial{showing: []uint64{0}, news: map[string]bool{}, differing: []string{cache.Wildcard}}}
	h.cache = newTestCache(make(startedTopics, 100), 100)
	t.Cleanup(h.cache.Close)
	s := NewServer(h.cache, newClusterNames, Options{MaxResponseBytes: DefaultMaxResponseBytes, Log: slog.New(slog.DiscardHandler), Rollouts: h})
	h.client = newTestClient(s, deltaForm.name, &corev3.Node{Id: "n", Cluster: "c"})
	h.request(t, &discoveryv3.DeltaDiscoveryRequest{})
	h.apply(false, "1")
	h.reads(t, "1")
	h.answer(t, "")
	return h
}

func (h *trialHost) request(t *testing.T, req *discoveryv3.DeltaDiscoveryRequest) {
	t.Helper()
	req.TypeUrl = xdstype.ClusterV3
	if err := h.client.delta(req); err != nil {
		t.Fatal(err)
	}
}

// answer answers the newest response, with a NACK if there are words.
func (h *trialHost) answer(t *testing.T, words string) {
	t.Helper()
	req := &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: h.client.memory(xdstype.ClusterV3).nonce}
	if words != "" {
		req.ErrorDetail = &statuspb.Status{Code: 3, Message: words}
	}
	h.request(t, req)
}

// apply has the cluster be in a version on one side.
func (h *trialHost) apply(isNew bool, version string) {
	u := cache.Update{Scope: h.trial.scope, TypeURL: xdstype.ClusterV3}
	u.Scope.New = isNew
	u.Sets = []cache.SetUpdate{{Name: cache.Wildcard, Changes: []cache.Change{{Name: "c", Resource: versionOfC(version)}}, Extent: cache.Ends}}
	h.cache.Apply(u)
}

// versionOfC returns the cluster in a version.
func versionOfC(version string) *cache.Resource {
	config := wire.AppendString(nil, wire.EDSServiceName, "c")
	return cache.NewResource(cache.Spec{
		Name: "c", Version: version, TypeURL: xdstype.ClusterV3,
		Value: wire.AppendBytes(encodeContent("c", "is "+version), wire.ClusterEDSConfig, config),
	})
}

// show has the stream look at the side on which it is to be: first the first one, and so on.
func (h *trialHost) show(showing ...uint64) {
	h.trial.showing = showing
	h.trial.wake()
}

// reads has the client read all that there is to be sent, and checks of which versions that is.
func (h *trialHost) reads(t *testing.T, versions ...string) {
	t.Helper()
	var got []string
	for _, r := range h.client.readAll(t) {
		for _, res := range r.resources {
			got = append(got, res.version)
		}
	}
	if !slices.Equal(got, versions) {
		t.Fatalf("the client is sent the versions %v, want %v; the stream has said: %s", got, versions, strings.Join(h.trial.said, ", "))
	}
}

// says checks what the stream has said since the last time.
func (h *trialHost) says(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(h.trial.said, want) {
		t.Errorf("the stream says %q, want %q", h.trial.said, want)
	}
	h.trial.said = nil
}

// onNew has the client be on the new side, and have version 2.
func (h *trialHost) onNew(t *testing.T) {
	t.Helper()
	h.says(t, "joined, eligible true", "settled")
	h.trial.news["2"], h.trial.news["3"] = true, true
	h.show(1)
	h.reads(t)
	h.trial.said = nil
	h.apply(true, "2")
	h.reads(t, "2")
	h.says(t, "sent 1")
}

// A client that should be back on the accepted side, but whose stream has not noticed, is not sent the current content
// of the new side: that is the next change, which goes to other clients first.
func TestAClientThatIsToBeBackIsNotSentTheNextChange(t *testing.T) {
	h := newTrialHost(t)
	h.onNew(t)
	h.answer(t, "")
	h.says(t, "acked 1")
	h.trial.showing = []uint64{1, 0} // it is decided while the stream begins to compose
	h.apply(true, "3")
	h.reads(t, "1")
}

// A client is moved off the new side and back before its stream notices. The client has the new content, which is
// reported again. What the client has already answered, or answers later, counts.
func TestAClientThatKeepsTheNewContentIsNotUntouched(t *testing.T) {
	h := newTrialHost(t)
	h.onNew(t)
	h.show(2)
	h.reads(t)
	h.says(t, "moved 2", "sent 2")
	h.answer(t, "")
	h.says(t, "acked 2")
	h.show(3)
	h.reads(t)
	h.says(t, "moved 3", "sent 3", "acked 3")
	h.trial.news = map[string]bool{} // it was accepted
	h.show(4)
	h.reads(t)
	h.says(t, "moved 4", "untouched 4 as of 0")
}

// The new topics are filled while the stream composes a response: what they have is in the next one.
func TestATopicThatIsFilledMeanwhileIsNotReportedAsUntouched(t *testing.T) {
	h := newTrialHost(t)
	h.says(t, "joined, eligible true", "settled")
	h.trial.news["2"] = true
	looked := 0
	h.trial.filled = func() bool {
		looked++
		return looked > 1
	}
	h.show(1)
	h.reads(t)
	h.says(t, "moved 1")
	h.apply(true, "2")
	h.reads(t, "2")
	h.says(t, "sent 1")
}

// A client that was moved off the new side and back before its stream noticed, and that has rejected what it has,
// reports again.
func TestAClientThatIsShownAgainReportsAgain(t *testing.T) {
	h := newTrialHost(t)
	h.onNew(t)
	h.show(2) // it was 0 in between
	h.reads(t)
	h.says(t, "moved 2", "sent 2")
	h.answer(t, "no such filter")
	h.says(t, `rejected 2: cluster "c": no such filter, 1 new`)
	h.show(3) // it was 0 in between
	h.reads(t)
	h.says(t, "moved 3", "untouched 3 as of 0")
	h.apply(true, "3")
	h.reads(t, "3")
	h.answer(t, "no such cluster")
	h.says(t, "sent 3", `rejected 3: cluster "c": no such cluster, 1 new`)
}

// When there is more on the new side, a stream reports again whether it is sent some of it.
func TestAStreamReportsOnceMoreWhenItIsAsked(t *testing.T) {
	h := newTrialHost(t)
	h.onNew(t)
	h.answer(t, "")
	h.says(t, "acked 1")
	h.trial.asked++
	h.show(1)
	h.reads(t)
	h.says(t, "moved 1", "untouched 1 as of 1")
	h.trial.asked++
	h.apply(true, "3")
	h.reads(t, "3")
	h.says(t, "moved 1", "sent 1")
}

// A client with a view is on the accepted side, whatever else it subscribes to.
func TestAClientWithAViewIsOnTheAcceptedSide(t *testing.T) {
	h := newTrialHost(t)
	h.onNew(t)
	st := h.client.st
	st.mu.Lock()
	err := st.Enter(cache.Key{Scope: cache.Scope{Derived: "view 0"}, TypeURL: xdstype.ClusterV3, Name: cache.Wildcard})
	st.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	h.says(t, "withdrawn")
	h.show(0)
	h.reads(t, "1")
	h.show(3) // whatever is decided
	h.reads(t)
	h.says(t)
}

// A stream that the client ends with a half-close, or that the relay ends, is no death.
func TestOnlyAStreamThatBreaksOffIsADeath(t *testing.T) {
	for want, end := range map[string]func(*stream){
		"left true":   func(*stream) {},
		"left false":  func(st *stream) { st.byRelay.Store(true) },
		"left false ": func(st *stream) { st.halfClosed = true },
	} {
		h := newTrialHost(t)
		h.trial.said = nil
		end(h.client.st)
		h.client.close()
		h.says(t, strings.TrimSpace(want))
	}
}

// Of the names that a client subscribes to, only those that differ on the new side move there, also later, and back.
// That also holds for clients whose names are watched in a group.
func TestOnlyNamesThatDifferMove(t *testing.T) {
	for _, all := range []bool{false, true} {
		h := &trialHost{trial: &scriptedTrial{showing: []uint64{0}, news: map[string]bool{"2": true}, all: all}}
		h.cache = newTestCache(make(startedTopics, 100), 100)
		s := NewServer(h.cache, newClusterNames, Options{MaxResponseBytes: DefaultMaxResponseBytes, Log: slog.New(slog.DiscardHandler), Rollouts: h})
		apply := func(isNew bool, version string, names ...string) {
			u := cache.Update{Scope: h.trial.scope, TypeURL: xdstype.ClusterV3}
			u.Scope.New = isNew
			for _, name := range names {
				u.Changes = append(u.Changes, cache.Change{Name: name, Resource: newTestResource(xdstype.ClusterV3, name, version, name+" is "+version)})
			}
			h.cache.Apply(u)
		}
		names := []string{"a", "b", "c", "d"}
		for _, node := range []string{"other", "third", "n"} { // the last one joins a group
			h.client = newTestClient(s, deltaForm.name, &corev3.Node{Id: node, Cluster: "c"})
			h.request(t, &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: names})
		}
		apply(false, "1", names...)
		h.reads(t, "1", "1", "1", "1")
		h.answer(t, "")
		h.trial.differing = []string{"b"}
		h.show(1)
		h.reads(t)
		apply(true, "2", "b")
		h.reads(t, "2")
		h.answer(t, "")
		h.trial.differing = []string{"b", "c"}
		h.trial.asked++
		h.show(1)
		h.reads(t)
		apply(true, "2", "c")
		h.reads(t, "2")
		h.answer(t, "")
		isNew := h.trial.scope
		isNew.New = true
		for _, name := range names {
			entry, _ := h.cache.Find(cache.Key{Scope: isNew, TypeURL: xdstype.ClusterV3, Name: name})
			if is, want := entry != nil, all || name == "b" || name == "c"; is != want {
				t.Errorf("%s is watched on the new side: %v, want %v", name, is, want)
			}
		}
		h.show(0)
		h.reads(t, "1", "1")
		h.cache.Close()
	}
}

// A client that has acknowledged Clusters is sent the routes that waited for that. Only then can it have accepted the
// change.
func TestAClientHasAcceptedAChangeWhenNothingWaits(t *testing.T) {
	for _, route := range []struct {
		name  string
		isNew bool
	}{{"a new route", true}, {"an accepted route", false}} {
		t.Run(route.name, func(t *testing.T) {
			h := newTrialHost(t)
			routes := func(nonce string, names ...string) {
				t.Helper()
				if err := h.client.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.RouteV3, ResourceNamesSubscribe: names, ResponseNonce: nonce}); err != nil {
					t.Fatal(err)
				}
			}
			put := func(isNew bool, content string) {
				u := cache.Update{Scope: h.trial.scope, TypeURL: xdstype.RouteV3}
				u.Scope.New = isNew
				r := newTestResource(xdstype.RouteV3, "r", content, content)
				if isNew && route.isNew {
					h.trial.alsoNew = r.Hash()
				}
				u.Changes = []cache.Change{{Name: "r", Resource: r}}
				h.cache.Apply(u)
			}
			h.trial.differing = []string{cache.Wildcard, "r"}
			routes("", "r")
			put(false, "to b")
			h.reads(t, "to b")
			routes(h.client.memory(xdstype.RouteV3).nonce)
			h.trial.news["2"] = true
			h.show(1)
			h.reads(t)
			h.trial.said = nil
			h.apply(true, "2")
			put(true, "to c")
			h.reads(t, "2")
			h.answer(t, "")
			h.says(t, "sent 1")
			h.reads(t, "to c")
			routes(h.client.memory(xdstype.RouteV3).nonce)
			h.reads(t)
			if route.isNew {
				h.says(t, "sent 1", "acked 1")
			} else {
				h.says(t, "acked 1")
			}
		})
	}
}

func TestARefusalNamesWhatWasRejected(t *testing.T) {
	named := func(n int, names ...string) sentNew {
		of := sentNew{typeURL: xdstype.ListenerV3, more: n}
		for _, name := range names {
			of.fresh = append(of.fresh, newTestResource(xdstype.ListenerV3, name, "1", "1"))
		}
		return of
	}
	for _, c := range []struct {
		sent  sentNew
		words string
		relay bool
		want  string
	}{
		{named(0, "a"), "no such filter", false, `listener "a": no such filter`},
		{named(0, "a", "b"), "no such filter", false, `one of listener "a", "b": no such filter`},
		{named(0, "a", "b", "c"), "b: no such filter", false, `listener "b": b: no such filter`},
		{named(0, "a", "b", "c", "d", "e"), "no such filter", false, `one of listener "a", "b", "c" and 2 more: no such filter`},
		{named(3, "a"), "no such filter", false, `one of listener "a" and 3 more: no such filter`},
		{named(3, "a"), "bad a", false, `listener "a": bad a`},
		{named(0, "a"), "no such filter", true, "no such filter"}, // it may have been in an earlier response
		{named(0, "a"), "bad a", true, `listener "a": bad a`},
	} {
		if is := c.sent.refusal(c.words, c.relay); is != c.want {
			t.Errorf("the refusal is %q, want %q", is, c.want)
		}
	}
}
