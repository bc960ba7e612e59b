package certs

import (
	"crypto/tls"
	"time"

	"github.com/xds-relay/xds-relay/internal/certs/credfile"
)

// These are the kinds of files. Each file is followed once for a role.

type (
	pairFile  = File[*tls.Certificate]
	caFile    = File[*credfile.CA]
	tokenFile = File[string]
)

// pair follows a certificate and its key.
func (p *Part) pair(role, certFile, keyFile string) (*pairFile, error) {
	return shared(p, role, certFile+"\x00"+keyFile, func() (*pairFile, error) {
		return followFiles(p.Store, pairKind(role), certFile, keyFile)
	})
}

func pairKind(role string) Kind[*tls.Certificate] {
	return Kind[*tls.Certificate]{
		Role: role,
		Parse: func(paths []string, contents [][]byte) (*tls.Certificate, error) {
			return credfile.Pair(paths[0], paths[1], contents[0], contents[1])
		},
		Expiry: func(c *tls.Certificate) time.Time { return c.Leaf.NotAfter },
	}
}

// ca follows the certificates of a CA.
func (p *Part) ca(file string) (*caFile, error) {
	return shared(p, RoleCA, file, func() (*caFile, error) {
		return followFiles(p.Store, Kind[*credfile.CA]{
			Role: RoleCA,
			Parse: func(paths []string, contents [][]byte) (*credfile.CA, error) {
				return credfile.Roots(paths[0], contents[0])
			},
			Expiry: (*credfile.CA).Expiry,
		}, file)
	})
}

// Token follows the file of a bearer token. The File's Get returns the newest token.
func (p *Part) Token(file string) (*File[string], error) {
	return shared(p, RoleToken, file, func() (*tokenFile, error) {
		return followFiles(p.Store, Kind[string]{
			Role: RoleToken,
			Parse: func(paths []string, contents [][]byte) (string, error) {
				return credfile.Token(paths[0], contents[0])
			},
		}, file)
	})
}
