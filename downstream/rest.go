package downstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// The discovery services over HTTP. xDS: "REST-JSON polling subscriptions". fetch.go explains when a request is
// answered, and with what.

// timeoutHeader is where Envoy states, in milliseconds, how long it waits for the answer: its
// ApiConfigSource.request_timeout, which is one second by default.
const timeoutHeader = "X-Envoy-Expected-Rq-Timeout-Ms"

// HTTPServer makes the server of a REST listener. It speaks HTTP/1.1 and HTTP/2; it also speaks HTTP/2 without TLS, to
// clients that begin with it.
func (s *Server) HTTPServer(o ListenerOptions) *http.Server {
	h := &restHandler{server: s, door: o.door(), options: o, services: map[string]*xdstype.Service{}, decoding: decodePlaces()}
	if h.options.MaxRequestBytes == 0 {
		h.options.MaxRequestBytes = maxRequestBytes
	}
	for _, service := range servicesOf(o) {
		if service.Path != "" {
			h.services[service.Path] = service
		}
	}
	srv := &http.Server{
		Handler:        h,
		ReadTimeout:    restPatience,
		WriteTimeout:   o.LongPoll + restPatience + restWriting,
		IdleTimeout:    idleConnection,
		MaxHeaderBytes: maxHeaderBytes,
		Protocols:      new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: o.KeepaliveTime, PingTimeout: o.KeepaliveTimeout,
			MaxReceiveBufferPerConnection: restWindow, MaxReceiveBufferPerStream: restWindow,
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return withConn(ctx, c, o.Limits) },
		ErrorLog:    slog.NewLogLogger(loglines.Bounded(s.options.Log.Handler()), slog.LevelWarn),
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	return srv
}

type restHandler struct {
	server   *Server
	door     *Door
	gate     *gate // of one request
	options  ListenerOptions
	services map[string]*xdstype.Service // by path
	// decoding has a place for each request that is being decoded.
	decoding *Places
}

