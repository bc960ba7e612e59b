package cache

import "github.com/xds-relay/xds-relay/cache/resource"

// Resources are in a package of their own, so that cache/internal/members can use them. Other packages
// use the following names.
type (
	// Resource is one version of one resource, encoded once: see [resource.Resource].
	Resource = resource.Resource
	// Spec is what a Resource is made of: see [resource.Spec].
	Spec = resource.Spec
	// Form says how one client receives a resource: see [resource.Form].
	Form = resource.Form
)

// The forms can be combined.
const (
	// WithTTL is [resource.WithTTL].
	WithTTL = resource.WithTTL
	// Wrapped is [resource.Wrapped].
	Wrapped = resource.Wrapped
	// ByLocator is [resource.ByLocator].
	ByLocator = resource.ByLocator
	// Heartbeat is [resource.Heartbeat].
	Heartbeat = resource.Heartbeat
)

// HasHeldSecrets is [resource.HasHeldSecrets].
func HasHeldSecrets(typeURL string) bool { return resource.HasHeldSecrets(typeURL) }

// HasClaims is [resource.HasClaims].
func HasClaims(typeURL string) bool { return resource.HasClaims(typeURL) }

// EndpointsOf is [resource.EndpointsOf].
func EndpointsOf(cluster *Resource) string { return resource.EndpointsOf(cluster) }

// NewResource is [resource.New].
func NewResource(s Spec) *Resource { return resource.New(s) }
