package integration

import (
	"context"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// deltaSpeaker speaks the delta form. xDS: "Incremental xDS".
type deltaSpeaker struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node   *corev3.Node // nil after the first request
}

func openDelta(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient, node *corev3.Node) (speaker, error) {
	stream, err := ads.DeltaAggregatedResources(ctx)
	return &deltaSpeaker{stream: stream, node: node}, err
}

func (s *deltaSpeaker) subscribe(typeURL string, add, remove []string) error {
	return s.send(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: typeURL, ResourceNamesSubscribe: add, ResourceNamesUnsubscribe: remove,
	})
}

func (s *deltaSpeaker) send(req *discoveryv3.DeltaDiscoveryRequest) error {
	req.Node, s.node = s.node, nil
	return s.stream.Send(req)
}

func (s *deltaSpeaker) receive() (response, error) {
	m, err := s.stream.Recv()
	r := response{
		typeURL: m.GetTypeUrl(), nonce: m.GetNonce(), version: m.GetSystemVersionInfo(), resources: map[string]held{},
		removed: m.GetRemovedResources(), errors: m.GetResourceErrors(),
	}
	slices.Sort(r.removed)
	for _, res := range m.GetResources() {
		value := res.GetResource().GetValue()
		r.order = append(r.order, res.GetName())
		r.resources[res.GetName()] = held{version: res.GetVersion(), value: string(value), inner: innerName(value)}
	}
	return r, err
}

func (s *deltaSpeaker) ack(r *response) error {
	return s.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.typeURL, ResponseNonce: r.nonce})
}
