package bootstrap

// The bootstrap of Envoy, as the structure of its YAML. The tests decode it into Envoy's message, and validate that.

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/xds-relay/xds-relay/configs"
)

type (
	object = map[string]any
	list   = []any
)

const (
	relayCluster = "xds-relay"
	agentCluster = "spiffe-agent"
	// SystemRoots is the path of the system's roots on Debian and in Envoy's own images. Envoy does not find any by
	// itself.
	SystemRoots = "/etc/ssl/certs/ca-certificates.crt"
	// xdstpRuntime is the runtime flag without which Envoy (1.35 to 1.40) does not use config_sources.
	xdstpRuntime = "envoy.reloadable_features.xdstp_based_config_singleton_subscriptions"
)

// Envoy returns the bootstrap of c for Envoy, ready to be encoded as YAML or JSON.
func Envoy(c Client) (map[string]any, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	clusters := list{}
	var service object
	if c.TokenFile != "" {
		google, err := c.googleGRPC()
		if err != nil {
			return nil, err
		}
		service = object{"google_grpc": google}
	} else {
		cluster, err := c.relayCluster()
		if err != nil {
			return nil, err
		}
		clusters = append(clusters, cluster)
		service = object{"envoy_grpc": object{"cluster_name": relayCluster, "retry_policy": retries}}
		if c.TLS != nil && c.TLS.WorkloadAPI != "" {
			clusters = append(clusters, agent(c.TLS.WorkloadAPI))
		}
	}
	source := func(apiType string) object {
		return object{
			"api_type":                       apiType,
			"transport_api_version":          "V3",
			"set_node_on_first_message_only": true,
			"grpc_services":                  list{service},
		}
	}
	ads := object{"ads": object{}, "resource_api_version": "V3"}
	all := object{
		"node": object{"id": c.NodeID, "cluster": c.Cluster},
		"dynamic_resources": object{
			"ads_config": source("DELTA_GRPC"),
			"cds_config": ads,
			"lds_config": ads,
		},
	}
	if c.DefaultAuthority != "" {
		dynamic := all["dynamic_resources"].(object)
		dynamic["lds_resources_locator"] = directory(c.DefaultAuthority, "envoy.config.listener.v3.Listener")
		dynamic["cds_resources_locator"] = directory(c.DefaultAuthority, "envoy.config.cluster.v3.Cluster")
	}
	if len(clusters) > 0 {
		all["static_resources"] = object{"clusters": clusters}
	}
	if !c.SecondStream {
		return all, nil
	}
	authorities := list{}
	for _, name := range c.Authorities {
		if name != "" { // Envoy's API has no authority without a name
			authorities = append(authorities, object{"name": name})
		}
	}
	if len(authorities) == 0 {
		return nil, errors.New("there is no authority for config_sources (want --authority, for one that a pattern of the configuration covers)")
	}
	all["config_sources"] = list{object{
		"authorities":          authorities,
		"resource_api_version": "V3",
		"api_config_source":    source("AGGREGATED_DELTA_GRPC"),
	}}
	// Without layers, Envoy has an admin layer, too.
	all["layered_runtime"] = object{"layers": list{
		object{"name": "xdstp", "static_layer": object{xdstpRuntime: true}},
		object{"name": "admin", "admin_layer": object{}},
	}}
	return all, nil
}

// retries are when Envoy opens its stream again. By default it waits up to 30 s, also if a relay is reachable: with
// several relays, it notices a dead one only by the next stream or health check. Envoy has no such setting for
// google_grpc.
var retries = object{"retry_back_off": object{"base_interval": "0.5s", "max_interval": "5s"}}

// directory returns the glob of all resources of a type that are in no further directory.
func directory(authority, resourceType string) string {
	return "xdstp://" + authority + "/" + resourceType + "/*"
}

