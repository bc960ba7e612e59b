package main

// What is at an address at which a command expects the admin listener of a relay.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http2"

	"github.com/xds-relay/xds-relay/admin"
)

// whereIsAdmin ends the sentences about an address that is another one.
const whereIsAdmin = "the relay's admin listener is at admin.address of its configuration, in most examples " + defaultAdmin

// ofRelayAdmin reports whether the admin listener of a relay has answered.
func ofRelayAdmin(answer *http.Response) bool {
	return answer.Header.Get("Server") == admin.ServerHeader
}

// notOfRelay returns the error for an answer of another HTTP server.
func notOfRelay(address string, answer *http.Response) error {
	if server := answer.Header.Get("Server"); server != "" {
		return fmt.Errorf("%s is an HTTP server (%s), and not the admin listener of an xds-relay: %s", address, oneLine(server), whereIsAdmin)
	}
	return fmt.Errorf("%s is an HTTP server, and not the admin listener of an xds-relay: %s", address, whereIsAdmin)
}

// isOfTLS reports whether an HTTPS server has answered a request in plaintext.
func isOfTLS(answer *http.Response, text []byte) bool {
	return answer.StatusCode == http.StatusBadRequest && strings.Contains(string(text), "HTTP request to an HTTPS server")
}

func speaksTLS(address string) error {
	return fmt.Errorf("%s speaks TLS: use https://, with --ca-file, --cert-file and --key-file as needed", address)
}

// speaksHTTP2 reports whether a server answers the preface of HTTP/2. One that speaks nothing else may end other
// connections before net/http has read a byte.
func speaksHTTP2(ctx context.Context, transport *http.Transport, host string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	dial := transport.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	conn, err := dial(ctx, "tcp", host)
	if err != nil {
		return false
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); !ok || conn.SetDeadline(deadline) != nil {
		return false
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return false
	}
	framer := http2.NewFramer(conn, conn)
	if framer.WriteSettings() != nil {
		return false
	}
	frame, err := framer.ReadFrame()
	return err == nil && frame.Header().Type == http2.FrameSettings
}

// noAnswer returns why a request to an admin listener failed: what is there, and what to do.
func noAnswer(ctx context.Context, address string, transport *http.Transport, at url.URL, err error) error {
	secure := at.Scheme == "https"
	var asked *url.Error
	if errors.As(err, &asked) {
		err = asked.Err // without the URL, which address has
	}
	var dialing *net.OpError
	text := strings.TrimSuffix(err.Error(), ": %!w(<nil>)") // of net/http
	contains := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no relay at %s: there is no such socket; %s", address, whereIsAdmin)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: this user may not use the socket: admin.mode of the relay's configuration says who may", address)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no relay at %s (connection refused): %s", address, whereIsAdmin)
	case errors.As(err, &dialing) && dialing.Op == "dial":
		return fmt.Errorf("no relay at %s: %w; %s", address, dialing.Err, whereIsAdmin)
	case contains("server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%s speaks plaintext: leave out https:// and the flags of TLS", address)
	case contains("certificate required", "bad certificate", "unknown certificate authority"):
		return fmt.Errorf("%s refuses the client's certificate (%s): it wants one of admin.tls.client_ca_file, with --cert-file and --key-file", address, text)
	case secure && contains("certificate signed by unknown authority", "certificate is not trusted"):
		return fmt.Errorf("%s has a certificate that this host does not trust (%s): name its roots with --ca-file", address, text)
	case secure && contains("x509: certificate is "):
		return fmt.Errorf("%s has a certificate of another name (%s): name it with --server-name", address, text)
	case contains(`malformed HTTP response "\x00\x00`), // a frame of HTTP/2
		!secure && contains("EOF", "connection reset", "readLoopPeekFailLocked") && speaksHTTP2(ctx, transport, at.Host):
		return fmt.Errorf("%s is a gRPC server: a port for xDS clients, it seems, which xds-relay get uses; %s", address, whereIsAdmin)
	case !secure && contains(`malformed HTTP response "\x15\x03`): // an alert of TLS

		return speaksTLS(address)
	}
	if contains("EOF", "connection reset", "no application protocol", "readLoopPeekFailLocked") {
		wants := ""
		if !secure {
			wants = "it may want TLS (https://), or "
		}
		return fmt.Errorf("%s ended the connection (%s): %sit is another server, such as a port for xDS clients; %s", address, text, wants, whereIsAdmin)
	}
	return fmt.Errorf("%s: %s", address, text)
}
