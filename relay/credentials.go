package relay

// What listeners and servers show and trust in TLS handshakes, from the configuration.

import (
	"crypto/tls"

	"github.com/xds-relay/xds-relay/certs"
	"github.com/xds-relay/xds-relay/configs"
)

// listenerTLS returns the TLS of a listener. It is nil for plaintext.
func (r *Relay) listenerTLS(l *configs.Listener) (*tls.Config, error) {
	t := l.TLS
	if t == nil {
		return nil, nil
	}
	protocols := []string{"h2"}
	if l.Protocol == configs.ListenerREST {
		protocols = append(protocols, "http/1.1")
	}
	listener, err := r.credentials.Listener(certs.ListenerOptions{
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

// serverTLS returns the TLS towards a server. It is nil for plaintext.
func serverTLS(credentials *certs.Store, s *configs.Server) (*tls.Config, error) {
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
