package secrets

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/internal/wire"
)

// What looks for secrets reads the same fields as everything else does.
func FuzzFieldsAreThoseOfWire(f *testing.F) {
	f.Add([]byte("\x0a\x03abc\x10\x01\x1a\x00"))
	f.Add([]byte("\x0a\x80\x01" + string(make([]byte, 128))))
	f.Add([]byte("\x0d1234\x119999\x00"))
	f.Add([]byte("\x0b\x10\x01\x0c\x12\x7f"))
	f.Add([]byte("\x82\x01\x01a\x02\x00"))
	f.Fuzz(func(t *testing.T, message []byte) {
		walk := wire.Walk(message)
		for rest := message; ; {
			more := walk.Next()
			if len(rest) == 0 {
				if more || walk.Err != nil {
					t.Fatalf("a field %d after the end: %v", walk.Num, walk.Err)
				}
				return
			}
			num, typ, value, n := field(rest)
			if !more {
				if n >= 0 && num <= protowire.MaxValidNumber {
					t.Fatalf("field %d is read, and is none: %v", num, walk.Err)
				}
				return
			}
			if num != walk.Num || typ != walk.Type || !bytes.Equal(value, walk.Bytes) || n != len(walk.Raw) {
				t.Fatalf("got field %d of %d bytes, %q, want %d of %d, %q", num, n, value, walk.Num, len(walk.Raw), walk.Bytes)
			}
			rest = rest[n:]
		}
	})
}
