package integration

// Streams of chaos clients, in both forms.

import (
	"context"
	"maps"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
)

// chaosStream is a stream in either form.
type chaosStream interface {
	request(h *chaosHeld, typeURL string, add, remove []string) error
	// barrier sends the barrier after a request for a set: see chaosBarriers.
	barrier(h *chaosHeld, set topic) error
	receive() (response, error)
	answer(h *chaosHeld, r *response, nack *rpcstatus.Status) error
}

func (c *chaosClient) open(ctx context.Context, conn *grpc.ClientConn) (chaosStream, error) {
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	who := node(strings.ReplaceAll(c.id, " ", "-"), c.plane.name)
	if len(c.view) > 0 {
		who.Cluster = viewerName
	}
	who.UserAgentName = string(c.form)
	if c.form == delta {
		stream, err := ads.DeltaAggregatedResources(ctx)
		return &chaosDelta{deltaSpeaker{stream: stream, node: who}}, err
	}
	stream, err := ads.StreamAggregatedResources(ctx)
	return &chaosSotW{sotwSpeaker{stream: stream, node: who}}, err
}

type chaosDelta struct{ deltaSpeaker }

func (s *chaosDelta) request(h *chaosHeld, typeURL string, add, remove []string) error {
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: add, ResourceNamesUnsubscribe: remove}
	if h.nonces[typeURL] == "" && remove == nil {
		req.InitialResourceVersions = map[string]string{}
		for t, version := range h.versions {
			if t.typeURL == typeURL {
				req.InitialResourceVersions[t.name] = version
			}
		}
	}
	if _, begun := h.nonces[typeURL]; !begun {
		h.nonces[typeURL] = ""
	} else {
		req.InitialResourceVersions = nil // only in the first request
	}
	return s.send(req)
}

func (s *chaosDelta) answer(_ *chaosHeld, r *response, nack *rpcstatus.Status) error {
	return s.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.typeURL, ResponseNonce: r.nonce, ErrorDetail: nack})
}

func (s *chaosDelta) barrier(h *chaosHeld, set topic) error {
	b := &h.barriers
	b.sent++
	b.after[set] = b.sent
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: routeType, ResourceNamesSubscribe: []string{chaosBarrier(b.sent)}}
	if b.sent > 1 {
		req.ResourceNamesUnsubscribe = []string{chaosBarrier(b.sent - 1)}
	}
	return s.send(req)
}

type chaosSotW struct{ sotwSpeaker }

func (s *chaosSotW) request(h *chaosHeld, typeURL string, _, _ []string) error {
	return s.say(h, typeURL, nil)
}

func (s *chaosSotW) say(h *chaosHeld, typeURL string, nack *rpcstatus.Status) error {
	req := &discoveryv3.DiscoveryRequest{
		TypeUrl: typeURL, ResourceNames: h.names(typeURL), VersionInfo: h.infos[typeURL],
		ResponseNonce: h.nonces[typeURL], ErrorDetail: nack,
	}
	req.Node, s.node = s.node, nil
	h.requested[typeURL] = append(h.requested[typeURL], maps.Clone(h.wanted))
	return s.stream.Send(req)
}

func (s *chaosSotW) receive() (response, error) {
	r, err := s.sotwSpeaker.receive()
	r.full = r.typeURL == clusterType
	return r, err
}

func (s *chaosSotW) barrier(*chaosHeld, topic) error { return nil }

func (s *chaosSotW) answer(h *chaosHeld, r *response, nack *rpcstatus.Status) error {
	return s.say(h, r.typeURL, nack)
}