// isJSON reports whether a request says that its body is JSON, as those of Envoy do. What forms and scripts of other
// sites may send says something else, or nothing.
func isJSON(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// ServeHTTP implements http.Handler.
func (h *restHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	of := *h
	of.gate = h.door.newest.Load()
	of.serve(w, r)
}

// refuseClient answers a client that is refused for its identity.
func refuseClient(w http.ResponseWriter, err error) {
	refused := &identity.RefusedError{}
	if errors.As(err, &refused) {
		switch refused.Reason {
		case identity.NoToken: // RFC 6750: "The WWW-Authenticate Response Header Field"
			w.Header().Set("WWW-Authenticate", "Bearer")
		case identity.InvalidToken:
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		case identity.CertificateExpired: // the next connection has another one
			w.Header().Set("Connection", "close")
		default:
		}
	}
	failWith(w, err)
}

func (h *restHandler) serve(w http.ResponseWriter, r *http.Request) {
	if !h.pace(r) {
		return // the client has gone
	}
	service, ok := h.services[r.URL.Path]
	switch {
	case !ok:
		fail(w, http.StatusNotFound, codes.NotFound, h.unknownPath(r.URL.Path))
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		fail(w, http.StatusMethodNotAllowed, codes.Unimplemented, fmt.Sprintf("the method is %s (want POST)", r.Method))
		return
	}
	if !isJSON(r.Header) {
		fail(w, http.StatusUnsupportedMediaType, codes.InvalidArgument, fmt.Sprintf("the content type is %q (want application/json)", loglines.Clip(r.Header.Get("Content-Type"))))
		return
	}
	ctx := peer.NewContext(withHeaders(r.Context(), r.Header), h.peerOf(r))
	closeIfLeaving(ctx, w)
	away, leave := joinFetch(ctx)
	defer leave()
	ctx = context.WithValue(ctx, awayKey{}, away)
	// A request that is still being read counts, too.
	if e := h.gate.enter(); e != nil {
		failWith(w, h.server.turnAway(h.gate, noStream{ctx: ctx}, e))
		return
	}
	defer h.gate.leave()
	id, err := h.server.identify(ctx, h.gate)
	if err != nil {
		refuseClient(w, err)
		return
	}
	if err := h.server.paceIdentity(ctx, h.gate, id); err != nil {
		failWith(w, err)
		return
	}
	req, ok := h.read(w, r, identityKeyOf(ctx, id))
	if !ok {
		return
	}
	if patience, ok := clientPatience(r.Header); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	answer, err := h.server.fetch(ctx, h.gate, id, formREST, service.TypeURL, req, h.gate.longPoll)
	closeIfLeaving(ctx, w)
	switch {
	case r.Context().Err() != nil: // the client has gone
	case err != nil:
		failWith(w, err)
	case answer == nil:
		w.WriteHeader(http.StatusNotModified)
	default:
		entry := h.server.toJSON(answer, service)
		done, err := entry.join(r.Context(), h.server.answers, party{identityKeyOf(ctx, id), limitedOf(r)}, connCloser(r))
		if err != nil {
			failWith(w, err) // in vain, if the client has gone
			return
		}
		defer done()
		body, err := entry.get()
		if incomplete := (*incompleteError)(nil); errors.As(err, &incomplete) {
			if log, ok := h.gate.line(eventIncomplete, h.server.options.Log.With("client", clientAddress(r))); ok {
				log.Warn("a client over REST gets no update, because a resource has no JSON form", "path", r.URL.Path, "name", loglines.Clip(incomplete.name), "reason", incomplete.why)
			}
			fail(w, http.StatusServiceUnavailable, codes.Unavailable, err.Error())
			return
		}
		if err != nil {
			fail(w, http.StatusInternalServerError, codes.Internal, err.Error())
			return
		}
		send(w, http.StatusOK, body)
	}
}

// read reads the request. If that fails, it answers the client and returns false.
func (h *restHandler) read(w http.ResponseWriter, r *http.Request, of identityKey) (*discoveryv3.DiscoveryRequest, bool) {
	limit := int64(h.options.MaxRequestBytes)
	body := jsonRequest{conn: h.arrivingOn(r)}
	defer body.free()
	tooMuch, err := body.read(http.MaxBytesReader(w, r.Body, limit), h.gate.limits)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		e := over(limitRequestBytes, int(max(r.ContentLength, limit+1)), int(limit), "a request of at least %d bytes")
		fail(w, http.StatusRequestEntityTooLarge, codes.ResourceExhausted, h.server.refuseRequest(h.gate, clientAddress(r), e).Error())
		return nil, false
	case tooMuch != nil:
		fail(w, http.StatusTooManyRequests, codes.ResourceExhausted, h.server.refuseRequest(h.gate, clientAddress(r), tooMuch).Error())
		return nil, false
	case err != nil:
		fail(w, http.StatusBadRequest, codes.InvalidArgument, "the request is incomplete: "+err.Error())
		return nil, false
	}
	place, err := h.decoding.take(r.Context(), party{of, limitedOf(r)}, nil)
	if err != nil {
		return nil, false // the client has gone
	}
	defer place.Give()
	req := new(discoveryv3.DiscoveryRequest)
	// A client's API may be newer than the relay's, as it may over gRPC.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body.bytes(), req); err != nil {
		// The error may quote the client, and so is for the client only.
		if log, ok := h.gate.line(eventInvalid, h.server.options.Log.With("client", clientAddress(r))); ok {
			log.Warn("client's request is not valid", "path", r.URL.Path)
		}
		fail(w, http.StatusBadRequest, codes.InvalidArgument, "the body is not a DiscoveryRequest in JSON: "+protoText(err))
		return nil, false
	}
	return req, true
}

func (h *restHandler) unknownPath(path string) string {
	if !h.options.V2 {
		for _, service := range xdstype.Services(true) {
			if service.Path != "" && service.Path == path {
				return fmt.Sprintf("%q is of the v2 transport, which this listener does not serve", path)
			}
		}
	}
	return fmt.Sprintf("there is no discovery service at %q (want a path such as %s)", loglines.Clip(path), xdstype.Cluster.V3.Path)
}

