package credfile

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// FuzzRoots reads any bytes as the file of a CA. The certificates print so that they read the same again. A file that ends
// in the middle of a certificate is refused.
func FuzzRoots(f *testing.F) {
	one, other := certtest.NewCA(f, "one"), certtest.NewCA(f, "other")
	f.Add(certtest.PEM(one, other))
	f.Add(append([]byte("# comment\r\n"), bytes.ReplaceAll(certtest.PEM(one), []byte("\n"), []byte("\r\n"))...))
	f.Add(certtest.PEM(one, other)[:700])
	f.Add(one.Issue(f, certtest.Loopback).Key)
	f.Fuzz(func(t *testing.T, file []byte) {
		ca, err := Roots("ca.pem", file)
		if err != nil {
			return
		}
		var printed []byte
		for _, c := range ca.Certificates {
			printed = append(printed, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
			if ca.Expiry().After(c.NotAfter) {
				t.Fatalf("expires at %v, and a certificate at %v", ca.Expiry(), c.NotAfter)
			}
		}
		again, err := Roots("again.pem", printed)
		if err != nil || len(again.Certificates) != len(ca.Certificates) || !again.Pool.Equal(ca.Pool) {
			t.Fatalf("%s reads as %d certificates of %d (%v)", printed, len(again.Certificates), len(ca.Certificates), err)
		}
		begin := strings.LastIndex(string(printed), "-----END")
		if _, err := Roots("cut.pem", append(bytes.Clone(file), printed[:begin]...)); err == nil {
			t.Fatalf("%s is not refused, and ends in the middle of a certificate", file)
		}
	})
}

// FuzzPair reads any bytes as a certificate and its key. What is accepted has a leaf, and the key signs for it.
func FuzzPair(f *testing.F) {
	ca := certtest.NewCA(f, "ca")
	one, other := ca.Issue(f, certtest.Loopback), ca.Issue(f, certtest.Loopback)
	f.Add(one.Cert, one.Key)
	f.Add(append(bytes.Clone(one.Cert), certtest.PEM(ca)...), one.Key)
	f.Add(one.Cert, other.Key)
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		pair, err := Pair("cert.pem", "key.pem", cert, key)
		if err != nil {
			if len(key) > 100 && strings.Contains(err.Error(), string(key[50:100])) {
				t.Fatalf("the error shows the key: %v", err)
			}
			return
		}
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil || pair.PrivateKey == nil || leaf.PublicKey == nil {
			t.Fatalf("%s is a pair of %v (%v)", cert, pair.PrivateKey, err)
		}
	})
}

// FuzzToken reads any bytes as the file of a token. A token is good for a header, reads the same again, and the error does
// not show it.
func FuzzToken(f *testing.F) {
	f.Add([]byte("eyJhbGciOiJFUzI1NiJ9.e30.c2ln\n"))
	f.Add([]byte(" a b "))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		token, err := Token("token", file)
		if err != nil {
			if text := strings.TrimSpace(string(file)); len(text) > 10 && strings.Contains(err.Error(), text) {
				t.Fatalf("the error shows the token: %v", err)
			}
			return
		}
		again, err := Token("again", []byte(token+"\n"))
		if err != nil || again != token || token == "" || strings.ContainsAny(token, " \t\r\n\x00") {
			t.Fatalf("%q is the token %q, which reads as %q (%v)", file, token, again, err)
		}
	})
}
