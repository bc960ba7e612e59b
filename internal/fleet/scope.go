package fleet

import (
	"context"
	"encoding/binary"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/xds-relay/xds-relay/cache"
)

// A stream between peers is for one scope, which it names in its metadata. The names in its requests are those of the
// scope's topics.

// ScopeHeader is the metadata with the scope of a stream.
const ScopeHeader = "x-xds-relay-scope-bin"

// scopeVersion is the first byte of an encoded scope. Peers refuse streams with another one.
const scopeVersion = 1

// encodeScope returns the encoding of a scope that servers feed. Equal scopes have equal encodings.
func encodeScope(s cache.Scope) []byte {
	b := []byte{scopeVersion, 0}
	if s.OldStyle {
		b[1] = 1
	}
	for _, text := range []string{s.Authority, s.Partition, s.Params} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	return b
}

var errScope = errors.New("the stream names no scope that this relay understands")

// decodeScope undoes encodeScope.
func decodeScope(b []byte) (s cache.Scope, err error) {
	if len(b) < 2 || b[0] != scopeVersion || b[1] > 1 {
		return s, errScope
	}
	s.OldStyle = b[1] == 1
	b = b[2:]
	for _, text := range []*string{&s.Authority, &s.Partition, &s.Params} {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return cache.Scope{}, errScope
		}
		*text, b = string(b[size:size+int(n)]), b[size+int(n):]
	}
	if len(b) > 0 {
		return cache.Scope{}, errScope
	}
	return s, nil
}

// ScopeOf returns the scope that a peer's stream is for.
func ScopeOf(ctx context.Context) (cache.Scope, error) {
	values := metadata.ValueFromIncomingContext(ctx, ScopeHeader)
	if len(values) != 1 {
		return cache.Scope{}, errScope
	}
	return decodeScope([]byte(values[0]))
}

// MemberHeader is the metadata with the address of the caller, as the list of members has it.
const MemberHeader = "x-xds-relay-member"

// stateHeader is in the metadata of a stream that is only for what the member has now of the scope: see [Fleet.TakeOver].
const stateHeader = "x-xds-relay-state"

// MemberOf returns the address of a peer that has opened a stream, "" if it does not say it.
func MemberOf(ctx context.Context) string {
	if values := metadata.ValueFromIncomingContext(ctx, MemberHeader); len(values) == 1 {
		return values[0]
	}
	return ""
}

// OnlyState reports whether a peer's stream is only for what the relay has now.
func OnlyState(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, stateHeader)) > 0
}

// ForScope returns a connection whose streams name a scope. more is further metadata, keys and values.
func ForScope(conn grpc.ClientConnInterface, s cache.Scope, more ...string) grpc.ClientConnInterface {
	return scopedConn{conn, append([]string{ScopeHeader, string(encodeScope(s))}, more...)}
}

type scopedConn struct {
	grpc.ClientConnInterface
	metadata []string
}

// NewStream implements grpc.ClientConnInterface.
func (c scopedConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.ClientConnInterface.NewStream(metadata.AppendToOutgoingContext(ctx, c.metadata...), desc, method, opts...)
}

// ForState returns a connection whose streams are only for what the member has now of a scope. giving is called with each
// response, and failed when one of the streams fails. The stream then ends when its caller ends it: a member that has nothing is no control plane that fails,
// with all that follows from that.
func ForState(conn grpc.ClientConnInterface, s cache.Scope, giving, failed func()) grpc.ClientConnInterface {
	return stateConn{ForScope(conn, s, stateHeader, "only"), giving, failed}
}

type stateConn struct {
	grpc.ClientConnInterface
	giving, failed func()
}

// NewStream implements grpc.ClientConnInterface.
func (c stateConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil {
		c.failed()
		<-ctx.Done()
		return nil, err
	}
	return stateStream{stream, ctx, c}, nil
}

type stateStream struct {
	grpc.ClientStream
	ctx context.Context // that of the caller
	stateConn
}

// RecvMsg implements grpc.ClientStream.
func (s stateStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch {
	case err == nil:
		s.giving()
	case s.ctx.Err() == nil:
		s.failed()
		<-s.ctx.Done()
	}
	return err
}
