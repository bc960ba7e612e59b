package taster

import (
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// This file reads a resource as gRPC does. gRPC's own code cannot be imported, so its requirements are here, as
// tables of rules. grpc_test.go breaks each rule once, and checks that gRPC's Go client rejects the same resource.
// Requirements of experimental client features are not checked, nor those of a client's extensions (load balancers,
// certificate providers).

// rule is a requirement that gRPC has for a message.
type rule[M any] struct {
	id   string // for people, as in Rule
	grfc string // the gRFCs that have the requirement
	want string // the requirement
	ok   func(t *tasting, m M) bool
}

// rules are the requirements that gRPC has for a message.
type rules[M any] []rule[M]

// check returns the first rule that a message breaks, nil if there is none.
func (rs rules[M]) check(t *tasting, m M) *violation {
	for i := range rs {
		if !rs[i].ok(t, m) {
			if v := t.broken(&violation{id: rs[i].id, grfc: rs[i].grfc, want: rs[i].want}); v != nil {
				return v
			}
		}
	}
	return nil
}

// violation is a rule that a resource breaks.
type violation struct {
	id, grfc, want string
	path           []step // from the innermost field outwards
	undecodable    anyKey // the Any that cannot be decoded, nil for other violations
}

// step is a field on the path to a message, and the index in it, -1 if the field is not a list.
type step struct {
	field string
	index int
}

// broken returns a violation, or nil if [Type.Findings] has it already.
func (t *tasting) broken(v *violation) *violation {
	if t.passed > 0 {
		t.passed--
		return nil
	}
	return v
}

// in adds a field to the path of the violation. It may be called on nil.
func (v *violation) in(field string) *violation {
	if v != nil {
		v.path = append(v.path, step{field, -1})
	}
	return v
}

// at is like in, for an element of a list.
func (v *violation) at(field string, index int) *violation {
	if v != nil {
		v.path = append(v.path, step{field, index})
	}
	return v
}

// where returns the path of the message, empty for the resource.
func (v *violation) where() string {
	var path []byte
	for _, s := range slices.Backward(v.path) {
		if len(path) > 0 {
			path = append(path, '.')
		}
		path = append(path, s.field...)
		if s.index >= 0 {
			path = append(strconv.AppendInt(append(path, '['), int64(s.index), 10), ']')
		}
	}
	return string(path)
}

// same reports whether two violations, of different resources, have the same text. Both may be nil.
func (v *violation) same(w *violation) bool {
	return v != nil && w != nil && v.want == w.want && v.grfc == w.grfc && slices.Equal(v.path, w.path)
}

// String returns the broken rule's requirement, and the path.
func (v *violation) String() string {
	where := v.where()
	if where != "" {
		where = "in " + where + ", "
	}
	return loglines.Clip(fmt.Sprintf("%sit requires that %s (gRFC %s)", where, v.want, v.grfc))
}

// eachOf checks each message of a list.
func eachOf[M any](field string, list []M, check func(M) *violation) *violation {
	for i, m := range list {
		if v := check(m); v != nil {
			return v.at(field, i)
		}
	}
	return nil
}

// first returns the first violation of several checks.
func first(checks ...func() *violation) *violation {
	for _, check := range checks {
		if v := check(); v != nil {
			return v
		}
	}
	return nil
}

// grpcParsers check the types that gRPC reads, by their type URLs.
var grpcParsers = map[string]func(*tasting, proto.Message) *violation{
	xdstype.ClusterV3:   parser(checkCluster),
	xdstype.EndpointsV3: parser(checkEndpoints),
	xdstype.ListenerV3:  parser(checkListener),
	xdstype.RouteV3:     parser(checkRoutes),
}

func parser[M proto.Message](check func(*tasting, M) *violation) func(*tasting, proto.Message) *violation {
	return func(t *tasting, m proto.Message) *violation { return check(t, m.(M)) }
}

// openAs decodes an Any as a message of a type. ok is false if the Any has another type.
func openAs[M proto.Message](t *tasting, a *anypb.Any) (m M, ok bool) {
	m, ok = t.open(a).message.(M)
	return m, ok
}

// undecodable returns the violation for an Any that cannot be decoded. It is nil if the Any can be decoded, or its
// type is unknown.
func (t *tasting) undecodable(grfc string, a *anypb.Any) *violation {
	if a == nil || !t.open(a).failed {
		return nil
	}
	return t.broken(&violation{id: anyDecodable, grfc: grfc, want: wantDecodable, undecodable: a})
}
