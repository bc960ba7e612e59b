package bootstrap

// The bootstrap of gRPC: gRFC A27, A29, A36, A47, A65, A71, A88 and A97.

import "encoding/json"

// GRPCOptions are options that only gRPC's bootstrap has.
type GRPCOptions struct {
	// ServerListener is the name of the Listener that a gRPC server requests, with %s for its
	// address (gRFC A36). Empty: there is none.
	ServerListener string
	// CertificateProvider is the name by which resources refer to the client's own certificate and roots (gRFC A29).
	// Without their files, the bootstrap has no such provider.
	CertificateProvider string
	// Features are additional server features.
	Features []string
}

type grpcBootstrap struct {
	Servers         []grpcServer             `json:"xds_servers"`
	Node            grpcNode                 `json:"node"`
	DefaultListener string                   `json:"client_default_listener_resource_name_template,omitempty"`
	ServerListener  string                   `json:"server_listener_resource_name_template,omitempty"`
	Authorities     map[string]grpcAuthority `json:"authorities,omitempty"`
	Providers       map[string]grpcProvider  `json:"certificate_providers,omitempty"`
}

type grpcServer struct {
	URI      string            `json:"server_uri"`
	Channel  []grpcCredentials `json:"channel_creds"`
	Call     []grpcCredentials `json:"call_creds,omitempty"`
	Features []string          `json:"server_features"`
}

type grpcCredentials struct {
	Type   string            `json:"type"`
	Config map[string]string `json:"config,omitempty"`
}

type grpcNode struct {
	ID      string `json:"id"`
	Cluster string `json:"cluster,omitempty"`
}

type grpcAuthority struct {
	Listener string `json:"client_listener_resource_name_template"`
}

type grpcProvider struct {
	Plugin string            `json:"plugin_name"`
	Config map[string]string `json:"config"`
}

// refreshInterval is how often gRPC reads its files again. It suits certificates that are valid for only an hour.
const refreshInterval = "60s"

// GRPC returns c's bootstrap for gRPC, as JSON.
func GRPC(c Client, o GRPCOptions) ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	b := grpcBootstrap{
		Node:           grpcNode{ID: c.NodeID, Cluster: c.Cluster},
		ServerListener: o.ServerListener,
		Authorities:    map[string]grpcAuthority{},
	}
	channel := grpcCredentials{Type: "insecure"}
	if c.TLS != nil {
		channel = grpcCredentials{Type: "tls", Config: c.TLS.grpcFiles()}
		if c.TLS.CAFile != "" || c.TLS.CertFile != "" {
			b.Providers = map[string]grpcProvider{o.CertificateProvider: {Plugin: "file_watcher", Config: c.TLS.grpcFiles()}}
		}
	}
	for _, address := range c.Servers {
		s := grpcServer{URI: address, Channel: []grpcCredentials{channel}, Features: []string{
			"xds_v3", // gRPC before 1.47 speaks v2 without it
			// gRFC A88: the relay reports in resource_errors which resources do not exist, and sends nothing while it
			// cannot know. A client with this feature does not take a missing answer for "does not exist".
			"resource_timer_is_transient_error",
		}}
		s.Features = append(s.Features, o.Features...)
		if c.TokenFile != "" {
			s.Call = []grpcCredentials{{Type: "jwt_token_file", Config: map[string]string{"jwt_token_file": c.TokenFile}}}
		}
		b.Servers = append(b.Servers, s)
	}
	for _, authority := range c.Authorities {
		b.Authorities[authority] = grpcAuthority{Listener: ListenerName(authority)}
	}
	if c.DefaultAuthority != "" {
		b.DefaultListener = ListenerName(c.DefaultAuthority)
	}
	text, err := json.MarshalIndent(b, "", "  ")
	return append(text, '\n'), err
}

// ServerListenerName returns the name of the Listener of a gRPC server, with %s for its address. An empty authority
// stands for old-style names.
func ServerListenerName(authority string) string {
	if authority == "" {
		return "grpc/server?xds.resource.listening_address=%s"
	}
	return "xdstp://" + authority + "/envoy.config.listener.v3.Listener/grpc/server/%s"
}

// ListenerName returns the name of the Listener of a gRPC target, with %s for the target.
func ListenerName(authority string) string {
	return "xdstp://" + authority + "/envoy.config.listener.v3.Listener/%s"
}

// grpcFiles returns the configuration of the channel credentials `tls`, and of the certificate
// provider `file_watcher`; nil for the system's roots and no certificate.
func (t *TLS) grpcFiles() map[string]string {
	files := map[string]string{}
	for key, file := range map[string]string{
		"ca_certificate_file":          t.CAFile,
		"certificate_file":             t.CertFile,
		"private_key_file":             t.KeyFile,
		"spiffe_trust_bundle_map_file": t.BundleMapFile,
	} {
		if file != "" {
			files[key] = file
		}
	}
	if len(files) > 0 {
		files["refresh_interval"] = refreshInterval
	}
	return files
}
