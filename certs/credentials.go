package certs

import (
	"crypto/tls"
	"time"

	"github.com/xds-relay/xds-relay/certs/credfile"
)

// The kinds of files, each followed once for a role.

type (
	pairFile  = File[*tls.Certificate]
	caFile    = File[*credfile.CA]
	tokenFile = File[string]
)

// pair follows a certificate and its key.
func (s *Store) pair(role, certFile, keyFile string) (*pairFile, error) {
	return shared(s, role, certFile+"\x00"+keyFile, func() (*pairFile, error) {
		return Follow(s, pairKind(role), certFile, keyFile)
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
func (s *Store) ca(file string) (*caFile, error) {
	return shared(s, RoleCA, file, func() (*caFile, error) {
		return Follow(s, Kind[*credfile.CA]{
			Role: RoleCA,
			Parse: func(paths []string, contents [][]byte) (*credfile.CA, error) {
				return credfile.Roots(paths[0], contents[0])
			},
			Expiry: (*credfile.CA).Expiry,
		}, file)
	})
}

// Token follows the file of a bearer token. Its Get returns the newest.
func (s *Store) Token(file string) (*File[string], error) {
	return shared(s, RoleToken, file, func() (*tokenFile, error) {
		return Follow(s, Kind[string]{
			Role: RoleToken,
			Parse: func(paths []string, contents [][]byte) (string, error) {
				return credfile.Token(paths[0], contents[0])
			},
		}, file)
	})
}
