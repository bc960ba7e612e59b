package taster

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// This file checks transport sockets as gRPC does: TLS, with certificates from providers that the client's bootstrap
// configures.

const (
	upstreamTLS   = xdstype.Prefix + "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
	downstreamTLS = xdstype.Prefix + "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
	// http11Proxy is a type that gRPC accepts only with an experimental feature (A86).
	http11Proxy = xdstype.Prefix + "envoy.extensions.transport_sockets.http_11_proxy.v3.Http11ProxyUpstreamTransport"
)

var socketRules = rules[*corev3.TransportSocket]{
	{"grpc-tls-socket-name", "A29", "name is envoy.transport_sockets.tls", func(_ *tasting, s *corev3.TransportSocket) bool {
		return s.GetName() == "envoy.transport_sockets.tls"
	}},
}

var upstreamSocketRules = rules[*corev3.TransportSocket]{
	{"grpc-upstream-tls", "A29", "typed_config is an UpstreamTlsContext", func(_ *tasting, s *corev3.TransportSocket) bool {
		return s.GetTypedConfig().GetTypeUrl() == upstreamTLS
	}},
}

var downstreamSocketRules = rules[*corev3.TransportSocket]{
	{"grpc-downstream-tls", "A36", "typed_config is a DownstreamTlsContext", func(_ *tasting, s *corev3.TransportSocket) bool {
		return s.GetTypedConfig().GetTypeUrl() == downstreamTLS
	}},
}

// commonTLSRules hold for both sides.
var commonTLSRules = rules[*tlsv3.CommonTlsContext]{
	{"grpc-common-tls-context", "A29", "there is a common_tls_context", func(_ *tasting, c *tlsv3.CommonTlsContext) bool { return c != nil }},
	{"grpc-no-tls-params", "A29", "tls_params is not set", func(_ *tasting, c *tlsv3.CommonTlsContext) bool { return c.GetTlsParams() == nil }},
	{"grpc-no-handshaker", "A29", "custom_handshaker is not set", func(_ *tasting, c *tlsv3.CommonTlsContext) bool { return c.GetCustomHandshaker() == nil }},
	{"grpc-subject-alt-names", "A29", "match_subject_alt_names has only valid matchers", func(t *tasting, c *tlsv3.CommonTlsContext) bool {
		for _, m := range validation(c).GetMatchSubjectAltNames() {
			if !t.matcherIsValid(m) {
				return false
			}
		}
		return true
	}},
	{"grpc-validation-fields", "A29", "the validation context does not set verify_certificate_spki, verify_certificate_hash, require_signed_certificate_timestamp, crl or custom_validator_config", func(_ *tasting, c *tlsv3.CommonTlsContext) bool {
		return oldRoots(c) || !hasUnsupported(validation(c))
	}},
}

// clientTLSRules hold for clients.
var clientTLSRules = rules[*tlsv3.CommonTlsContext]{
	{"grpc-root-certificates", "A29, A82", "root certificates come from a ca_certificate_provider_instance, or system_root_certs is set", func(_ *tasting, c *tlsv3.CommonTlsContext) bool {
		v := validation(c)
		return rootsOf(c) || v.GetSystemRootCerts() != nil && v.GetCaCertificateProviderInstance() == nil
	}},
	{"grpc-client-certificate", "A29", "the client's own certificate comes from a tls_certificate_provider_instance", func(_ *tasting, c *tlsv3.CommonTlsContext) bool {
		return oldRoots(c) || c.GetTlsCertificateProviderInstance() != nil || len(c.GetTlsCertificates())+len(c.GetTlsCertificateSdsSecretConfigs()) == 0
	}},
}

// serverTLSRules hold for servers.
var serverTLSRules = rules[*tlsv3.CommonTlsContext]{
	{"grpc-server-certificate", "A36", "the server's certificate comes from a tls_certificate_provider_instance", func(_ *tasting, c *tlsv3.CommonTlsContext) bool { return hasServerIdentity(c) }},
	{"grpc-server-no-alt-names", "A36", "match_subject_alt_names is empty", func(_ *tasting, c *tlsv3.CommonTlsContext) bool {
		return len(validation(c).GetMatchSubjectAltNames()) == 0
	}},
	{"grpc-server-roots", "A36", "a validation context of a server has a ca_certificate_provider_instance", func(_ *tasting, c *tlsv3.CommonTlsContext) bool {
		return c.GetValidationContextType() == nil || rootsOf(c)
	}},
}

var downstreamTLSRules = rules[*tlsv3.DownstreamTlsContext]{
	{"grpc-no-require-sni", "A36", "require_sni is not true", func(_ *tasting, d *tlsv3.DownstreamTlsContext) bool { return !d.GetRequireSni().GetValue() }},
	{"grpc-ocsp-policy", "A36", "ocsp_staple_policy is LENIENT_STAPLING", func(_ *tasting, d *tlsv3.DownstreamTlsContext) bool {
		return d.GetOcspStaplePolicy() == tlsv3.DownstreamTlsContext_LENIENT_STAPLING
	}},
	{"grpc-client-roots", "A36", "with require_client_certificate, root certificates come from a provider instance", func(_ *tasting, d *tlsv3.DownstreamTlsContext) bool {
		return !d.GetRequireClientCertificate().GetValue() || rootsOf(d.GetCommonTlsContext())
	}},
}

