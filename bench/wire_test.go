package main

import (
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/xds-relay/xds-relay/internal/wire"
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

func TestStampsAreFoundInMessages(t *testing.T) {
	spec := &Spec{Delta: true, Stamped: true, Resources: 2, Size: 100, PerClient: 2}
	before := time.Now()
	message := append(spec.encodeResource(0, 1, true), spec.encodeResource(1, 1, true)...)
	n := 0
	stamps(append(message, stampMark...), func(at time.Time) {
		n++
		if at.Before(before.Truncate(time.Nanosecond)) || at.After(time.Now()) {
			t.Errorf("sent at %v, want now", at)
		}
	})
	if n != spec.Resources {
		t.Errorf("found %d stamps, want %d", n, spec.Resources)
	}
}

// A client of the floor's gets all resources, in messages that a client takes.
func TestTheFloorCutsWhatMayBeCut(t *testing.T) {
	const limit = 4 << 20
	for _, spec := range []*Spec{{Delta: true, Glob: true, Resources: 30_000, Size: 100, PerClient: 1}, {Full: true, Resources: 9000, Size: 1 << 10, PerClient: 1}} {
		f := newFloor(spec)
		n, longest := 0, 0
		messages := f.messages(spec.indexes(0), 1)
		for _, m := range messages {
			longest = max(longest, m.body.Len())
			fields := wire.Walk(m.body.Materialize())
			for fields.Next() {
				if fields.Num == wire.ResponseResources {
					n++
				}
			}
			if fields.Err != nil {
				t.Fatal(fields.Err)
			}
		}
		if n != spec.Resources || spec.Delta && longest > limit || !spec.Delta && len(messages) != 1 {
			t.Errorf("%+v: %d messages of up to %d bytes have %d resources", spec, len(messages), longest, n)
		}
	}
}

func TestMetricIsReadFromItsPage(t *testing.T) {
	const page = "# HELP a_b about\n# TYPE a_b gauge\na_b_c 1\na_b 5.5e+06\n"
	if v, ok := metricIn(page, "a_b"); !ok || v != 5.5e6 {
		t.Errorf("got %v, %v", v, ok)
	}
	if _, ok := metricIn(page, "a"); ok {
		t.Error("found what is not there")
	}
}
