package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/secrets"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// REST-JSON over HTTP. xDS: "REST-JSON polling subscriptions".

// RESTOptions are the settings of a connection for REST. The zero value of a field
// stands for its default.
type RESTOptions struct {
	// TLS makes it https. The default is plaintext.
	TLS *tls.Config
	// PollInterval is the time from the beginning of one request to that of the
	// next: 5 s by default.
	PollInterval time.Duration
	// RequestTimeout is how long a request may take, with its answer. Control planes
	// may hold a request until there is something new. The default is 1 minute.
	RequestTimeout time.Duration
	// ProbeAfter is the silence after which an HTTP/2 connection with a request on it is
	// pinged, and ProbeTimeout how long the ping may take. On an HTTP/1.1 connection that
	// was used before, a request that the server does not hold is given up after the sum of both, and
	// made again on a new connection. The default is 10 s for each.
	ProbeAfter, ProbeTimeout time.Duration
	// MaxResponseBytes is the length of the longest answer: 256 MiB by default.
	MaxResponseBytes int
	// UserAgent is the user agent.
	UserAgent string
	// Token, if not nil, returns the bearer token of each request. It is only for TLS.
	Token func() string
	// Dial, if not nil, makes the connections, instead of TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	defaultPollInterval   = 5 * time.Second
	defaultRequestTimeout = time.Minute
	// idleConnTimeout is longer than most poll intervals.
	idleConnTimeout = 90 * time.Second
	// maxIdleConns is enough for all types with a REST path, in one scope.
	maxIdleConns = 16
	// maxErrorBody is how much of an error's body is read, in bytes.
	maxErrorBody = 1 << 10
)

// RESTConn has the connections to a server that is polled. Streams with the
// protocol REST use it in place of a gRPC connection.
type RESTConn struct {
	base      string // of all URLs
	transport *http.Transport
	o         RESTOptions
	// prompt says that the server does not hold requests: it answers at once even if there is
	// nothing new.
	prompt atomic.Bool
}

// DialREST prepares to poll a server, host:port. It connects to nothing yet.
func DialREST(address string, o RESTOptions) *RESTConn {
	o.PollInterval = or(o.PollInterval, defaultPollInterval)
	o.RequestTimeout = or(o.RequestTimeout, defaultRequestTimeout)
	o.ProbeAfter = or(o.ProbeAfter, defaultProbeAfter)
	o.ProbeTimeout = or(o.ProbeTimeout, defaultProbeTimeout)
	o.MaxResponseBytes = or(o.MaxResponseBytes, defaultMaxResponseBytes)
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: connectTimeout}).DialContext
	}
	scheme := "http"
	if o.TLS != nil {
		scheme = "https"
	}
	return &RESTConn{
		base: scheme + "://" + address,
		// No proxy and no redirects: the relay's configuration decides where it connects.
		transport: &http.Transport{
			DialContext:         o.Dial,
			TLSClientConfig:     o.TLS,
			TLSHandshakeTimeout: connectTimeout,
			ForceAttemptHTTP2:   true, // a TLS configuration would turn it off
			MaxIdleConnsPerHost: maxIdleConns,
			IdleConnTimeout:     idleConnTimeout,
			HTTP2:               &http.HTTP2Config{SendPingTimeout: o.ProbeAfter, PingTimeout: o.ProbeTimeout},
		},
		o: o,
	}
}

// Close closes the connections. The streams that poll over them must be closed before.
func (c *RESTConn) Close() error {
	c.transport.CloseIdleConnections()
	return nil
}

// NewStream implements grpc.ClientConnInterface. The method is an HTTP path.
func (c *RESTConn) NewStream(ctx context.Context, _ *grpc.StreamDesc, path string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return newPollStream(ctx, path, c, c.o.PollInterval), nil
}

// Invoke implements grpc.ClientConnInterface.
func (c *RESTConn) Invoke(_ context.Context, method string, _, _ any, _ ...grpc.CallOption) error {
	return status.Error(codes.Unimplemented, method+": a control plane that is polled has no gRPC methods")
}