// clientPatience is how long the client waits for the answer, if it states that.
func clientPatience(h http.Header) (time.Duration, bool) {
	ms, err := strconv.ParseUint(h.Get(timeoutHeader), 10, 31)
	return time.Duration(ms) * time.Millisecond, err == nil && ms > 0
}

// httpStatus is the HTTP status of a gRPC code, as in google/rpc/code.proto.
func httpStatus(code codes.Code) int {
	switch code {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.Unimplemented:
		return http.StatusNotImplemented
	default:
		return http.StatusInternalServerError
	}
}

// failWith answers with an error that is a gRPC status.
func failWith(w http.ResponseWriter, err error) {
	st := status.Convert(err)
	fail(w, httpStatus(st.Code()), st.Code(), st.Message())
}

// fail answers with a google.rpc.Status.
func fail(w http.ResponseWriter, httpStatus int, code codes.Code, message string) {
	body, err := protojson.Marshal(status.New(code, strings.ToValidUTF8(message, "?")).Proto())
	if err != nil {
		body = []byte("{}") // not reached: its fields always have a JSON form
	}
	send(w, httpStatus, body)
}

func send(w http.ResponseWriter, httpStatus int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(httpStatus)
	_, _ = w.Write(body) // the client has gone
}

// pace waits until the request may be answered. It returns false if the client has gone first.
func (h *restHandler) pace(r *http.Request) bool {
	conn, _ := r.Context().Value(restConnKey{}).(*restConn)
	if conn == nil || conn.pace == nil || r.ProtoMajor == 2 { // HTTP/2 connections are read more slowly instead: restListener
		return true
	}
	waited, ok := pause(r.Context(), conn.pace)
	if !waited {
		return true
	}
	h.server.stats.limits[limitRequests].Add(1)
	if log, ok := h.gate.line(eventPaced, h.server.options.Log.With("client", clientAddress(r))); ok {
		log.Warn(fasterThanRead, "limit", limitRequests.String(), "max", h.gate.limits.RequestsPerSecond)
	}
	return ok
}

// clientAddress returns the address of a request's client. net/http has that of the balancer, if there is one.
func clientAddress(r *http.Request) string {
	if c, ok := r.Context().Value(restConnKey{}).(*restConn); ok {
		return c.conn.RemoteAddr().String()
	}
	return r.RemoteAddr
}

// arrivingOn returns the requests that arrive on the connection of a request.
func (h *restHandler) arrivingOn(r *http.Request) *arriving {
	c, ok := r.Context().Value(restConnKey{}).(*restConn)
	if !ok {
		return nil
	}
	conn := limitedOf(r)
	if conn == nil {
		return nil
	}
	c.join.Do(func() { conn.counts(h.server.joinArrivals(conn, h.peerOf(r).AuthInfo)) })
	return conn.arriving.Load()
}

// connCloser returns what closes the connection of a request.
func connCloser(r *http.Request) io.Closer {
	if c, ok := r.Context().Value(restConnKey{}).(*restConn); ok {
		return c.conn
	}
	return io.NopCloser(nil) // the server is not that of HTTPServer
}

// limitedOf returns the connection of a request, nil if the server is not that of HTTPServer.
func limitedOf(r *http.Request) *limitedConn {
	if c, ok := r.Context().Value(restConnKey{}).(*restConn); ok {
		if metered, ok := c.conn.(*meteredConn); ok {
			return metered.limited
		}
	}
	return nil
}

// peerOf returns a request's client in gRPC's form.
func (h *restHandler) peerOf(r *http.Request) *peer.Peer {
	c, ok := r.Context().Value(restConnKey{}).(*restConn)
	if !ok { // the server is not that of HTTPServer
		return &peer.Peer{Addr: remoteAddr(r.RemoteAddr)}
	}
	p := &peer.Peer{Addr: c.conn.RemoteAddr(), LocalAddr: c.conn.LocalAddr()}
	metered, ok := c.conn.(*meteredConn)
	if ok && metered.tls != nil && h.gate.identify != nil {
		p.AuthInfo = credentials.TLSInfo{State: metered.tls.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	}
	return p
}
