package certs

import (
	"crypto/tls"
	"crypto/x509"
	"sync/atomic"
)

// ListenerOptions are the TLS options of a listener.
type ListenerOptions struct {
	// Role is the role of the certificate in metrics. The default is RoleListener.
	Role string
	// CertFile and KeyFile are the listener's certificate and its key.
	CertFile, KeyFile string
	// ClientCAFile has the roots of clients' certificates. It may be empty.
	ClientCAFile string
	// WorkloadAPI is the address of a SPIFFE agent that replaces the three files.
	WorkloadAPI string
	// ClientsOptional admits clients without a certificate. If a client sends a certificate, it must be valid in any
	// case. Without ClientCAFile and WorkloadAPI, the listener does not request certificates.
	ClientsOptional bool
	// MinVersion is the lowest accepted version of TLS.
	MinVersion uint16
	// NextProtos are the protocols of the listener. TLS: "ALPN".
	NextProtos []string
}

// Listener has the TLS credentials of a listener: an agent, or a pair and an optional CA.
type Listener struct {
	options ListenerOptions
	agent   *agent
	pair    *pairFile
	ca      *caFile // nil: the listener requests no certificates
	// shared is the configuration of the newest handshakes. Each connection retains its configuration, so a separate
	// one for each would cost memory.
	shared atomic.Pointer[sharedConfig]
}

// sharedConfig is the configuration of all handshakes with the same certificate and CA.
type sharedConfig struct {
	certificate *tls.Certificate
	roots       *x509.CertPool // nil: the listener requests no certificates
	config      *tls.Config
}

// Listener returns the TLS credentials of a listener.
func (p *Part) Listener(o ListenerOptions) (*Listener, error) {
	if o.Role == "" {
		o.Role = RoleListener
	}
	l := &Listener{options: o}
	if o.WorkloadAPI != "" {
		l.agent = p.agent(o.Role, o.WorkloadAPI)
		return l, nil
	}
	var err error
	if l.pair, err = p.pair(o.Role, o.CertFile, o.KeyFile); err != nil {
		return nil, err
	}
	if o.ClientCAFile != "" {
		if l.ca, err = p.ca(o.ClientCAFile); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Certificate returns the certificate that clients currently see. It is nil if the SPIFFE agent has not sent one yet.
func (l *Listener) Certificate() *x509.Certificate {
	if l.agent == nil {
		return l.pair.Get().Leaf
	}
	if id, err := l.agent.identity(); err == nil {
		return id.certificate.Leaf
	}
	return nil
}

// Config returns the TLS configuration of the listener. Each handshake uses the newest certificate and CA. A
// successful handshake has verified the client's certificate, if the client sent one:
// tls.ConnectionState.PeerCertificates identifies the client.
//
// A client may resume a session with a ticket, without sending its certificate. The ticket contains the chain that
// verified the certificate. crypto/tls accepts the ticket if no certificate of the chain has expired, and its root is
// in the ClientCAs of the configuration that GetConfigForClient returned. So a session does not outlive its CA: once
// the CA is removed, the client gets a full handshake, in which its certificate fails. The ticket keys belong to the
// configuration that Config returns, and crypto/tls rotates them daily. New files do not change them, because
// sessions do not depend on the listener's own certificate.
func (l *Listener) Config() *tls.Config {
	return &tls.Config{MinVersion: l.options.MinVersion, NextProtos: l.options.NextProtos, GetConfigForClient: l.config}
}

// config returns the configuration for one handshake.
func (l *Listener) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	if l.agent != nil {
		id, err := l.agent.identity()
		if err != nil {
			return nil, err
		}
		return l.configOf(id.certificate, id.roots, func(c *tls.Config) {
			// The roots are those of all trust domains. A client's certificate must be signed by a root of its own
			// trust domain.
			c.VerifyConnection = func(state tls.ConnectionState) error {
				if len(state.PeerCertificates) == 0 {
					return nil // optional
				}
				if _, err := id.verify(state.PeerCertificates); err != nil {
					return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
				}
				return nil
			}
		}), nil
	}
	var roots *x509.CertPool
	if l.ca != nil {
		roots = l.ca.Get().Pool
	}
	return l.configOf(l.pair.Get(), roots, func(*tls.Config) {}), nil
}

// configOf returns the configuration for handshakes with a certificate and a CA. add completes a new one.
func (l *Listener) configOf(certificate *tls.Certificate, roots *x509.CertPool, add func(*tls.Config)) *tls.Config {
	if s := l.shared.Load(); s != nil && s.certificate == certificate && s.roots == roots {
		return s.config
	}
	c := &tls.Config{MinVersion: l.options.MinVersion, NextProtos: l.options.NextProtos, Certificates: []tls.Certificate{*certificate}}
	if roots != nil {
		l.verifyClients(c, roots)
	}
	add(c)
	l.shared.Store(&sharedConfig{certificate, roots, c})
	return c
}

func (l *Listener) verifyClients(c *tls.Config, roots *x509.CertPool) {
	c.ClientCAs, c.ClientAuth = roots, tls.RequireAndVerifyClientCert
	if l.options.ClientsOptional {
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
}
