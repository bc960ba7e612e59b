package relay

import (
	"go.opentelemetry.io/otel/attribute"
)

// Metrics use the label names of gRPC's xDS client where it has the same label. gRFC A78.

// authorityLabel is the label of an authority, by its name in the configuration.
func authorityLabel(name string) attribute.KeyValue {
	return attribute.String("grpc.xds.authority", name)
}

// typeLabel is the label of a resource type, as xdstype.Label has it.
func typeLabel(label string) attribute.KeyValue {
	return attribute.String("grpc.xds.resource_type", label)
}
