package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// ServerOptions are the TLS options for connections to a server.
type ServerOptions struct {
	// CAFile has the roots of the server's certificate. The default is the system's roots.
	CAFile string
	// CertFile and KeyFile are the relay's own certificate and its key. They may be empty.
	CertFile, KeyFile string
	// WorkloadAPI is the address of a SPIFFE agent that replaces the three files.
	WorkloadAPI string
	// ServerName is the name that the relay sends (TLS: SNI). The default is the host of the server's address.
	ServerName string
	// Host is the name that the server's certificate must have: ServerName, or the host of the server's address. It
	// is not required if the server is identified by a SPIFFE ID.
	Host string
	// ID is the SPIFFE ID, or another DNS name, that the server's certificate must have. It may
	// be empty.
	ID string
	// MinVersion is the lowest accepted version of TLS.
	MinVersion uint16
}

// Server returns the TLS configuration for connections to a server. Each handshake uses the newest certificate and
// CA. Sessions are not resumed, so each connection is verified in full.
func (p *Part) Server(o ServerOptions) (*tls.Config, error) {
	v := &server{names: []string{o.Host}}
	switch id, err := spiffeid.FromString(o.ID); {
	case err == nil:
		v.id, v.names = id, nil
	case o.ID != "":
		v.names = append(v.names, o.ID)
	}
	c := &tls.Config{
		MinVersion: o.MinVersion, ServerName: o.ServerName,
		// crypto/tls verifies with fixed roots, and always checks the host. So VerifyConnection verifies instead.
		InsecureSkipVerify: true,
		VerifyConnection:   v.verify,
	}
	if o.WorkloadAPI != "" {
		v.agent = p.agent(RoleUpstream, o.WorkloadAPI)
		c.GetClientCertificate = v.certificate
		return c, nil
	}
	var err error
	if o.CAFile != "" {
		if v.ca, err = p.ca(o.CAFile); err != nil {
			return nil, err
		}
	}
	if o.CertFile != "" {
		if v.pair, err = p.pair(RoleUpstream, o.CertFile, o.KeyFile); err != nil {
			return nil, err
		}
		c.GetClientCertificate = v.certificate
	}
	return c, nil
}

// server has an agent, or an optional pair and ca.
type server struct {
	agent *agent
	pair  *pairFile
	ca    *caFile     // nil: the system's roots
	names []string    // the names that the server's certificate must have
	id    spiffeid.ID // if not zero, the SPIFFE ID that the certificate must have
}

// certificate returns the relay's own certificate by the rules of crypto/tls: none if the server does not know its
// CA.
func (v *server) certificate(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if v.agent != nil {
		id, err := v.agent.identity()
		if err != nil {
			return nil, err
		}
		return id.certificate, nil
	}
	if own := v.pair.Get(); request.SupportsCertificate(own) == nil {
		return own, nil
	}
	return &tls.Certificate{}, nil
}

// verify verifies the server's certificate.
func (v *server) verify(state tls.ConnectionState) error {
	chain := state.PeerCertificates
	if err := v.verifyChain(chain); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
	}
	return nil
}

func (v *server) verifyChain(chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return errors.New("the server has no certificate")
	}
	leaf := chain[0]
	if v.agent != nil {
		id, err := v.agent.identity()
		if err != nil {
			return err
		}
		if _, err := id.verify(chain); err != nil {
			return err
		}
	} else {
		o := x509.VerifyOptions{Intermediates: x509.NewCertPool()}
		if v.ca != nil {
			o.Roots = v.ca.Get().Pool
		}
		for _, c := range chain[1:] {
			o.Intermediates.AddCert(c)
		}
		if _, err := leaf.Verify(o); err != nil {
			return err
		}
	}
	for _, name := range v.names {
		if err := leaf.VerifyHostname(name); err != nil {
			return err
		}
	}
	if v.id.IsZero() {
		return nil
	}
	switch id, err := x509svid.IDFromCert(leaf); {
	case err != nil:
		return fmt.Errorf("the server is not %s: its %w", v.id, err)
	case id != v.id:
		return fmt.Errorf("the server is %s, and not %s", id, v.id)
	}
	return nil
}
