package resource

import (
	"slices"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// FuzzClaims finds the same claims in any bytes of a message as in the message that protobuf reads from them and writes.
func FuzzClaims(f *testing.F) {
	types := []struct {
		url     string
		message func() proto.Message
		text    string
	}{
		{xdstype.ListenerV3, func() proto.Message { return &listenerv3.Listener{} }, `address { socket_address { protocol: UDP address: "::1" port_value: 80 } }
			additional_addresses { address { pipe { path: "/x" } } } bind_to_port {} deprecated_v1 { bind_to_port { value: true } }`},
		{xdstype.ScopedRouteV3, func() proto.Message { return &routev3.ScopedRouteConfiguration{} }, `key { fragments { string_key: "a" } fragments {} }`},
		{xdstype.VirtualHostV3, func() proto.Message { return &routev3.VirtualHost{} }, `domains: "A" domains: "*"`},
	}
	for i, of := range types {
		m := of.message()
		if err := prototext.Unmarshal([]byte(of.text), m); err != nil {
			f.Fatal(err)
		}
		value, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), value)
		f.Add(uint8(i), slices.Concat(value, value))
	}
	f.Fuzz(func(t *testing.T, which uint8, value []byte) {
		of := types[int(which)%len(types)]
		m := of.message()
		if proto.Unmarshal(value, m) != nil {
			return
		}
		written, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		claims := func(value []byte) []uint64 {
			return New(Spec{Name: "r/n", Version: "1", TypeURL: of.url, Value: value}).Claims()
		}
		if got, want := claims(value), claims(written); !slices.Equal(got, want) {
			t.Fatalf("%x claims %x, and %x, which is the same message, %x", value, got, written, want)
		}
	})
}