// relayCluster returns the cluster of the relays. With several relays, Envoy uses the first one that answers health
// checks.
func (c Client) relayCluster() (object, error) {
	endpoints := list{}
	byName, unix := false, false
	for priority, address := range c.Servers {
		at := socket(address)
		if path, isUnix := configs.UnixPath(address); isUnix {
			at = object{"pipe": object{"path": path}}
			unix = true
		} else if _, err := netip.ParseAddrPort(address); err != nil {
			byName = true
		}
		endpoint := object{"address": at}
		if host, _, err := net.SplitHostPort(address); err == nil && c.sniOfHost() && at["pipe"] == nil {
			endpoint["hostname"] = host
		}
		locality := object{"lb_endpoints": list{object{"endpoint": endpoint}}}
		if priority > 0 {
			locality["priority"] = priority
		}
		endpoints = append(endpoints, locality)
	}
	if byName && unix {
		return nil, errors.New("a cluster of Envoy has unix sockets or host names, and not both (want one kind, or IP addresses)")
	}
	kind := "STATIC"
	if byName {
		kind = "STRICT_DNS"
	}
	cluster := object{
		"name":            relayCluster,
		"type":            kind,
		"connect_timeout": "5s",
		"load_assignment": object{"cluster_name": relayCluster, "endpoints": endpoints},
		// Pings detect a relay that is gone without having closed the connection.
		"typed_extension_protocol_options": http2(object{"connection_keepalive": object{"interval": "30s", "timeout": "10s"}}),
	}
	if len(c.Servers) > 1 {
		cluster["health_checks"] = list{object{
			// The interval is shorter than a relay takes to drain. Envoy acts on the relay's first response that it
			// does not serve.
			"timeout": "2s", "interval": "3s", "no_traffic_interval": "3s",
			"unhealthy_threshold": 2, "healthy_threshold": 1,
			"grpc_health_check": object{},
		}}
		// Without this, Envoy would spread its streams over all relays if half of them fail.
		cluster["common_lb_config"] = object{"healthy_panic_threshold": object{"value": 0}}
	}
	if c.TLS != nil {
		if len(c.hosts()) == 0 && c.TLS.ServerName == "" && c.TLS.ServerID == "" && c.TLS.WorkloadAPI == "" {
			return nil, errors.New("TLS over a unix socket: no host says which name the relay's certificate must have (want --server-name or --server-id)")
		}
		cluster["transport_socket"] = object{"name": "envoy.transport_sockets.tls", "typed_config": c.upstreamTLS()}
	}
	return cluster, nil
}

func http2(options object) object {
	return object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
		"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
		"explicit_http_config": object{"http2_protocol_options": options},
	}}
}

func socket(address string) object {
	host, port, _ := net.SplitHostPort(address) // CheckServer has checked it
	number, _ := strconv.Atoi(port)
	return object{"socket_address": object{"address": host, "port_value": number}}
}

// serverName returns the name that Envoy requests in SNI; empty if there is none.
func (c Client) serverName() string {
	if c.TLS.ServerName != "" {
		return c.TLS.ServerName
	}
	if hosts := c.hosts(); len(hosts) > 0 {
		return hosts[0]
	}
	return ""
}

// sniOfHost reports whether Envoy requests each relay's own host name in SNI.
func (c Client) sniOfHost() bool {
	return c.TLS != nil && c.TLS.ServerName == "" && len(c.hosts()) > 1
}

func (c Client) upstreamTLS() object {
	t := c.TLS
	names := list{}
	for _, id := range c.names() {
		names = append(names, object{"san_type": id.kind, "matcher": object{"exact": id.value}})
	}
	context := object{}
	if len(names) > 0 {
		context["match_typed_subject_alt_names"] = names
	}
	common := object{"alpn_protocols": list{"h2"}}
	switch {
	case t.WorkloadAPI != "":
		// SPIRE's agent uses these names for the workload's SVID and its bundle.
		common["tls_certificate_sds_secret_configs"] = list{sds("default")}
		common["combined_validation_context"] = object{
			"default_validation_context":           context,
			"validation_context_sds_secret_config": sds("ROOTCA"),
		}
	default:
		context["trusted_ca"] = file(t.CAFile, SystemRoots)
		common["validation_context"] = context
		if t.CertFile != "" {
			common["tls_certificates"] = list{object{
				"certificate_chain": file(t.CertFile, ""), "private_key": file(t.KeyFile, ""),
			}}
		}
	}
	all := object{
		"@type":              "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
		"common_tls_context": common,
	}
	if name := c.serverName(); name != "" {
		if _, err := netip.ParseAddr(name); err != nil { // SNI is for names
			all["sni"] = name
		}
	}
	if c.sniOfHost() {
		all["auto_host_sni"] = true
	}
	return all
}

// subjectName is a name that the relay's certificate must have.
type subjectName struct{ kind, value string }

// names returns the names of which the relay's certificate must have one. That is the SPIFFE ID if there is one;
// otherwise the given name, or the host of each server.
func (c Client) names() []subjectName {
	if c.TLS.ServerID != "" {
		return []subjectName{{"URI", c.TLS.ServerID}}
	}
	if c.TLS.WorkloadAPI != "" && c.TLS.ServerName == "" {
		return nil // an SVID rarely has a DNS name
	}
	hosts := c.hosts()
	if c.TLS.ServerName != "" {
		hosts = []string{c.TLS.ServerName}
	}
	var names []subjectName
	for _, host := range hosts {
		kind := "DNS"
		if _, err := netip.ParseAddr(host); err == nil {
			kind = "IP_ADDRESS"
		}
		names = append(names, subjectName{kind, host})
	}
	return names
}

