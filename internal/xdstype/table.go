// Package xdstype is the table of the resource types that the relay knows: their type
// URLs, their discovery services, the words that people use for them, and the rules of
// the protocol that differ between types. The relay passes on resources of any other
// type without looking inside, under the rules of [Other].
//
// A new type is one line in the table (ARCHITECTURE.md, "Two things to add", says what its service and the docs need).
package xdstype

import (
	"strings"
)

// Prefix begins every type URL. xDS: "Resource Types".
const Prefix = "type.googleapis.com/"

// Type is a resource type, in all versions of the API that have it.
type Type struct {
	// Word and Abbreviation are what people call it: "cluster" and "cds". A type
	// without words has neither.
	Word, Abbreviation string
	// Order is the type's place on an aggregated stream: additions and changes of a
	// type with a lower Order are sent first. xDS: "Eventual consistency considerations".
	Order uint8
	// FullState: a SotW response has everything that the client requested, also by name.
	// So a requested name that is missing does not exist. For a wildcard, this holds for
	// all types. xDS: "Grouping Resources into Responses".
	FullState bool
	// Referenced: resources of other types refer to resources of this type. So one that is removed may still be in
	// use until the changes of the other types have been sent. xDS: "Eventual consistency considerations".
	Referenced bool
	// Claims: a resource claims what no other one can have at the same time, such as a Listener its addresses. So one that
	// takes a claim proves that the former owner is gone: see resource.Resource.Claims.
	Claims bool
	// OneByOne: clients apply the resources of a response one after another, after its removals. So they refuse one that
	// takes a claim of a resource that moves away in the same response. Of other types they apply a response as a whole.
	OneByOne bool
	// Naming says where a resource of the type has its name.
	Naming Naming
	// V3 and V2 are the type's discovery services. V2 is nil if version 2 of the API
	// has none, and both are nil if no version has one.
	V3, V2 *Service

	url string // in version 3 of the API
}

// Service is a discovery service: the service of one type, or the aggregated one.
// xDS: "API flow", "Aggregated Discovery Service".
type Service struct {
	Name string // "envoy.service.cluster.v3.ClusterDiscoveryService"
	// TypeURL is the type that the service implies; empty for the aggregated service.
	TypeURL string
	// The names of the methods, empty where the API defines none.
	Stream, Delta, Fetch string
	// Path is the HTTP path of Fetch over REST. xDS: "REST-JSON polling subscriptions".
	Path string
	// V2: the service belongs to the v2 transport.
	V2 bool
}

// Method returns the full gRPC name of a method, or "" if name is empty.
func (s *Service) Method(name string) string {
	if name == "" {
		return ""
	}
	return "/" + s.Name + "/" + name
}

// Naming says where a resource has its name.
type Naming uint8

const (
	// NameInside means that the name is field 1 of the resource. This is the default.
	NameInside Naming = iota
	// NameOutside means that only the Resource message around the resource has the name. Field 1 has
	// another meaning.
	NameOutside
	// NoName means that the type has one resource without a name, which is the whole answer to a
	// wildcard.
	NoName
)

// The type URLs of the API.
const (
	ListenerV3         = Prefix + "envoy.config.listener.v3.Listener"
	RouteV3            = Prefix + "envoy.config.route.v3.RouteConfiguration"
	ScopedRouteV3      = Prefix + "envoy.config.route.v3.ScopedRouteConfiguration"
	VirtualHostV3      = Prefix + "envoy.config.route.v3.VirtualHost"
	ClusterV3          = Prefix + "envoy.config.cluster.v3.Cluster"
	EndpointsV3        = Prefix + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	LocalityEndpointV3 = Prefix + "envoy.config.endpoint.v3.LbEndpoint"
	SecretV3           = Prefix + "envoy.extensions.transport_sockets.tls.v3.Secret"
	RuntimeV3          = Prefix + "envoy.service.runtime.v3.Runtime"
	ExtensionConfigV3  = Prefix + "envoy.config.core.v3.TypedExtensionConfig"

	ListenerV2    = Prefix + "envoy.api.v2.Listener"
	RouteV2       = Prefix + "envoy.api.v2.RouteConfiguration"
	ScopedRouteV2 = Prefix + "envoy.api.v2.ScopedRouteConfiguration"
	VirtualHostV2 = Prefix + "envoy.api.v2.route.VirtualHost"
	ClusterV2     = Prefix + "envoy.api.v2.Cluster"
	EndpointsV2   = Prefix + "envoy.api.v2.ClusterLoadAssignment"
	SecretV2      = Prefix + "envoy.api.v2.auth.Secret"
	RuntimeV2     = Prefix + "envoy.service.discovery.v2.Runtime"
)