// poll makes one request.
func (c *RESTConn) poll(ctx context.Context, path string, r *discoveryv3.DiscoveryRequest) (answer *answerJSON, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("POST %s%s: %w", c.base, path, err)
		}
	}()
	late := fmt.Errorf("no answer for %s", c.o.RequestTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, c.o.RequestTimeout, late)
	defer cancel()
	// Field names as in the proto files: parsers of proto3 JSON accept either form, but control
	// planes with parsers of their own know Envoy's requests, which have these.
	body, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(r)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	// A poll changes nothing at the server, so the transport may repeat it if the connection turns
	// out to be closed. The empty header allows that, and is not sent.
	req.Header["Idempotency-Key"] = []string{}
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		req.Header[http.CanonicalHeaderKey(chain.Header)] = md.Get(chain.Header)
	}
	if c.o.UserAgent != "" {
		req.Header.Set("User-Agent", c.o.UserAgent)
	}
	if c.o.Token != nil {
		req.Header.Set("Authorization", "Bearer "+c.o.Token())
	}
	began := time.Now()
	resp, err := c.exchange(req, r.GetVersionInfo())
	if err != nil {
		return nil, cause(ctx, err)
	}
	defer resp.Body.Close()
	defer func() {
		switch took := time.Since(began); {
		case took > c.o.ProbeAfter:
			c.prompt.Store(false)
		case err == nil && r.GetVersionInfo() != "" && (answer == nil || answer.version == r.GetVersionInfo()):
			c.prompt.Store(true)
		}
	}()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotModified:
		return nil, nil
	default:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		return nil, &pollError{resp.StatusCode, strings.TrimSuffix(resp.Status+": "+errorWords(r.GetTypeUrl(), text), ": ")}
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, int64(c.o.MaxResponseBytes)+1))
	if err != nil {
		return nil, cause(ctx, err)
	}
	if len(text) > c.o.MaxResponseBytes {
		return nil, fmt.Errorf("the answer is longer than %d bytes", c.o.MaxResponseBytes)
	}
	return parseJSON(text)
}

// pollError is an HTTP status with which a control plane answers a poll, other than those of an answer.
type pollError struct {
	status int
	text   string
}

// Error implements error.
func (e *pollError) Error() string { return e.text }

// code returns the gRPC code that means the same. Statuses that servers and proxies send when they are not able to answer
// are Unavailable.
func (e *pollError) code() codes.Code {
	switch e.status {
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound:
		return codes.NotFound
	case http.StatusInternalServerError:
		return codes.Internal
	case http.StatusMethodNotAllowed, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return codes.Unavailable
	}
	if e.status/100 == 4 {
		return codes.InvalidArgument
	}
	return codes.Unavailable
}

// errorWords returns the error message in the body, on one line: the body if it is text, or the
// message of a google.rpc.Status. Any other body may be a response with the wrong status, and so is
// not shown. Nor is any body of the type of secrets.
func errorWords(typeURL string, body []byte) string {
	words := string(body)
	if bytes.ContainsAny(body, "{}") {
		var status struct{ Message string }
		if json.Unmarshal(body, &status) != nil || status.Message == "" {
			return "(the answer is not shown, as it may hold a secret)"
		}
		words = status.Message
	}
	if xdstype.Of(typeURL) == xdstype.Secret {
		return "(the control plane's words are not shown, as they may hold a secret)"
	}
	return secrets.Words(strings.Join(strings.Fields(strings.ToValidUTF8(words, "")), " "))
}

var errSilent = errors.New("an old connection brings no answer")

// exchange makes a request. If the connection may be half-open, it makes the request again on a
// new one. That is an HTTP/1.1 connection that was used before, on which nothing comes for as long
// as a probe takes, although the server does not hold such requests. (HTTP/2 has pings.)
func (c *RESTConn) exchange(req *http.Request, version string) (*http.Response, error) {
	resp, err := c.attempt(req, version == "" || c.prompt.Load())
	if !errors.Is(err, errSilent) {
		return resp, err
	}
	c.transport.CloseIdleConnections() // they are likely half-open too
	body, err := req.GetBody()
	if err != nil {
		return nil, err
	}
	req.Body = body
	return c.attempt(req, false)
}

// attempt makes a request once. With suspect it fails with errSilent if the connection may
// be half-open.
func (c *RESTConn) attempt(req *http.Request, suspect bool) (*http.Response, error) {
	patience := c.o.ProbeAfter + c.o.ProbeTimeout
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(math.MaxInt64, func() { cancel(errSilent) }) // not yet
	defer timer.Stop()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(conn httptrace.GotConnInfo) {
		if suspect && conn.Reused && !isHTTP2(conn.Conn) {
			timer.Reset(patience)
		}
	}})
	resp, err := c.transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		defer cancel(nil)
		if req.Context().Err() == nil && errors.Is(context.Cause(ctx), errSilent) {
			return nil, errSilent
		}
		return nil, err
	}
	context.AfterFunc(req.Context(), func() { cancel(nil) }) // reading the body needs ctx
	return resp, nil
}

func isHTTP2(conn net.Conn) bool {
	t, ok := conn.(*tls.Conn)
	return ok && t.ConnectionState().NegotiatedProtocol == "h2"
}

// cause returns why a request failed: the cause of its context's end, if that has ended,
// otherwise err.
func cause(ctx context.Context, err error) error {
	if ended := context.Cause(ctx); ended != nil {
		return ended
	}
	return err
}