func file(name, byDefault string) object {
	if name == "" {
		name = byDefault
	}
	return object{"filename": name}
}

// sds refers to a secret of the SPIFFE agent.
func sds(name string) object {
	return object{"name": name, "sds_config": object{
		"resource_api_version": "V3",
		"api_config_source": object{
			"api_type":              "GRPC",
			"transport_api_version": "V3",
			"grpc_services":         list{object{"envoy_grpc": object{"cluster_name": agentCluster}}},
		},
	}}
}

// agent returns the cluster of the SPIFFE agent, at unix:/path or tcp://IP:port.
func agent(workloadAPI string) object {
	at := object{}
	if tcp, ok := strings.CutPrefix(workloadAPI, "tcp://"); ok {
		at = socket(tcp)
	} else {
		at["pipe"] = object{"path": "/" + strings.TrimLeft(strings.TrimPrefix(workloadAPI, "unix:"), "/")}
	}
	return object{
		"name":            agentCluster,
		"type":            "STATIC",
		"connect_timeout": "1s",
		"load_assignment": object{"cluster_name": agentCluster, "endpoints": list{object{
			"lb_endpoints": list{object{"endpoint": object{"address": at}}},
		}}},
		"typed_extension_protocol_options": http2(object{}),
	}
}

// googleGRPC returns the configuration of gRPC's own client in Envoy: the only one that reads a token again when its
// file changes.
func (c Client) googleGRPC() (object, error) {
	const plugin = "envoy.grpc_credentials.file_based_metadata"
	if c.TLS.WorkloadAPI != "" {
		return nil, errors.New("with a token, Envoy takes its certificate from files, and not from a SPIFFE agent (want --ca-file, and --cert-file with --key-file)")
	}
	if c.TLS.ServerID != "" {
		return nil, errors.New("with a token, Envoy cannot ask for a SPIFFE ID of the relay (want --server-name)")
	}
	if c.TLS.ServerName == "" && (len(c.Servers) > 1 || len(c.hosts()) == 0) {
		return nil, errors.New("with a token, Envoy verifies one name for all servers, and cannot take it from several addresses or a unix socket (want --server-name)")
	}
	target, err := googleTarget(c.Servers)
	if err != nil {
		return nil, err
	}
	ssl := object{"root_certs": file(c.TLS.CAFile, SystemRoots)}
	if c.TLS.CertFile != "" {
		ssl["cert_chain"], ssl["private_key"] = file(c.TLS.CertFile, ""), file(c.TLS.KeyFile, "")
	}
	args := object{
		"grpc.keepalive_time_ms":    object{"int_value": 30_000},
		"grpc.keepalive_timeout_ms": object{"int_value": 10_000},
	}
	if c.TLS.ServerName != "" {
		args["grpc.ssl_target_name_override"] = object{"string_value": c.TLS.ServerName}
	}
	return object{
		"target_uri":               target,
		"stat_prefix":              "xds_relay",
		"channel_credentials":      object{"ssl_credentials": ssl},
		"credentials_factory_name": plugin,
		"call_credentials": list{object{"from_plugin": object{
			"name": plugin,
			"typed_config": object{
				"@type":         "type.googleapis.com/envoy.config.grpc_credential.v3.FileBasedMetadataConfig",
				"secret_data":   object{"filename": c.TokenFile},
				"header_key":    "authorization",
				"header_prefix": "Bearer ",
			},
		}}},
		"channel_args": object{"args": args},
	}, nil
}

// googleTarget returns the name of the servers in gRPC's naming, which allows several IPv4 addresses, or several IPv6
// addresses, but only one host name.
func googleTarget(servers []string) (string, error) {
	if len(servers) == 1 {
		if _, unix := configs.UnixPath(servers[0]); unix {
			return servers[0], nil
		}
		return "dns:///" + servers[0], nil
	}
	scheme := ""
	for _, address := range servers {
		kind := "ipv6:"
		at, err := netip.ParseAddrPort(address)
		if at.Addr().Is4() {
			kind = "ipv4:"
		}
		if err != nil || scheme != "" && scheme != kind {
			return "", fmt.Errorf("with a token, Envoy takes one host name, or IP addresses of one kind (want one --server with a name that has the addresses of all relays, and not %q)", address)
		}
		scheme = kind
	}
	return scheme + strings.Join(servers, ","), nil
}