// Control planes can send resources of any type as one of these. They are not in the table.
const (
	// Wrapper is the Resource around a resource of a SotW response.
	Wrapper = Prefix + "envoy.service.discovery.v3.Resource"
	// Locator is a redirect. TP1: "Server redirects".
	Locator = Prefix + "xds.core.v3.ResourceLocator"
)

// last is the Order of all types for which the protocol defines no place.
const last = 6

// table has a line for each type. Words lists them in this order.
var table = []*Type{
	{Word: "listener", Abbreviation: "lds", Order: 2, FullState: true, Claims: true, OneByOne: true, V3: v3(ListenerV3, "listener", "ListenerDiscoveryService", "Listeners", "listeners"), V2: v2(ListenerV2, "envoy.api.v2", "ListenerDiscoveryService", "Listeners", "listeners")},
	{Word: "route", Abbreviation: "rds", Order: 3, Referenced: true, V3: v3(RouteV3, "route", "RouteDiscoveryService", "Routes", "routes"), V2: v2(RouteV2, "envoy.api.v2", "RouteDiscoveryService", "Routes", "routes")},
	{Word: "scoped-route", Abbreviation: "srds", Order: 4, Claims: true, V3: v3(ScopedRouteV3, "route", "ScopedRoutesDiscoveryService", "ScopedRoutes", "scoped-routes"), V2: v2(ScopedRouteV2, "envoy.api.v2", "ScopedRoutesDiscoveryService", "ScopedRoutes", "scoped-routes")},
	{Word: "virtual-host", Abbreviation: "vhds", Order: 5, Claims: true, V3: v3(VirtualHostV3, "route", "VirtualHostDiscoveryService", "VirtualHosts", deltaOnly), V2: v2(VirtualHostV2, "envoy.api.v2", "VirtualHostDiscoveryService", "VirtualHosts", deltaOnly)},
	{Word: "cluster", Abbreviation: "cds", Order: 0, FullState: true, Referenced: true, V3: v3(ClusterV3, "cluster", "ClusterDiscoveryService", "Clusters", "clusters"), V2: v2(ClusterV2, "envoy.api.v2", "ClusterDiscoveryService", "Clusters", "clusters")},
	{Word: "endpoint", Abbreviation: "eds", Order: 1, Referenced: true, V3: v3(EndpointsV3, "endpoint", "EndpointDiscoveryService", "Endpoints", "endpoints"), V2: v2(EndpointsV2, "envoy.api.v2", "EndpointDiscoveryService", "Endpoints", "endpoints")},
	{Word: "locality-endpoint", Abbreviation: "leds", Order: last, Referenced: true, Naming: NameOutside, V3: v3(LocalityEndpointV3, "endpoint", "LocalityEndpointDiscoveryService", "LocalityEndpoints", deltaOnly)},
	{Word: "secret", Abbreviation: "sds", Order: last, Referenced: true, V3: v3(SecretV3, "secret", "SecretDiscoveryService", "Secrets", "secrets"), V2: v2(SecretV2, "envoy.service.discovery.v2", "SecretDiscoveryService", "Secrets", "secrets")},
	{Word: "runtime", Abbreviation: "rtds", Order: last, V3: v3(RuntimeV3, "runtime", "RuntimeDiscoveryService", "Runtime", "runtime"), V2: v2(RuntimeV2, "envoy.service.discovery.v2", "RuntimeDiscoveryService", "Runtime", "runtime")},
	{Word: "extension", Abbreviation: "ecds", Order: last, Referenced: true, V3: v3(ExtensionConfigV3, "extension", "ExtensionConfigDiscoveryService", "ExtensionConfigs", "extension_configs")},

	// Istio's. Address and Workload are of its ambient mesh.
	{url: Prefix + "istio.networking.nds.v1.NameTable", Order: last, Naming: NoName},
	{url: Prefix + "istio.mesh.v1alpha1.ProxyConfig", Order: last, Naming: NoName},
	{url: Prefix + "envoy.config.bootstrap.v3.Bootstrap", Order: last, Naming: NoName},
	{url: Prefix + "istio.workload.Address", Order: last, Naming: NameOutside},
	{url: Prefix + "istio.workload.Workload", Order: last, Naming: NameOutside},
}

