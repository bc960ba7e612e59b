package relay

// The TLS certificates and CAs of listeners and servers, from the configuration.

import (
	"crypto/tls"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/certs"
)

// listenerTLS returns the TLS configuration of a listener, nil for plaintext.
func listenerTLS(credentials *certs.Part, l *configs.Listener) (*tls.Config, error) {
	t := l.TLS
	if t == nil {
		return nil, nil
	}
	protocols := []string{"h2"}
	if l.Protocol == configs.ListenerREST {
		protocols = append(protocols, "http/1.1")
	}
	listener, err := credentials.Listener(certs.ListenerOptions{
		CertFile: t.CertFile, KeyFile: t.KeyFile, ClientCAFile: t.ClientCAFile,
		WorkloadAPI:     t.SPIFFE.WorkloadAPI,
		ClientsOptional: t.ClientCertificates == configs.ClientCertificatesOptional,
		MinVersion:      t.MinVersion.Number(),
		NextProtos:      protocols,
	})
	if err != nil {
		return nil, err
	}
	return listener.Config(), nil
}

// serverTLS returns the TLS configuration for connections to a server, nil for plaintext.
func serverTLS(credentials *certs.Part, s *configs.Server) (*tls.Config, error) {
	t := s.TLS
	if t == nil {
		return nil, nil
	}
	return credentials.Server(certs.ServerOptions{
		CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile,
		WorkloadAPI: t.SPIFFE.WorkloadAPI,
		ServerName:  t.ServerName, Host: s.Host(), ID: t.ServerID,
		MinVersion: t.MinVersion.Number(),
	})
}

// roleClient is the `role` label of clients' certificates.
const roleClient = "client"

// certificateExpiries returns the expiry of each of the relay's own certificates and CAs, and for each listener the
// earliest expiry of its clients' certificates.
func (r *Relay) certificateExpiries() []admin.Sample {
	var samples []admin.Sample
	for _, st := range r.credentials.Statuses() {
		if !st.Expires.IsZero() {
			samples = append(samples, admin.Sample{Value: st.Expires.Unix(), Labels: credentialLabels(st)})
		}
	}
	for _, l := range r.openListeners() {
		if l.expiries == nil {
			continue
		}
		if first, ok := l.expiries.First(); ok {
			samples = append(samples, admin.Sample{Value: first.Unix(), Labels: []attribute.KeyValue{
				attribute.String("role", roleClient), attribute.String("path", l.address),
			}})
		}
	}
	return samples
}

func (r *Relay) reloadFailures() []admin.Sample {
	var samples []admin.Sample
	for _, st := range r.credentials.Statuses() {
		samples = append(samples, admin.Sample{Value: int64(st.Failures), Labels: credentialLabels(st)})
	}
	return append(samples, r.issuers.failures()...)
}

func credentialLabels(st certs.Status) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("role", st.Role), attribute.String("path", st.Path)}
}
