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

// ForScope returns a connection whose streams name a scope.
func ForScope(conn grpc.ClientConnInterface, s cache.Scope) grpc.ClientConnInterface {
	return scopedConn{conn, string(encodeScope(s))}
}

type scopedConn struct {
	grpc.ClientConnInterface
	scope string
}

// NewStream implements grpc.ClientConnInterface.
func (c scopedConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.ClientConnInterface.NewStream(metadata.AppendToOutgoingContext(ctx, ScopeHeader, c.scope), desc, method, opts...)
}
