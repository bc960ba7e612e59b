package graph

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/xds-relay/xds-relay/client/render" // all of Envoy's messages
)

// notNames are the fields of Envoy's API that look like references, but name no resource, or none that is known
// before a request arrives.
var notNames = map[protoreflect.FullName]string{
	"envoy.config.core.v3.Node.cluster":                                                      "the client's own",
	"envoy.config.endpoint.v3.ClusterLoadAssignment.cluster_name":                            "the resource's own name",
	"envoy.extensions.filters.http.fault.v3.HTTPFault.upstream_cluster":                      "a condition",
	"envoy.extensions.clusters.dynamic_modules.v3.ClusterConfig.cluster_name":                "a name inside of the module",
	"envoy.extensions.filters.network.reverse_tunnel.v3.ReverseTunnel.required_cluster_name": "a condition",
	"envoy.extensions.filters.network.reverse_tunnel.v3.Validation.cluster_id_format":        "a condition",
	"envoy.data.dns.v3.DnsTable.DnsEndpoint.cluster_name":                                    "of a DNS filter whose clusters are in the bootstrap",
	"envoy.data.dns.v3.DnsTable.DnsServiceTarget.cluster_name":                               "of a DNS filter whose clusters are in the bootstrap",
	"envoy.extensions.clusters.aggregate.v3.AggregateClusterResource.resource_name":          "of a type that is no discovery service's",
}

// otherSources are config sources without a name, or for something that is not a resource.
var otherSources = map[protoreflect.FullName]string{
	"envoy.config.cluster.v3.Cluster.lrs_server":                                                    "for load reports",
	"envoy.config.listener.v3.Listener.FcdsConfig.config_source":                                    "of a type that is no discovery service's",
	"envoy.extensions.access_loggers.filters.process_ratelimit.v3.DynamicTokenBucket.config_source": "of a type that is no discovery service's",
	"envoy.extensions.clusters.aggregate.v3.AggregateClusterResource.config_source":                 "of a type that is no discovery service's",
	"envoy.extensions.filters.http.on_demand.v3.OnDemandCds.source":                                 "for the cluster of a request",
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.OnDemand.odcds_config":                  "for the cluster of a connection",
	"envoy.extensions.filters.network.http_connection_manager.v3.ScopedRoutes.rds_config_source":    "for the RouteConfigurations of the scopes",
	"envoy.config.cluster.v3.Cluster.EdsClusterConfig.eds_config":                                   "in Cluster",
	"envoy.config.route.v3.Vhds.config_source":                                                      "in RouteConfiguration",
	"envoy.config.core.v3.ExtensionConfigSource.config_source":                                      "in config_discovery",
}

func TestFieldsThatNameResources(t *testing.T) {
	sources := map[protoreflect.FullName]bool{}
	for name, to := range nameFields {
		field := fieldOf(t, name)
		if field.Kind() != protoreflect.StringKind {
			t.Errorf("%s is no string", name)
		}
		if to.source != "" {
			sources[fieldOf(t, name.Parent().Append(to.source)).FullName()] = true
		}
	}
	for message := range messageFields {
		if _, err := protoregistry.GlobalTypes.FindMessageByName(message); err != nil {
			t.Errorf("%s: %v", message, err)
		}
	}
	eachField(func(field protoreflect.FieldDescriptor) {
		name := field.FullName()
		message := field.Message()
		switch {
		case message != nil && message.FullName() == "envoy.config.core.v3.ExtensionConfigSource":
			if messageFields[name.Parent()] == nil {
				t.Errorf("%s: the extensions that it discovers are no references", name)
			}
		case message != nil && message.FullName() == "envoy.config.core.v3.ConfigSource":
			if messageFields[name.Parent()] == nil && !sources[name] && otherSources[name] == "" {
				t.Errorf("%s: what it is the source of is no reference", name)
			}
		case field.Kind() == protoreflect.StringKind && looksLikeName(string(field.Name())):
			if _, ok := nameFields[name]; !ok && notNames[name] == "" {
				t.Errorf("%s is neither a reference nor in notNames", name)
			}
		}
	})
	for name := range otherSources {
		fieldOf(t, name)
	}
}

// looksLikeName reports whether the name of a field is one that references have.
func looksLikeName(field string) bool {
	return strings.HasSuffix(field, "cluster") || strings.HasSuffix(field, "cluster_name") || field == "clusters" || field == "cluster_names" ||
		field == "route_config_name" || field == "route_configuration_name" || field == "cluster_header" || strings.Contains(field, "secret_name")
}

func fieldOf(t *testing.T, name protoreflect.FullName) protoreflect.FieldDescriptor {
	t.Helper()
	message, err := protoregistry.GlobalTypes.FindMessageByName(name.Parent())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	field := message.Descriptor().Fields().ByName(name.Name())
	if field == nil {
		t.Fatalf("there is no %s", name)
	}
	return field
}

// eachField calls f for each field of a message of Envoy's API v3 that can be in a resource.
func eachField(f func(protoreflect.FieldDescriptor)) {
	protoregistry.GlobalTypes.RangeMessages(func(of protoreflect.MessageType) bool {
		name := string(of.Descriptor().FullName())
		isIn := strings.HasPrefix(name, "envoy.config.") || strings.HasPrefix(name, "envoy.extensions.") || strings.HasPrefix(name, "envoy.data.dns.")
		if !isIn || strings.Contains(name, ".v2") || strings.HasPrefix(name, "envoy.config.bootstrap.") || strings.Contains(name, "Stats") {
			return true
		}
		for i := range of.Descriptor().Fields().Len() {
			f(of.Descriptor().Fields().Get(i))
		}
		return true
	})
}
