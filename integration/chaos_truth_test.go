package integration

// The history of all resources during a chaos run, and what clients may observe according to it.

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// absent is the revision of a resource that does not exist.
const absent = 0

// chaosTruth is the history of all resources of one control plane: the revisions that each has had, in order.
// A revision identifies a content.
type chaosTruth struct {
	mu      sync.Mutex
	history map[topic][]int
	newest  int
	hidden  map[topic]bool // the resources that the control plane has lacked after a restart
	emptied map[topic]bool // the sets of which it has lacked all
	wrong   []string       // the impossible observations of clients
	found   func()         // called at each impossible observation
}

func newChaosTruth() *chaosTruth {
	return &chaosTruth{history: map[topic][]int{}, hidden: map[topic]bool{}, emptied: map[topic]bool{}, found: func() {}}
}

// set gives a resource a new revision, or makes it absent, and returns it as the control plane sends it: nil
// if it is absent.
func (w *chaosTruth) set(t topic, exists bool) *discoveryv3.Resource {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.newest++
	if !exists {
		w.history[t] = append(w.history[t], absent)
		return nil
	}
	w.history[t] = append(w.history[t], w.newest)
	return &discoveryv3.Resource{Name: t.name, Version: strconv.Itoa(w.newest), Resource: chaosResource(t, w.newest)}
}

// chaosResource returns a resource that has its revision as its content.
func chaosResource(t topic, revision int) *anypb.Any {
	var m proto.Message = &clusterv3.Cluster{Name: t.name, AltStatName: strconv.Itoa(revision)}
	if t.typeURL == endpointType {
		m = &endpointv3.ClusterLoadAssignment{
			ClusterName: t.name,
			Policy:      &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(uint32(revision))},
		}
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err) // cannot happen: the message is valid
	}
	return &anypb.Any{TypeUrl: t.typeURL, Value: value}
}

// revisionOf returns the name and the revision inside a resource.
func revisionOf(typeURL string, value []byte) (name string, revision int, err error) {
	if typeURL == endpointType {
		var m endpointv3.ClusterLoadAssignment
		err = proto.Unmarshal(value, &m)
		return m.GetClusterName(), int(m.GetPolicy().GetOverprovisioningFactor().GetValue()), err
	}
	var m clusterv3.Cluster
	if err = proto.Unmarshal(value, &m); err != nil {
		return "", 0, err
	}
	revision, err = strconv.Atoi(m.GetAltStatName())
	return m.GetName(), revision, err
}

// now returns the newest revision of a resource.
func (w *chaosTruth) now(t topic) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nowLocked(t)
}

// hide records that the control plane lacks these resources for a while, without having removed them.
func (w *chaosTruth) hide(topics []topic) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range topics {
		w.hidden[t] = true
	}
	for _, set := range chaosSets() {
		shown := func(t topic) bool {
			return among(map[topic]bool{set: true}, t) && !slices.Contains(topics, t) && w.nowLocked(t) != absent
		}
		if !slices.ContainsFunc(slices.Collect(maps.Keys(w.history)), shown) {
			w.emptied[set] = true
		}
	}
}

// hasBeenEmpty reports whether the control plane has lacked all members of a set after a restart.
func (w *chaosTruth) hasBeenEmpty(set topic) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.emptied[set]
}

// newestRevision returns the revision of the last change.
func (w *chaosTruth) newestRevision() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newest
}

func (w *chaosTruth) nowLocked(t topic) int {
	all := w.history[t]
	if len(all) == 0 {
		return absent
	}
	return all[len(all)-1]
}

// all returns the names of all existing resources of a type, with their newest revisions.
func (w *chaosTruth) all(typeURL string) map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	exist := map[string]int{}
	for t := range w.history {
		if revision := w.nowLocked(t); t.typeURL == typeURL && revision != absent {
			exist[t.name] = revision
		}
	}
	return exist
}

// sawResource checks a resource that a client received. before is the revision that the client had last,
// absent if it had none.
func (w *chaosTruth) sawResource(client *chaosClient, t topic, before, revision int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !slices.Contains(w.history[t], revision) || revision == absent:
		w.violation(client, "received %v at revision %d, which no control plane ever had; it had %v", t, revision, w.history[t])
	case revision < before:
		w.violation(client, "received %v at revision %d after %d: content went back", t, revision, before)
	}
}

// sawAbsence checks a removal that a client received. held is the revision that the client held, absent if it
// held none. stored is the newest revision that the client received and that no killed relay can have lost.
// The control plane must have removed the resource after stored. It need not have removed it after held: if
// the relay is killed, the next one serves the stored revision, also while a restarted control plane has not
// yet restored the resource.
func (w *chaosTruth) sawAbsence(client *chaosClient, t topic, held, stored int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.history[t]
	since := 0
	if held != absent {
		if stored == absent && w.hidden[t] {
			return
		}
		if stored != absent {
			since = slices.Index(all, stored) + 1
		}
	} else if len(all) == 0 || all[0] != absent {
		return // the resource did not exist before its first revision
	}
	if !slices.Contains(all[since:], absent) {
		w.violation(client, "received the removal of %v, which it held at revision %d and which was never removed: its later revisions are %v", t, held, all[since:])
	}
}

// violation records an impossible observation of a client, with the client's past. The caller holds mu.
func (w *chaosTruth) violation(client *chaosClient, format string, args ...any) {
	w.note(client.id, fmt.Sprintf(format, args...), &client.past, &client.plane.past)
}

// note records an impossible observation. The caller holds mu.
func (w *chaosTruth) note(who, what string, pasts ...*chaosPast) {
	const most = 3
	if len(w.wrong) == most {
		return
	}
	w.found()
	for i, past := range pasts {
		what += []string{"\n", "\nits control plane:\n"}[i] + past.String()
	}
	w.wrong = append(w.wrong, who+" "+what)
}

// report records an impossible observation of a client.
func (w *chaosTruth) report(client *chaosClient, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violation(client, format, args...)
}

// reportOf is report for an observer that is not a chaosClient.
func (w *chaosTruth) reportOf(who string, past *chaosPast, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note(who, fmt.Sprintf(format, args...), past)
}

// violations returns the recorded observations.
func (w *chaosTruth) violations() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.wrong)
}
