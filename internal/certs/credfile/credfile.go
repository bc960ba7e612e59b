// Package credfile parses the contents of credential files: a certificate with its key, the certificates of a CA, and
// a bearer token. Its errors never contain a part of a key or a token.
package credfile

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"
)

// CA has the certificates of a CA file.
type CA struct {
	Pool         *x509.CertPool
	Certificates []*x509.Certificate
}

// Expiry returns when the first of the certificates expires.
func (ca *CA) Expiry() time.Time {
	first := ca.Certificates[0].NotAfter
	for _, c := range ca.Certificates {
		if c.NotAfter.Before(first) {
			first = c.NotAfter
		}
	}
	return first
}

// Pair returns the certificate chain in the PEM cert, which is from certFile, with the key in
// the PEM key, which is from keyFile.
func Pair(certFile, keyFile string, cert, key []byte) (*tls.Certificate, error) {
	if isTruncated(cert) {
		return nil, fmt.Errorf("%s %w", certFile, errTruncated)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s are not a certificate and its key: %w", certFile, keyFile, err)
	}
	return &pair, nil
}

// Roots returns the certificates in the PEM data, which is from file. Like crypto/x509, it skips certificates that it
// cannot parse, because collections of public CAs contain some.
func Roots(file string, data []byte) (*CA, error) {
	if isTruncated(data) {
		return nil, fmt.Errorf("%s %w", file, errTruncated)
	}
	ca := &CA{Pool: x509.NewCertPool()}
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) != 0 {
			continue
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			ca.Pool.AddCert(cert)
			ca.Certificates = append(ca.Certificates, cert)
		}
	}
	if len(ca.Certificates) == 0 {
		return nil, fmt.Errorf("%s has no certificates (want PEM)", file)
	}
	return ca, nil
}

var errTruncated = errors.New("ends in the middle of a certificate (want PEM)")

// isTruncated reports whether the last block of a PEM file has no end: another process is writing the file, or the
// disk was full. The parsers would skip that block.
func isTruncated(data []byte) bool {
	begin := bytes.LastIndex(data, []byte("-----BEGIN "))
	return begin >= 0 && !bytes.Contains(data[begin:], []byte("-----END "))
}

// Token returns the bearer token in data, which is from file, without surrounding white space. RFC 6750: "b64token".
func Token(file string, data []byte) (string, error) {
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", fmt.Errorf("%s is empty (want a bearer token)", file)
	}
	if strings.ContainsFunc(token, notInToken) {
		return "", fmt.Errorf("%s is not a bearer token (want letters, digits and -._~+/= only)", file)
	}
	return token, nil
}

func notInToken(r rune) bool {
	isLetterOrDigit := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	return !isLetterOrDigit && !strings.ContainsRune("-._~+/=", r)
}
