package downstream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Connections that fail before their first request, because client and listener do not agree on TLS or on the protocol.
// Such a client does not come further, and often does not say why: an operator sees it in the log, in the metrics, and
// for a while among the problems. Connections on which the client sends nothing, such as probes of the port, do not
// count.

// ConnFailure is why a connection has failed.
type ConnFailure uint8

// The failures.
const (
	// TLSToPlaintext: the client speaks TLS, and the listener does not.
	TLSToPlaintext ConnFailure = iota
	// PlaintextToTLS: the listener has TLS, and the client does not speak it.
	PlaintextToTLS
	// HTTP1: the client speaks HTTP/1, and the listener is for gRPC.
	HTTP1
	// NotHTTP2: the client speaks something else than HTTP/2, and the listener is for gRPC.
	NotHTTP2
	// NoCertificate: the listener requires a certificate, and the client has presented none.
	NoCertificate
	// ExpiredCertificate: the client's certificate has expired, or is not valid yet.
	ExpiredCertificate
	// UntrustedCertificate: the client's certificate cannot be verified for another reason.
	UntrustedCertificate
	// ListenerCertificate: the client does not accept the listener's certificate.
	ListenerCertificate
	// TLSVersion: client and listener have no version of TLS in common.
	TLSVersion
	// ALPN: the client does not offer HTTP/2 in its TLS handshake.
	ALPN
	// Incomplete: the client has ended its TLS handshake, or did not continue it in time.
	Incomplete
	// OtherHandshake: the TLS handshake has failed for another reason.
	OtherHandshake
	// ProxyHeader: the connection does not begin with a valid header of the PROXY protocol, and the listener trusts its
	// address.
	ProxyHeader
	// UntrustedProxyHeader: the client sends such a header, and the listener does not trust its address.
	UntrustedProxyHeader
	numConnFailures
)

var connFailures = [numConnFailures]struct{ name, about string }{
	TLSToPlaintext:       {"tls_to_plaintext", "the client speaks TLS, and the listener does not (configure tls for the listener, or let the client connect without TLS)"},
	PlaintextToTLS:       {"plaintext_to_tls", "the listener has TLS, and the client does not speak it (let the client use TLS)"},
	HTTP1:                {"http1", "the client speaks HTTP/1, and the listener is for gRPC (let the client use gRPC, or a listener with protocol: rest)"},
	NotHTTP2:             {"not_http2", "the client speaks something else than HTTP/2, and the listener is for gRPC"},
	NoCertificate:        {"no_certificate", "the client has presented no certificate of a CA that the listener trusts (tls.client_ca_file)"},
	ExpiredCertificate:   {"expired_certificate", "the client's certificate has expired, or is not valid yet"},
	UntrustedCertificate: {"untrusted_certificate", "the client's certificate cannot be verified with tls.client_ca_file"},
	ListenerCertificate:  {"listener_certificate", "the client does not accept the listener's certificate (is it expired, of another CA, or for other names?)"},
	TLSVersion:           {"tls_version", "client and listener have no version of TLS in common (tls.min_version)"},
	ALPN:                 {"alpn", "the client does not offer HTTP/2 in its TLS handshake (ALPN h2)"},
	Incomplete:           {"incomplete", "the client has not completed its TLS handshake"},
	OtherHandshake:       {"other_handshake", "the TLS handshake has failed"},
	ProxyHeader:          {"proxy_header", "the balancer has sent no valid header of the PROXY protocol (let it send one, or remove its address from proxy_protocol.trusted)"},
	UntrustedProxyHeader: {"untrusted_proxy_header", "the client sends a header of the PROXY protocol, and the listener does not trust its address (proxy_protocol.trusted)"},
}

// String returns the failure's name in metrics and logs.
func (f ConnFailure) String() string { return connFailures[f].name }

// because explains the failure in words, and says what would be right. err is the error of the TLS handshake, nil without
// one.
func (f ConnFailure) because(err error) string {
	if err == nil {
		return connFailures[f].about
	}
	return connFailures[f].about + ": " + loglines.Clip(err.Error())
}

// connFailureCounts are totals.
type connFailureCounts [numConnFailures]atomic.Uint64

func (c *connFailureCounts) read() map[string]uint64 { return readTotals[ConnFailure](c[:]) }

// FailedConns are the connections of a listener that have failed lately for one reason.
type FailedConns struct {
	Failure     ConnFailure
	Count       int
	Since, Last time.Time // when the first and the last of them failed
	Peer        string    // the address of the last one
	Reason      string    // why the last one failed, in words
}

// failedFor is how long a failure counts as one of now. Clients that cannot connect try again at least every two minutes.
const failedFor = 5 * time.Minute

// failures are the failed connections of one listener.
type failures struct {
	mu    sync.Mutex
	kinds [numConnFailures]struct {
		FailedConns
		lines loglines.Lines // for each of them: one client cannot hide what fails for others
	}
}

