package integration

// A record of the streams, requests and responses at a control plane.

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	deltaserver "github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	sotwserver "github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
)

// seen is what a control plane has seen since its first start.
type seen struct {
	opened  int // number of streams so far
	streams map[streamID]*seenStream
	// requested and givenUp count, over all streams, the subscriptions and unsubscriptions of each topic.
	requested, givenUp map[topic]int
	sent               []topic // resources, in order; the names of removals have a - in front
	acks               int
	nacks              []string
}

type streamID struct {
	form form
	id   int64
}

// seenStream is an open stream.
type seenStream struct {
	form   form
	node   *corev3.Node
	wanted map[topic]bool
	// known has the initial_resource_versions.
	known map[topic]string
}

// String describes what was seen, for a failed test.
func (s *seen) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d streams opened, %d ACKs, NACKs %q, sent %v", s.opened, s.acks, s.nacks, s.sent)
	for id, stream := range s.streams {
		fmt.Fprintf(&b, "\nopen: %v of node %q wants %v", id, stream.node.GetId(), stream.wanted)
	}
	return b.String()
}

// wanted lists the names of a type with an open subscription. A name on two streams appears twice.
func (s *seen) wanted(typeURL string) (names []string) {
	for _, stream := range s.streams {
		for topic := range stream.wanted {
			if topic.typeURL == typeURL {
				names = append(names, topic.name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// only returns the one open stream, nil if there is not exactly one.
func (s *seen) only() *seenStream {
	if len(s.streams) == 1 {
		for _, stream := range s.streams {
			return stream
		}
	}
	return nil
}

// sentOf lists the names of a type in sent, after the first since entries.
func (s *seen) sentOf(typeURL string, since int) (names []string) {
	for _, sent := range s.sent[since:] {
		if sent.typeURL == typeURL {
			names = append(names, sent.name)
		}
	}
	slices.Sort(names)
	return names
}

// recorder records what a control plane sees.
type recorder struct{ watched[seen] }

func newRecorder() *recorder {
	r := &recorder{}
	r.value = seen{streams: map[streamID]*seenStream{}, requested: map[topic]int{}, givenUp: map[topic]int{}}
	return r
}

// look returns the result of f for the record.
func look[R any](r *recorder, f func(*seen) R) (result R) {
	r.read(func(s *seen) { result = f(s) })
	return result
}

func (r *recorder) open(id streamID) {
	r.update(func(s *seen) {
		s.opened++
		s.streams[id] = &seenStream{form: id.form, wanted: map[topic]bool{}, known: map[topic]string{}}
	})
}

func (r *recorder) close(id streamID) {
	r.update(func(s *seen) { delete(s.streams, id) })
}

func (s *seen) request(id streamID, node *corev3.Node, nonce string, nack error) *seenStream {
	stream := s.streams[id]
	if node != nil {
		stream.node = node
	}
	switch {
	case nack != nil:
		s.nacks = append(s.nacks, nack.Error())
	case nonce != "":
		s.acks++
	}
	return stream
}

func (s *seen) want(stream *seenStream, typeURL, name string) {
	if t := (topic{typeURL, name}); !stream.wanted[t] {
		stream.wanted[t] = true
		s.requested[t]++
	}
}

func (s *seen) giveUp(stream *seenStream, t topic) {
	if stream.wanted[t] {
		delete(stream.wanted, t)
		s.givenUp[t]++
	}
}

// rejection returns the error_detail of a request as an error, nil if there is none.
func rejection(detail interface{ GetMessage() string }, is bool) error {
	if !is {
		return nil
	}
	return fmt.Errorf("%s", detail.GetMessage())
}

func (r *recorder) deltaRequest(id int64, req *discoveryv3.DeltaDiscoveryRequest) {
	r.update(func(s *seen) {
		typeURL := req.GetTypeUrl()
		stream := s.request(streamID{delta, id}, req.GetNode(), req.GetResponseNonce(),
			rejection(req.GetErrorDetail(), req.GetErrorDetail() != nil))
		for name, version := range req.GetInitialResourceVersions() {
			stream.known[topic{typeURL, name}] = version
		}
		for _, name := range req.GetResourceNamesUnsubscribe() {
			s.giveUp(stream, topic{typeURL, name})
		}
		names := req.GetResourceNamesSubscribe()
		if len(names) == 0 && req.GetResponseNonce() == "" && len(req.GetResourceNamesUnsubscribe()) == 0 {
			names = []string{wildcard} // the legacy wildcard
		}
		for _, name := range names {
			s.want(stream, typeURL, name)
		}
	})
}

func (r *recorder) sotwRequest(id int64, req *discoveryv3.DiscoveryRequest) {
	r.update(func(s *seen) {
		typeURL := req.GetTypeUrl()
		stream := s.request(streamID{sotw, id}, req.GetNode(), req.GetResponseNonce(),
			rejection(req.GetErrorDetail(), req.GetErrorDetail() != nil))
		names := req.GetResourceNames()
		if len(names) == 0 && (req.GetResponseNonce() == "" || stream.wanted[topic{typeURL, wildcard}]) {
			names = []string{wildcard} // the legacy wildcard
		}
		now := make(map[string]bool, len(names)) // a map, because there may be very many names
		for _, name := range names {
			now[name] = true
			s.want(stream, typeURL, name)
		}
		for t := range stream.wanted {
			if t.typeURL == typeURL && !now[t.name] {
				s.giveUp(stream, t)
			}
		}
	})
}

func (r *recorder) deltaResponse(resp *discoveryv3.DeltaDiscoveryResponse) {
	r.update(func(s *seen) {
		for _, res := range resp.GetResources() {
			s.sent = append(s.sent, topic{resp.GetTypeUrl(), res.GetName()})
		}
		for _, name := range resp.GetRemovedResources() {
			s.sent = append(s.sent, topic{resp.GetTypeUrl(), "-" + name})
		}
	})
}

func (r *recorder) sotwResponse(resp *discoveryv3.DiscoveryResponse) {
	r.update(func(s *seen) {
		for _, res := range resp.GetResources() {
			s.sent = append(s.sent, topic{resp.GetTypeUrl(), innerName(res.GetValue())})
		}
	})
}

// eyes are the callbacks of go-control-plane that feed a recorder, in both forms.
type eyes struct{ *recorder }

var (
	_ sotwserver.Callbacks  = eyes{}
	_ deltaserver.Callbacks = eyes{}
)

// OnStreamOpen implements sotwserver.Callbacks.
func (e eyes) OnStreamOpen(_ context.Context, id int64, _ string) error {
	e.open(streamID{sotw, id})
	return nil
}

// OnStreamClosed implements sotwserver.Callbacks.
func (e eyes) OnStreamClosed(id int64, _ *corev3.Node) { e.close(streamID{sotw, id}) }

// OnStreamRequest implements sotwserver.Callbacks.
func (e eyes) OnStreamRequest(id int64, req *discoveryv3.DiscoveryRequest) error {
	e.sotwRequest(id, req)
	return nil
}

// OnStreamResponse implements sotwserver.Callbacks.
func (e eyes) OnStreamResponse(_ context.Context, _ int64, _ *discoveryv3.DiscoveryRequest, resp *discoveryv3.DiscoveryResponse) {
	e.sotwResponse(resp)
}

// OnDeltaStreamOpen implements deltaserver.Callbacks.
func (e eyes) OnDeltaStreamOpen(_ context.Context, id int64, _ string) error {
	e.open(streamID{delta, id})
	return nil
}

// OnDeltaStreamClosed implements deltaserver.Callbacks.
func (e eyes) OnDeltaStreamClosed(id int64, _ *corev3.Node) { e.close(streamID{delta, id}) }

// OnStreamDeltaRequest implements deltaserver.Callbacks.
func (e eyes) OnStreamDeltaRequest(id int64, req *discoveryv3.DeltaDiscoveryRequest) error {
	e.deltaRequest(id, req)
	return nil
}

// OnStreamDeltaResponse implements deltaserver.Callbacks.
func (e eyes) OnStreamDeltaResponse(_ int64, _ *discoveryv3.DeltaDiscoveryRequest, resp *discoveryv3.DeltaDiscoveryResponse) {
	e.deltaResponse(resp)
}