// deltaOnly is the path of a service that has neither a SotW nor a Fetch method.
const deltaOnly = ""

func v3(typeURL, folder, service, plural, path string) *Service {
	return newService(typeURL, "envoy.service."+folder+".v3."+service, plural, "/v3/discovery:", path)
}

func v2(typeURL, pkg, service, plural, path string) *Service {
	s := newService(typeURL, pkg+"."+service, plural, "/v2/discovery:", path)
	s.V2 = true
	return s
}

func newService(typeURL, name, plural, root, path string) *Service {
	s := &Service{Name: name, TypeURL: typeURL, Delta: "Delta" + plural}
	if path != deltaOnly {
		s.Stream, s.Fetch, s.Path = "Stream"+plural, "Fetch"+plural, root+path
	}
	return s
}

// The types to which other packages apply rules of their own.
var (
	Cluster     = withWord("cluster") // after a changed cluster, clients warm its endpoints again
	Endpoints   = withWord("endpoint")
	Listener    = withWord("listener")     // it claims its addresses
	ScopedRoute = withWord("scoped-route") // it claims its key
	VirtualHost = withWord("virtual-host") // it claims its domains; a request that waits for one goes on only when a response has the resource
	Secret      = withWord("secret")       // the content is not shown
	Runtime     = withWord("runtime")      // Envoy gets its TTL in SotW, too
	Route       = withWord("route")        // in delta, a removal does not end Envoy's wait for one
	Extension   = withWord("extension")    // the same

	LocalityEndpoints = withWord("locality-endpoint") // clusters need them to be warm, as they need endpoints and secrets
)

// Other is every type that the table does not have.
var Other = &Type{Order: last}

// AggregatedV3 and AggregatedV2 are the aggregated discovery services.
var (
	AggregatedV3 = &Service{Name: "envoy.service.discovery.v3.AggregatedDiscoveryService", Stream: "StreamAggregatedResources", Delta: "DeltaAggregatedResources"}
	AggregatedV2 = &Service{Name: "envoy.service.discovery.v2.AggregatedDiscoveryService", Stream: "StreamAggregatedResources", Delta: "DeltaAggregatedResources", V2: true}
)

var byURL = func() map[string]*Type {
	m := map[string]*Type{}
	for _, t := range table {
		if t.V3 != nil {
			t.url = t.V3.TypeURL
		}
		m[t.url] = t
		if t.V2 != nil {
			m[t.V2.TypeURL] = t
		}
	}
	return m
}()

func withWord(word string) *Type {
	for _, t := range table {
		if t.Word == word || t.Abbreviation == word {
			return t
		}
	}
	return nil
}

// Of returns the type of a type URL of any version of the API: a line of the table, or
// [Other].
func Of(url string) *Type {
	if t := byURL[url]; t != nil {
		return t
	}
	return Other
}

// OfResources returns the type URL, in version 3 of the API, of the resources that clients can get
// under a type URL. For a list collection, it is the type URL of the members. Rules that are written
// for the result also hold for all other spellings of the type.
func OfResources(url string) string {
	const collection = "Collection"
	message := Message(url)
	if singular, ok := strings.CutSuffix(message, collection); ok && singular != "" && !strings.HasSuffix(singular, ".") {
		message = singular
	}
	if t := byURL[Prefix+message]; t != nil {
		return t.url
	}
	if Prefix+message == url {
		return url
	}
	return Prefix + message
}

// All returns the table.
func All() []*Type { return table }

// Service returns the discovery service of a type URL, or nil. It never returns the aggregated one.
func (t *Type) Service(url string) *Service {
	for _, s := range [...]*Service{t.V3, t.V2} {
		if s != nil && s.TypeURL == url {
			return s
		}
	}
	return nil
}

// Services returns the discovery services of version 3 of the API, or of version 2 if
// ofV2. The aggregated one comes first.
func Services(ofV2 bool) []*Service {
	all := []*Service{AggregatedV3}
	if ofV2 {
		all[0] = AggregatedV2
	}
	for _, t := range table {
		s := t.V3
		if ofV2 {
			s = t.V2
		}
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// HasInnerName reports whether resources of a type have their name inside, in field 1.
// Resources of [NameOutside] and [NoName] do not. Neither do redirects and list
// collections, whose field 1 has their entries. TP1: "List", "Server redirects".
func HasInnerName(url string) bool {
	return Of(url).Naming == NameInside && url != Locator && !strings.HasSuffix(url, "Collection")
}
