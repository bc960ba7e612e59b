package integration

import (
	"context"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// sotwSpeaker speaks the state-of-the-world form.
type sotwSpeaker struct {
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node   *corev3.Node // nil after the first request
	types  map[string]*sotwType
}

// sotwType has the state of a type that each request repeats.
type sotwType struct {
	names          []string
	version, nonce string // of the last response
}

func openSotW(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient, node *corev3.Node) (speaker, error) {
	stream, err := ads.StreamAggregatedResources(ctx)
	return &sotwSpeaker{stream: stream, node: node, types: map[string]*sotwType{}}, err
}

func (s *sotwSpeaker) subscribe(typeURL string, add, remove []string) error {
	t := s.types[typeURL]
	if t == nil {
		t = &sotwType{}
		s.types[typeURL] = t
	}
	t.names = append(t.names, add...)
	t.names = slices.DeleteFunc(t.names, func(name string) bool { return slices.Contains(remove, name) })
	return s.send(typeURL)
}

func (s *sotwSpeaker) send(typeURL string) error {
	t := s.types[typeURL]
	req := &discoveryv3.DiscoveryRequest{
		TypeUrl: typeURL, ResourceNames: t.names, VersionInfo: t.version, ResponseNonce: t.nonce,
	}
	req.Node, s.node = s.node, nil
	return s.stream.Send(req)
}

func (s *sotwSpeaker) receive() (response, error) {
	m, err := s.stream.Recv()
	r := response{
		typeURL: m.GetTypeUrl(), nonce: m.GetNonce(), version: m.GetVersionInfo(),
		resources: map[string]held{}, errors: m.GetResourceErrors(),
	}
	for _, res := range m.GetResources() {
		name := innerName(res.GetValue())
		r.order = append(r.order, name)
		r.resources[name] = held{version: m.GetVersionInfo(), value: string(res.GetValue()), inner: name}
	}
	return r, err
}

func (s *sotwSpeaker) ack(r *response) error {
	t := s.types[r.typeURL]
	t.version, t.nonce = r.version, r.nonce
	// xDS: "Grouping Resources into Responses".
	r.full = endsSets(r.typeURL) || slices.Contains(t.names, wildcard)
	return s.send(r.typeURL)
}
