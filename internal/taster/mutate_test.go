package taster

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
)

// mutator changes messages at random, in all kinds of fields, also inside Anys.
type mutator struct{ *rand.Rand }

// mutate changes a message a few times.
func (r mutator) mutate(m proto.Message) {
	for range 1 + r.IntN(4) {
		r.change(m.ProtoReflect(), 0)
	}
}

// deepestChange is how deep a message is changed.
const deepestChange = 24

// change changes one thing in a message, at any depth.
func (r mutator) change(m protoreflect.Message, depth int) {
	if a, ok := m.Interface().(*anypb.Any); ok {
		r.any(a, depth)
		return
	}
	fields := m.Descriptor().Fields()
	if fields.Len() == 0 || depth > deepestChange {
		return
	}
	var set []protoreflect.FieldDescriptor
	for i := range fields.Len() {
		if f := fields.Get(i); m.Has(f) && f.Message() != nil {
			set = append(set, f)
		}
	}
	// Most changes are further inside.
	if len(set) > 0 && r.IntN(5) > 0 {
		r.inside(m, set[r.IntN(len(set))], depth)
		return
	}
	r.field(m, fields.Get(r.IntN(fields.Len())), depth)
}

// inside changes something in the messages of a field that is set.
func (r mutator) inside(m protoreflect.Message, f protoreflect.FieldDescriptor, depth int) {
	switch {
	case f.IsMap():
		values := m.Mutable(f).Map()
		if f.MapValue().Message() == nil {
			r.field(m, f, depth)
			return
		}
		r.change(values.Mutable(r.key(values)).Message(), depth+1)
	case f.IsList():
		list := m.Mutable(f).List()
		if r.IntN(4) == 0 {
			r.field(m, f, depth)
			return
		}
		r.change(list.Get(r.IntN(list.Len())).Message(), depth+1)
	default:
		r.change(m.Mutable(f).Message(), depth+1)
	}
}

func (r mutator) key(values protoreflect.Map) protoreflect.MapKey {
	var keys []protoreflect.MapKey
	values.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
	return keys[r.IntN(len(keys))]
}

// field sets a field to something else, or clears it.
func (r mutator) field(m protoreflect.Message, f protoreflect.FieldDescriptor, depth int) {
	if m.Has(f) && r.IntN(3) == 0 {
		m.Clear(f)
		return
	}
	switch {
	case f.IsMap():
		values := m.Mutable(f).Map()
		value := values.NewValue()
		if f.MapValue().Message() != nil {
			r.fill(value.Message(), depth+1)
		} else {
			value = r.scalar(f.MapValue())
		}
		values.Set(r.scalar(f.MapKey()).MapKey(), value)
	case f.IsList():
		r.list(m.Mutable(f).List(), f, depth)
	case f.Message() != nil:
		r.fill(m.Mutable(f).Message(), depth+1)
	default:
		m.Set(f, r.scalar(f))
	}
}

// list adds an element to a list, one twice, or takes one out.
func (r mutator) list(list protoreflect.List, f protoreflect.FieldDescriptor, depth int) {
	n := list.Len()
	switch how := r.IntN(3); {
	case how == 0 && n > 0:
		out := r.IntN(n)
		for i := out; i+1 < n; i++ {
			list.Set(i, list.Get(i+1))
		}
		list.Truncate(n - 1)
	case how == 1 && n > 0:
		again := list.Get(r.IntN(n))
		if f.Message() != nil {
			again = protoreflect.ValueOfMessage(proto.Clone(again.Message().Interface()).ProtoReflect())
		}
		list.Append(again)
	case f.Message() != nil:
		r.fill(list.AppendMutable().Message(), depth+1)
	default:
		list.Append(r.scalar(f))
	}
}

// fill sets some fields of a message that is new.
func (r mutator) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	if a, ok := m.Interface().(*anypb.Any); ok {
		r.any(a, depth)
		return
	}
	if depth > deepestChange || fields.Len() == 0 {
		return
	}
	for range r.IntN(4) {
		r.field(m, fields.Get(r.IntN(fields.Len())), depth+8)
	}
}

// packed are the types that an Any is changed to.
var packed = []protoreflect.FullName{
	"envoy.extensions.filters.http.router.v3.Router", "envoy.extensions.filters.http.fault.v3.HTTPFault",
	"envoy.extensions.filters.http.rbac.v3.RBAC", "envoy.extensions.filters.http.rbac.v3.RBACPerRoute",
	"envoy.extensions.filters.http.lua.v3.Lua", "envoy.config.route.v3.FilterConfig",
	"envoy.extensions.filters.http.stateful_session.v3.StatefulSession", "envoy.extensions.filters.http.stateful_session.v3.StatefulSessionPerRoute",
	"envoy.extensions.http.stateful_session.cookie.v3.CookieBasedSessionState",
	"envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
	"envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
	"envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash", "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
	"envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality", "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin",
	"envoy.extensions.load_balancing_policies.pick_first.v3.PickFirst",
	"envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin",
	"envoy.extensions.clusters.aggregate.v3.ClusterConfig", "xds.type.v3.TypedStruct",
}

// any changes what is in an Any, or what type it is.
func (r mutator) any(a *anypb.Any, depth int) {
	switch r.IntN(12) {
	case 0:
		a.Value = []byte{0x0a, 0xff}
		return
	case 1:
		a.Reset()
		return
	case 2, 3:
		if message, err := protoregistry.GlobalTypes.FindMessageByName(packed[r.IntN(len(packed))]); err == nil {
			m := message.New()
			r.fill(m, depth)
			_ = a.MarshalFrom(m.Interface())
		}
		return
	}
	m, err := a.UnmarshalNew()
	if err != nil {
		return
	}
	r.change(m.ProtoReflect(), depth+1)
	_ = a.MarshalFrom(m)
}

var (
	words = []string{
		"", "a", "b", "*", "(", "a+", "/", "/a", "x-h", ":path", ":scheme", "grpc-x", "Grpc-Timeout", "host", "10.0.0.1", "::1", "10.0.0.0", "raw_buffer", "tls",
		"cart", "shop-routes", "p", "envoy.transport_sockets.tls", "envoy.clusters.aggregate", "io.grpc.channel_id", "xdstp://a/b/c", "unavailable", "[a", "(?i)a", `\C`, "é",
	}
	numbers = []uint64{0, 1, 2, 3, 80, 100, 101, 255, 256, 1024, 8 << 20, 8<<20 + 1, 315576000000, math.MaxInt32, math.MaxUint32, math.MaxInt64}
)

// scalar returns a value of a field.
func (r mutator) scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	number := numbers[r.IntN(len(numbers))]
	signed := int64(number)
	if r.IntN(3) == 0 {
		signed = -signed
	}
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(r.IntN(2) == 0)
	case protoreflect.StringKind:
		// The client's bootstrap has two providers of certificates.
		if f.Name() == "instance_name" {
			return protoreflect.ValueOfString([]string{"", "roots", "own"}[r.IntN(3)])
		}
		return protoreflect.ValueOfString(words[r.IntN(len(words))])
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(words[r.IntN(len(words))]))
	case protoreflect.EnumKind:
		if r.IntN(8) == 0 {
			return protoreflect.ValueOfEnum(77)
		}
		return protoreflect.ValueOfEnum(f.Enum().Values().Get(r.IntN(f.Enum().Values().Len())).Number())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(signed))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(signed)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(number)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(signed))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(signed))
	default:
		panic("a message is no scalar")
	}
}