// validation returns the validation context, nil if there is none.
func validation(c *tlsv3.CommonTlsContext) *tlsv3.CertificateValidationContext {
	if combined := c.GetCombinedValidationContext(); combined != nil {
		return combined.GetDefaultValidationContext()
	}
	return c.GetValidationContext()
}

// oldRoots reports whether deprecated fields name a provider of root certificates. gRPC reads them if it cannot use
// the fields that replaced them.
func oldRoots(c *tlsv3.CommonTlsContext) bool {
	return c.GetCombinedValidationContext().GetValidationContextCertificateProviderInstance().GetInstanceName() != "" ||
		c.GetValidationContextCertificateProviderInstance().GetInstanceName() != ""
}

// rootsOf reports whether root certificates come from a provider.
func rootsOf(c *tlsv3.CommonTlsContext) bool {
	return validation(c).GetCaCertificateProviderInstance().GetInstanceName() != "" || oldRoots(c) && !readsNew(c)
}

// readsNew reports whether gRPC reads the fields that are not deprecated: they are set, and gRPC can use them.
func readsNew(c *tlsv3.CommonTlsContext) bool {
	own, v := c.GetTlsCertificateProviderInstance(), validation(c)
	roots := v.GetCaCertificateProviderInstance()
	switch {
	case own == nil && len(c.GetTlsCertificates())+len(c.GetTlsCertificateSdsSecretConfigs()) != 0:
		return false
	case c.GetValidationContextType() != nil && (roots == nil || hasUnsupported(v)):
		return false
	}
	return own.GetInstanceName() != "" || own.GetCertificateName() != "" ||
		roots.GetInstanceName() != "" || roots.GetCertificateName() != "" || len(v.GetMatchSubjectAltNames()) != 0
}

// hasUnsupported reports whether a validation context has fields that gRPC does not support.
func hasUnsupported(v *tlsv3.CertificateValidationContext) bool {
	return len(v.GetVerifyCertificateSpki()) != 0 || len(v.GetVerifyCertificateHash()) != 0 ||
		v.GetRequireSignedCertificateTimestamp().GetValue() || v.GetCrl() != nil || v.GetCustomValidatorConfig() != nil
}

// hasServerIdentity reports whether the certificate of a server comes from a provider. If the roots do not,
// grpc-root-certificates reports that, and either form of the server's certificate suffices here.
func hasServerIdentity(c *tlsv3.CommonTlsContext) bool {
	own := c.GetTlsCertificateProviderInstance().GetInstanceName() != ""
	deprecated := c.GetTlsCertificateCertificateProviderInstance().GetInstanceName() != ""
	switch {
	case c.GetValidationContextType() != nil && !rootsOf(c):
		return own || deprecated
	case readsNew(c):
		return own
	}
	return deprecated
}

func checkUpstreamTLS(t *tasting, s *corev3.TransportSocket) *violation {
	if s == nil || s.GetTypedConfig().GetTypeUrl() == http11Proxy {
		return nil
	}
	return first(
		func() *violation { return socketRules.check(t, s) },
		func() *violation { return upstreamSocketRules.check(t, s) },
		func() *violation { return t.undecodable("A29", s.GetTypedConfig()) },
		func() *violation {
			c, ok := openAs[*tlsv3.UpstreamTlsContext](t, s.GetTypedConfig())
			if !ok {
				return nil
			}
			common := c.GetCommonTlsContext()
			if v := commonTLSRules.check(t, common); v != nil {
				return v
			}
			return clientTLSRules.check(t, common)
		},
	)
}

func checkDownstreamTLS(t *tasting, s *corev3.TransportSocket) *violation {
	if s == nil {
		return nil
	}
	return first(
		func() *violation { return socketRules.check(t, s) },
		func() *violation { return downstreamSocketRules.check(t, s) },
		func() *violation { return t.undecodable("A36", s.GetTypedConfig()) },
		func() *violation {
			d, ok := openAs[*tlsv3.DownstreamTlsContext](t, s.GetTypedConfig())
			if !ok {
				return nil
			}
			common := d.GetCommonTlsContext()
			return first(
				func() *violation { return commonTLSRules.check(t, common) },
				func() *violation { return serverTLSRules.check(t, common) },
				func() *violation { return downstreamTLSRules.check(t, d) },
			)
		},
	)
}

// matcherIsValid reports whether gRPC can use a StringMatcher.
func (t *tasting) matcherIsValid(m *matcherv3.StringMatcher) bool {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return true
	case *matcherv3.StringMatcher_Prefix:
		return p.Prefix != ""
	case *matcherv3.StringMatcher_Suffix:
		return p.Suffix != ""
	case *matcherv3.StringMatcher_Contains:
		return p.Contains != ""
	case *matcherv3.StringMatcher_SafeRegex:
		return t.regexpIsValid(p.SafeRegex.GetRegex())
	}
	return false
}