// FailedConns returns the connections that have failed lately, one element for each reason.
func (d *Door) FailedConns() (all []FailedConns) {
	d.failures.mu.Lock()
	defer d.failures.mu.Unlock()
	for i := range d.failures.kinds {
		if k := &d.failures.kinds[i]; k.Count > 0 && time.Since(k.Last) < failedFor {
			all = append(all, k.FailedConns)
		}
	}
	return all
}

// failed records that a connection has failed. err is the error of its TLS handshake, nil without one.
func (c *limitedConn) failed(f ConnFailure, err error) {
	l := c.listener
	l.server.stats.connFailures[f].Add(1)
	reason := f.because(err)
	log, ok := l.door.failures.note(f, c.addr.String(), reason, l.log(c))
	if !ok {
		return
	}
	log = log.With("address", l.Addr().String(), "refused", f.String(), "reason", reason)
	switch {
	case f == ProxyHeader:
		log.Warn("balancer's connection has no client")
	case err != nil:
		log.Warn("client's TLS handshake failed")
	default:
		log.Warn("client speaks another protocol than the listener")
	}
}

// note records a failure, and returns the logger for a line about it, false if there were too many lines.
func (s *failures) note(f ConnFailure, peer, reason string, log *slog.Logger) (_ *slog.Logger, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, now := &s.kinds[f], time.Now()
	if now.Sub(k.Last) >= failedFor {
		k.FailedConns = FailedConns{Failure: f, Since: now}
	}
	k.Count++
	k.Last, k.Peer, k.Reason = now, peer, reason
	return k.lines.Next(log)
}

// handshakeFailed records a failed TLS handshake.
func (c *limitedConn) handshakeFailed(err error) {
	if c.heard {
		c.failed(handshakeFailure(err), err)
	}
}

// handshakeFailure returns why a TLS handshake has failed. crypto/tls has no types for most of its errors.
func handshakeFailure(err error) ConnFailure {
	var record tls.RecordHeaderError
	var verification *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	var alert *net.OpError
	text := err.Error()
	switch {
	case errors.As(err, &record) && record.Conn != nil && isProxyHeader(record.RecordHeader[:]):
		return UntrustedProxyHeader
	case errors.As(err, &record) && record.Conn != nil: // the first record
		return PlaintextToTLS
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return ExpiredCertificate
	case errors.As(err, &verification):
		return UntrustedCertificate
	case strings.Contains(text, "client didn't provide a certificate"):
		return NoCertificate
	case strings.Contains(text, "unsupported versions"), strings.Contains(text, "protocol version not supported"):
		return TLSVersion
	case strings.Contains(text, "application protocol"), strings.Contains(text, "ALPN"):
		return ALPN
	case errors.As(err, &alert) && alert.Op == "remote error" && (strings.Contains(text, "certificate")):
		return ListenerCertificate
	case isEnd(err):
		return Incomplete
	}
	return OtherHandshake
}

// isEnd reports whether a connection has ended, or has waited for too long.
func isEnd(err error) bool {
	var op *net.OpError
	return errors.Is(err, os.ErrDeadlineExceeded) || strings.HasSuffix(err.Error(), "EOF") || errors.As(err, &op) && op.Op == "read"
}

// http1Methods are the first bytes of a request of HTTP/1.
var http1Methods = []string{"GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "CONNECT ", "OPTIONS ", "TRACE ", "PATCH "}

// protocolOf returns what a client speaks whose first bytes are not the preface of HTTP/2.
func protocolOf(first string) ConnFailure {
	const handshake = "\x16\x03" // the type of the record, and the version of TLS
	if n := min(len(first), len(handshake)); first[:n] == handshake[:n] {
		return TLSToPlaintext
	}
	if isProxyHeader([]byte(first)) {
		return UntrustedProxyHeader
	}
	for _, method := range http1Methods {
		if n := min(len(first), len(method)); first[:n] == method[:n] {
			return HTTP1
		}
	}
	return NotHTTP2
}

var errNotHTTP2 = errors.New("the client does not begin with the preface of HTTP/2")

// begins looks at the first bytes of a connection, b, of which matched bytes of HTTP/2's preface came before. It returns
// an error, which ends the connection, if the listener is for gRPC and the client does not speak HTTP/2.
func (c *meteredConn) begins(matched int, b []byte) error {
	if !c.meter.http1 {
		return nil
	}
	const enough = 8
	failure := protocolOf(http2.ClientPreface[:matched] + string(b[:min(len(b), enough)]))
	switch {
	case !c.rest:
		c.limited.failed(failure, nil)
		return errNotHTTP2
	case (failure == TLSToPlaintext || failure == UntrustedProxyHeader) && c.tls == nil: // net/http answers in plaintext
		c.limited.failed(failure, nil)
	}
	return nil
}
