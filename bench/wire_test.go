package main

import (
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

func TestReadyMadeResponsesAreThoseOfTheProtocol(t *testing.T) {
	spec := &Spec{Resources: 2, Size: 1 << 10, PerClient: 2}
	var value endpointv3.ClusterLoadAssignment
	var delta discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(append(spec.encodeResource(1, 7, true), spec.tail(7, true)...), &delta); err != nil {
		t.Fatal(err)
	}
	r := delta.GetResources()[0]
	if err := r.GetResource().UnmarshalTo(&value); err != nil {
		t.Fatal(err)
	}
	if delta.GetTypeUrl() != endpointType || r.GetName() != spec.name(1) || r.GetVersion() != "v7" || value.GetClusterName() != spec.name(1) {
		t.Errorf("got %v", &delta)
	}
	if size := proto.Size(r); size < spec.Size-200 || size > spec.Size+200 {
		t.Errorf("got a resource of %d bytes, want about %d", size, spec.Size)
	}
	var sotw discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(append(spec.encodeResource(1, 7, false), spec.tail(7, false)...), &sotw); err != nil {
		t.Fatal(err)
	}
	if sotw.GetTypeUrl() != endpointType || sotw.GetVersionInfo() != "v7" || len(sotw.GetResources()) != 1 {
		t.Errorf("got %v", &sotw)
	}
}

func TestRequestsAreReadInBothForms(t *testing.T) {
	delta, err := proto.Marshal(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: endpointType, ResourceNamesSubscribe: []string{"a", "b"}, ResourceNamesUnsubscribe: []string{"c"}, ResponseNonce: "1",
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := parseRequest(delta, true)
	if err != nil || r.typeURL != endpointType || r.nonce != "1" || len(r.names) != 2 || len(r.dropped) != 1 {
		t.Errorf("got %+v, %v", r, err)
	}
	sotw, err := proto.Marshal(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: []string{"a"}, ResponseNonce: "2", VersionInfo: "v"})
	if err != nil {
		t.Fatal(err)
	}
	r, err = parseRequest(sotw, false)
	if err != nil || r.typeURL != endpointType || r.nonce != "2" || r.version != "v" || len(r.names) != 1 {
		t.Errorf("got %+v, %v", r, err)
	}
}
