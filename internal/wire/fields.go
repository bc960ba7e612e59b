// Package wire reads and writes encoded messages of
// envoy/service/discovery/v3/discovery.proto, and the messages in them, without
// decoding them: the field numbers, walks over the fields of messages, and functions
// that append fields. It does not depend on resources or sessions.
package wire

// DiscoveryResponse and DeltaDiscoveryResponse. The first four have the same numbers in
// both. DiscoveryResponse.resources and DeltaDiscoveryResponse.resources have the number
// that Resource.resource has, too.
const (
	ResponseVersion   = 1 // delta: system_version_info
	ResponseResources = 2
	ResponseTypeURL   = 4
	ResponseNonce     = 5

	SotWErrors        = 7 // resource_errors
	DeltaRemoved      = 6 // removed_resources
	DeltaRemovedNames = 8 // removed_resource_names, of ResourceName messages
	DeltaErrors       = 9 // resource_errors
	// DeltaComplete is between relays only: the wildcards and globs whose first answer is complete with the response.
	// Others skip the field, which they do not know.
	DeltaComplete = 10_000
)

// Resource.
const (
	ResourceVersion      = 1
	ResourceAny          = 2 // resource
	ResourceName         = 3
	ResourceAliases      = 4
	ResourceTTL          = 6
	ResourceCacheControl = 7
	ResourceNameMessage  = 8 // resource_name, a ResourceName message
)

// Messages in the ones above.
const (
	CacheControlDoNotCache = 1

	NameName        = 1 // of ResourceName
	NameConstraints = 2 // dynamic_parameter_constraints

	ErrorName   = 1 // of ResourceError, a ResourceName message
	ErrorDetail = 2 // a google.rpc.Status

	StatusCode    = 1
	StatusMessage = 2
	StatusDetails = 3

	AnyTypeURL = 1
	AnyValue   = 2

	DurationSeconds = 1
	DurationNanos   = 2
)

// InnerNameField is the field in which nearly every xDS resource has its own name.
const InnerNameField = 1

// Envoy's Cluster.
const (
	ClusterName      = 1
	ClusterEDSConfig = 3 // eds_cluster_config
	EDSConfig        = 1 // of Cluster.EdsClusterConfig: eds_config, a ConfigSource
	EDSServiceName   = 2 // of Cluster.EdsClusterConfig

	ConfigSourcePath       = 1 // of ConfigSource
	ConfigSourcePathConfig = 8 // of ConfigSource: path_config_source
)
