package identity

import (
	"crypto/x509"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/credentials"
)

// chains returns the verified chains of the client's certificate. There are none if the client has sent no
// certificate, or the certificate was not verified.
func (p Proof) chains() [][]*x509.Certificate {
	if p.Peer == nil {
		return nil
	}
	info, ok := p.Peer.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil
	}
	return info.State.VerifiedChains
}

// addCertificate adds the fields that a certificate with these verified chains proves.
func (id *Identity) addCertificate(chains [][]*x509.Certificate) {
	if len(chains) == 0 || len(chains[0]) == 0 {
		return
	}
	leaf := chains[0][0] // the same in all chains
	id.Source = MTLS
	id.DNSNames, id.Subject = leaf.DNSNames, leaf.Subject.String()
	if of, ok := spiffeID(leaf); ok {
		id.SPIFFEID, id.TrustDomain, id.SPIFFEPath = of.String(), of.TrustDomain().Name(), of.Path()
	}
	id.Expires = expiry(chains)
	id.lifetime = id.Expires.Sub(leaf.NotBefore)
}

// spiffeID returns the SPIFFE ID in a certificate. X509-SVID: "SPIFFE ID", "Leaf Certificates": a certificate with
// several URIs has none, and neither has one that may sign others.
func spiffeID(leaf *x509.Certificate) (spiffeid.ID, bool) {
	if len(leaf.URIs) != 1 || leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 {
		return spiffeid.ID{}, false
	}
	id, err := spiffeid.FromURI(leaf.URIs[0])
	return id, err == nil
}

// expiry returns when the last of the chains expires. A chain expires with the first of its certificates.
func expiry(chains [][]*x509.Certificate) (last time.Time) {
	for _, chain := range chains {
		first := chain[0].NotAfter
		for _, c := range chain[1:] {
			if c.NotAfter.Before(first) {
				first = c.NotAfter
			}
		}
		if first.After(last) {
			last = first
		}
	}
	return last
}
