package graph

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// This file handles references that depend on several fields of a message.

// endpoints handles a Cluster of type EDS: its ClusterLoadAssignment has the name in eds_cluster_config, or that of
// the cluster.
func (w *walk) endpoints(m protoreflect.Message) {
	const eds = 3
	if kind, _ := get(m, "type").(protoreflect.EnumNumber); kind != eds {
		return
	}
	r := Reference{To: ID{xdstype.EndpointsV3, textOf(m, "name")}}
	field := protoreflect.Name("name")
	if config, ok := get(m, "eds_cluster_config").(protoreflect.Message); ok {
		r.Source = sourceIn(config, "eds_config")
		if name := textOf(config, "service_name"); name != "" {
			r.To.Name, field = name, "eds_cluster_config.service_name"
		}
	}
	w.add(r, field, "")
}

// virtualHosts handles a RouteConfiguration with vhds: the names of its VirtualHosts begin with its own name, and
// clients discover them on demand.
func (w *walk) virtualHosts(m protoreflect.Message) {
	vhds, ok := get(m, "vhds").(protoreflect.Message)
	if !ok {
		return
	}
	target := ID{xdstype.VirtualHostV3, textOf(m, "name") + "/" + everything}
	w.add(Reference{To: target, Source: sourceIn(vhds, "config_source"), Many: true}, "vhds", "")
}

// scopes handles scoped_rds: it references all ScopedRouteConfigurations, or those of a collection.
func (w *walk) scopes(m protoreflect.Message) {
	r := Reference{To: ID{xdstype.ScopedRouteV3, everything}, Source: sourceIn(m, "scoped_rds_config_source"), Many: true}
	field := protoreflect.Name("scoped_rds_config_source")
	if locator := textOf(m, "srds_resources_locator"); locator != "" {
		r.To.Name, field = locator, "srds_resources_locator"
	}
	w.add(r, field, "")
}

// secret handles an SdsSecretConfig: without a config source it names a secret of the bootstrap.
func (w *walk) secret(m protoreflect.Message) {
	r := Reference{To: ID{xdstype.SecretV3, textOf(m, "name")}, Source: sourceIn(m, "sds_config")}
	if get(m, "sds_config") == nil {
		r.Source = Bootstrap
	}
	w.add(r, "name", "")
}

// extension handles an extension with config_discovery: its TypedExtensionConfig has the extension's name.
func (w *walk) extension(m protoreflect.Message) {
	discovery, ok := get(m, "config_discovery").(protoreflect.Message)
	if !ok {
		return
	}
	w.add(Reference{
		To:       ID{xdstype.ExtensionConfigV3, textOf(m, "name")},
		Source:   sourceIn(discovery, "config_source"),
		Optional: get(discovery, "default_config") != nil,
	}, "config_discovery", "")
}
