package integration

// Control planes that replace Listeners by others on the same addresses.

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// listenerState is what a Listener is. Each change of a Listener has a new revision.
type listenerState struct{ revision, port int }

// listenerPlane is a control plane with Listeners, of which no two ever have the same port.
type listenerPlane struct {
	*chaosPlane
	t testing.TB
	// history has all states of each Listener, in order. Guarded by plane.mu.
	history map[string][]listenerState
}

const (
	listenerNames = 10
	listenerPorts = 8
	// mostListeners is so few that all can be replaced at once.
	mostListeners = listenerNames / 2
	// unusedPorts is the first port that no Listener has during chaos.
	unusedPorts = 1000
)

func startListenerPlane(t testing.TB, name string, speaks form, r *rand.Rand) *listenerPlane {
	p := &listenerPlane{emptyChaosPlane(t, name, r), t, map[string][]listenerState{}}
	p.plane.speaks = speaks
	for i := range listenerNames {
		p.names = append(p.names, topic{listenerType, fmt.Sprint("listener-", i)})
	}
	p.plane.change(func() {
		for i := range mostListeners - 1 {
			p.put(p.names[i].name, 1+i)
		}
		p.putCluster(r)
	})
	p.servers[0].start()
	t.Cleanup(p.servers[0].kill)
	return p
}

// put adds or changes a Listener. The caller holds plane.mu.
func (p *listenerPlane) put(name string, port int) {
	p.plane.versions++
	is := listenerState{p.plane.versions, port}
	p.history[name] = append(p.history[name], is)
	address := &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)}, //nolint:gosec // it is small
	}}}
	said := has(p.t, &listenerv3.Listener{Name: name, StatPrefix: strconv.Itoa(is.revision), Address: address})
	p.plane.says[said.topic] = &discoveryv3.Resource{Name: name, Version: strconv.Itoa(is.revision), Resource: said.value}
}

// putCluster changes a Cluster. Listeners wait until clients have acknowledged it. The caller holds plane.mu.
func (p *listenerPlane) putCluster(r *rand.Rand) {
	p.plane.versions++
	t := topic{clusterType, fmt.Sprint("cluster-", r.IntN(2))}
	p.plane.says[t] = &discoveryv3.Resource{Name: t.name, Version: strconv.Itoa(p.plane.versions), Resource: chaosResource(t, p.plane.versions)}
}

// remove removes a Listener, and returns its port. The caller holds plane.mu.
func (p *listenerPlane) remove(name string) (port int) {
	p.plane.versions++
	delete(p.plane.says, topic{listenerType, name})
	all := p.history[name]
	return all[len(all)-1].port
}

// now returns the Listeners that exist. The caller holds plane.mu.
func (p *listenerPlane) now() map[string]listenerState {
	exist := map[string]listenerState{}
	for name, all := range p.history {
		if p.plane.says[topic{listenerType, name}] != nil {
			exist[name] = all[len(all)-1]
		}
	}
	return exist
}

// unused returns a random name and a random port that no Listener has. The caller holds plane.mu.
func (p *listenerPlane) unused(r *rand.Rand) (name string, port int) {
	exist := p.now()
	for name == "" || exist[name].port > 0 {
		name = p.names[r.IntN(len(p.names))].name
	}
	taken := map[int]bool{0: true}
	for _, is := range exist {
		taken[is.port] = true
	}
	for taken[port] {
		port = 1 + r.IntN(listenerPorts)
	}
	return name, port
}

// step changes Listeners in one way. The caller holds plane.mu.
func (p *listenerPlane) step(r *rand.Rand) {
	exist := p.now()
	name, port := p.unused(r)
	if len(exist) == 0 {
		p.put(name, port)
		return
	}
	of := slices.Sorted(maps.Keys(exist))
	old := of[r.IntN(len(of))]
	switch r.IntN(8) {
	case 0, 1, 2: // another name on the same port
		p.put(name, p.remove(old))
	case 3:
		p.put(old, exist[old].port)
	case 4:
		p.put(old, port)
	case 5: // one moves, and another one takes its place
		p.put(old, port)
		other := of[r.IntN(len(of))]
		if other == old {
			other = name
		}
		if len(exist) < mostListeners || other != name {
			p.put(other, exist[old].port)
		}
	case 6:
		p.remove(old)
	case 7:
		if len(exist) < mostListeners {
			p.put(name, port)
		}
	}
}

// change changes Listeners until ctx ends.
func (p *listenerPlane) change(ctx context.Context, r *rand.Rand) {
	const breath, most, seldom = 60 * time.Millisecond, 2, 5
	for pause(ctx, r, breath) {
		p.plane.change(func() {
			for range 1 + r.IntN(most) {
				p.step(r)
			}
			if r.IntN(seldom) == 0 {
				p.putCluster(r)
			}
		})
	}
}

// suffer is chaosPlane.suffer, and now and then the server is restarted as a release that names its Listeners differently.
func (p *listenerPlane) suffer(ctx context.Context, r *rand.Rand) {
	const between, lasting = 4 * time.Second, 100 * time.Millisecond
	for ctx.Err() == nil {
		accidents, cancel := context.WithTimeout(ctx, time.Duration(r.Int64N(int64(2*between))))
		p.chaosPlane.suffer(accidents, r)
		cancel()
		p.servers[0].kill()
		p.plane.change(func() {
			for _, old := range slices.Sorted(maps.Keys(p.now())) {
				name, _ := p.unused(r)
				p.put(name, p.remove(old))
			}
		})
		pause(ctx, r, lasting)
		p.servers[0].start()
	}
}

// hasMoved reports whether a Listener has had another port after a revision.
func (p *listenerPlane) hasMoved(name string, since listenerState) (moved bool) {
	p.read(func() {
		moved = slices.ContainsFunc(p.history[name], func(is listenerState) bool {
			return is.revision > since.revision && is.port != since.port
		})
	})
	return moved
}

func (p *listenerPlane) read(f func()) {
	p.plane.mu.Lock()
	defer p.plane.mu.Unlock()
	f()
}
