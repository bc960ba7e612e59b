package wire

import (
	"bytes"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"pgregory.net/rapid"
)

func TestFieldNumbersAreThoseOfTheAPI(t *testing.T) {
	for _, test := range []struct {
		message proto.Message
		fields  map[protoreflect.Name]protoreflect.FieldNumber
	}{
		{&discoveryv3.DiscoveryRequest{}, map[protoreflect.Name]protoreflect.FieldNumber{
			"version_info": SotWRequest.Version, "node": SotWRequest.Node, "resource_names": SotWRequest.Subscribe, "type_url": SotWRequest.TypeURL,
			"response_nonce": SotWRequest.Nonce, "error_detail": SotWRequest.ErrorDetail, "resource_locators": SotWRequest.Locators,
		}},
		{&discoveryv3.DeltaDiscoveryRequest{}, map[protoreflect.Name]protoreflect.FieldNumber{
			"node": DeltaRequest.Node, "type_url": DeltaRequest.TypeURL, "response_nonce": DeltaRequest.Nonce, "error_detail": DeltaRequest.ErrorDetail,
			"resource_names_subscribe": DeltaRequest.Subscribe, "resource_names_unsubscribe": DeltaRequest.Unsubscribe,
			"resource_locators_subscribe": DeltaRequest.Locators, "resource_locators_unsubscribe": DeltaRequest.LocatorsUnsubscribe,
		}},
		{&discoveryv3.DiscoveryResponse{}, map[protoreflect.Name]protoreflect.FieldNumber{
			"version_info": ResponseVersion, "resources": ResponseResources, "type_url": ResponseTypeURL, "nonce": ResponseNonce, "resource_errors": SotWErrors,
		}},
		{&discoveryv3.DeltaDiscoveryResponse{}, map[protoreflect.Name]protoreflect.FieldNumber{
			"system_version_info": ResponseVersion, "resources": ResponseResources, "type_url": ResponseTypeURL, "nonce": ResponseNonce,
			"removed_resources": DeltaRemoved, "removed_resource_names": DeltaRemovedNames, "resource_errors": DeltaErrors,
		}},
		{&discoveryv3.Resource{}, map[protoreflect.Name]protoreflect.FieldNumber{
			"version": ResourceVersion, "resource": ResourceAny, "name": ResourceName, "aliases": ResourceAliases, "ttl": ResourceTTL,
			"cache_control": ResourceCacheControl, "resource_name": ResourceNameMessage,
		}},
		{&discoveryv3.Resource_CacheControl{}, map[protoreflect.Name]protoreflect.FieldNumber{"do_not_cache": CacheControlDoNotCache}},
		{&discoveryv3.ResourceName{}, map[protoreflect.Name]protoreflect.FieldNumber{"name": NameName, "dynamic_parameter_constraints": NameConstraints}},
		{&discoveryv3.ResourceError{}, map[protoreflect.Name]protoreflect.FieldNumber{"resource_name": ErrorName, "error_detail": ErrorDetail}},
		{&statuspb.Status{}, map[protoreflect.Name]protoreflect.FieldNumber{"code": StatusCode, "message": StatusMessage, "details": StatusDetails}},
		{&anypb.Any{}, map[protoreflect.Name]protoreflect.FieldNumber{"type_url": AnyTypeURL, "value": AnyValue}},
		{&durationpb.Duration{}, map[protoreflect.Name]protoreflect.FieldNumber{"seconds": DurationSeconds, "nanos": DurationNanos}},
		{&clusterv3.Cluster{}, map[protoreflect.Name]protoreflect.FieldNumber{"name": ClusterName, "eds_cluster_config": ClusterEDSConfig}},
		{&clusterv3.Cluster_EdsClusterConfig{}, map[protoreflect.Name]protoreflect.FieldNumber{"eds_config": EDSConfig, "service_name": EDSServiceName}},
		{&corev3.ConfigSource{}, map[protoreflect.Name]protoreflect.FieldNumber{"path": ConfigSourcePath, "path_config_source": ConfigSourcePathConfig}},
	} {
		d := test.message.ProtoReflect().Descriptor()
		for name, number := range test.fields {
			if f := d.Fields().ByName(name); f == nil || f.Number() != number {
				t.Errorf("%s.%s is %v, not %d", d.Name(), name, f, number)
			}
		}
	}
}

// protobuf decodes what was appended, and the sizes are right.
func TestAppendedFieldsAreProtobufs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name, alias := rapid.String().Draw(t, "name"), rapid.String().Draw(t, "alias")
		ttl := time.Duration(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(t, "ttl"))
		var b []byte
		b = AppendString(b, ResourceName, name)
		if len(b) != SizeString(name) {
			t.Fatalf("%d bytes, not %d", len(b), SizeString(name))
		}
		b = AppendBytes(b, ResourceAliases, []byte(alias))
		at := len(b)
		b = AppendDuration(b, ResourceTTL, ttl)
		if len(b)-at != SizeBytes(SizeDuration(ttl)) {
			t.Fatalf("%d bytes, not %d", len(b)-at, SizeBytes(SizeDuration(ttl)))
		}
		b = AppendResourceName(b, ResourceNameMessage, alias, "")
		var got discoveryv3.Resource
		if err := proto.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if got.GetName() != name || got.GetAliases()[0] != alias || got.GetTtl().AsDuration() != ttl || got.GetResourceName().GetName() != alias {
			t.Fatalf("got %v", &got)
		}
		if value, err := Last(b, ResourceName); string(value) != name || err != nil {
			t.Fatalf("the name is %q, %v", value, err)
		}
		rest := Without(b, ResourceAliases)
		if err := proto.Unmarshal(rest, &got); err != nil || len(got.GetAliases()) != 0 || got.GetName() != name {
			t.Fatalf("without aliases it is %v, %v", &got, err)
		}
		if again := Without(rest, ResourceAliases); &again[0] != &rest[0] {
			t.Fatal("what lacks a field is copied")
		}
	})
}

// FuzzWalk holds that a walk ends without an error only where protobuf finds none, and
// passes each byte once.
func FuzzWalk(f *testing.F) {
	for _, m := range []proto.Message{
		&discoveryv3.Resource{Name: "a", Version: "1", Ttl: durationpb.New(time.Second), Aliases: []string{"b"}},
		&clusterv3.Cluster{Name: "c", AltStatName: "d"},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(bytes.Clone(b), 0xff))
	}
	f.Add(protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber+1)<<3))
	f.Fuzz(func(t *testing.T, message []byte) {
		walk, length := Walk(message), 0
		ahead, found, all := walk.Ahead(1), 0, true // all: every field is bytes
		for walk.Next() {
			length += len(walk.Raw)
			if all = all && walk.Type == protowire.BytesType; walk.Num == 1 && all {
				found++
			}
		}
		if walk.Err == nil && ahead != found {
			t.Errorf("%d fields 1 are ahead, and %d come", ahead, found)
		}
		err := proto.Unmarshal(message, &emptypb.Empty{})
		if (walk.Err == nil) != (err == nil) {
			t.Errorf("the walk ends with %v, protobuf with %v", walk.Err, err)
		}
		if walk.Err == nil && length != len(message) {
			t.Errorf("it passed %d bytes of %d", length, len(message))
		}
		var cluster clusterv3.Cluster
		if name, err := InnerName(message); proto.Unmarshal(message, &cluster) == nil && (name != cluster.GetName() || err != nil) {
			t.Errorf("the name is %q, %v, and not %q", name, err, cluster.GetName())
		}
	})
}
