package integration

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
)

// movingPlane ends the first stream before it has answered. So the relay requests the type on a stream of its own, and on
// the shared one again once that is answered. moves is called before that answer is sent, after which the stream ends.
type movingPlane struct {
	*collectionPlane
	streams atomic.Int64
	moves   func()
}

// DeltaAggregatedResources implements the service in delta.
func (p *movingPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return p.collectionPlane.DeltaAggregatedResources(&movingStream{stream, p, p.streams.Add(1)})
}

type movingStream struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	plane  *movingPlane
	number int64
}

// Send implements the server's side of a stream.
func (s *movingStream) Send(r *discoveryv3.DeltaDiscoveryResponse) error {
	send := s.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Send
	switch s.number {
	case 1:
		return errChaos
	case 2:
		s.plane.moves()
		if err := send(r); err != nil {
			return err
		}
		return errChaos
	}
	return send(r)
}

// TestANameIsKeptWhileItsGlobIsBehind checks that a client that unsubscribes from a name, and still has the glob of its
// directory, keeps the resource, also if the relay has the glob as it was on an earlier stream, when the resource did not
// exist. On the new stream, everything in the answer may be for the names alone: the glob has no answer for a second.
func TestANameIsKeptWhileItsGlobIsBehind(t *testing.T) {
	glob := chaosGlob(delta)
	first, second, third := topic{endpointType, glob + "1"}, topic{endpointType, glob + "2"}, topic{endpointType, glob + "3"}
	resource := func(t topic) *discoveryv3.Resource {
		return &discoveryv3.Resource{Name: t.name, Version: "1", Resource: chaosResource(t, 1)}
	}
	p := &movingPlane{collectionPlane: &collectionPlane{
		speaks: delta, says: map[topic]*discoveryv3.Resource{third: resource(third)}, changed: make(chan struct{}),
	}}
	p.moves = func() {
		p.change(func() {
			p.says[first] = resource(first)
			delete(p.says, third)
		})
	}
	at := openPort(t)
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, p)
	serve(s, at.listen())
	t.Cleanup(s.Stop)
	r := startRelay(t, prelude+fmt.Sprintf("authorities: [{name: delta, guard: {ratio: 1}, servers: [{address: %s, protocol: delta, backoff: {base: 20ms, max: 200ms}}]}]\n", at.address))
	c := newClient(t, r, delta, node("client", "clients"))
	c.subscribe(endpointType, glob+wildcard, first.name, second.name)
	c.await(t, "the name that exists now", func(v *view) bool { return v.held[first].value != "" && v.held[third].value != "" })
	c.unsubscribe(endpointType, first.name)
	c.await(t, "the glob's answer", func(v *view) bool { return v.gone[third] })
	c.read(func(v *view) {
		since := slices.Index(v.log, first)
		if slices.Contains(v.log[since:], topic{first.typeURL, "-" + first.name}) {
			t.Errorf("the client was sent that %s is gone: %v", first.name, v)
		}
	})
}
