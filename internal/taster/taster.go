package taster

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Mode decides what happens to a resource that clients would reject.
type Mode uint8

const (
	// Warn refuses resources that no client can read. Resources that one family of clients would reject pass, and are
	// reported.
	Warn Mode = iota
	// Refuse refuses resources that any family of clients would reject.
	Refuse
	// Off checks nothing: it treats every type as one that the binary does not know.
	Off
)

// Refuses reports whether a resource with this verdict is refused.
func (m Mode) Refuses(v *Verdict) bool {
	return v != nil && (m == Refuse || v.Unreadable != "")
}

// Taste is [Type.Taste], within the limits of the mode.
func (m Mode) Taste(t Type, value []byte) *Verdict {
	if m == Off {
		t.known = nil
	}
	return t.Taste(value)
}

// Verdict has the reasons why clients would reject a resource. It quotes no values of the resource. Resources may
// share a Verdict, so it must not be changed.
type Verdict struct {
	// Unreadable is why no client can read the resource, empty if some can.
	Unreadable string
	// Envoy and GRPC are why clients of the family would reject the resource, empty if they
	// would not.
	Envoy, GRPC string
}

// Reason returns the verdict as the end of a sentence that begins with the resource.
func (v *Verdict) Reason() string {
	switch {
	case v.Unreadable != "":
		return v.Unreadable
	case v.Envoy != "" && v.GRPC != "":
		return fmt.Sprintf("would be rejected by Envoy (%s) and by gRPC (%s)", v.Envoy, v.GRPC)
	case v.Envoy != "":
		return "would be rejected by Envoy: " + v.Envoy
	}
	return "would be rejected by gRPC: " + v.GRPC
}

// Error implements error.
func (v *Verdict) Error() string { return v.Reason() }

// Type knows how clients read resources of one type.
type Type struct {
	url    string
	*known // nil if the binary does not know the type
}

// known is what the binary knows of a message type.
type known struct {
	name    protoreflect.FullName
	typeURL string // with the usual prefix
	message protoreflect.MessageType
	anys    *anyFields
	grpc    func(*tasting, proto.Message) *violation // nil if gRPC does not read the type
	// idle has *tasting values of the type for reuse, because their messages are large.
	idle sync.Pool
}

// knownTypes has a *known for each message type that was requested, by name. The message types that are known bound its
// size.
var knownTypes descriptors.Cached[sync.Map]

// Of returns the type of a type URL.
func Of(typeURL string) Type {
	types := knownTypes.Get()
	message, err := descriptors.Types{}.FindMessageByURL(typeURL)
	if err != nil {
		return Type{url: typeURL}
	}
	name := message.Descriptor().FullName()
	k, ok := types.Load(name)
	if !ok {
		made := &known{name: name, typeURL: xdstype.Prefix + string(name), message: message, anys: anysIn(message.Descriptor())}
		made.grpc = grpcParsers[made.typeURL]
		first := message.Descriptor().Fields().ByNumber(nameNumber)
		named := first != nil && first.Kind() == protoreflect.StringKind
		made.idle.New = func() any { return &tasting{message: message.New().Interface(), named: named} }
		k, _ = types.LoadOrStore(name, made)
	}
	return Type{typeURL, k.(*known)}
}

// Taste returns why clients would reject a resource, nil if they would not. A resource of a type that the binary does
// not know only has to be a valid message.
func (t Type) Taste(value []byte) (v *Verdict) {
	if t.known == nil {
		if _, err := wire.InnerName(value); err != nil {
			return t.unreadable(err)
		}
		return nil
	}
	defer func() {
		if recover() != nil {
			// A validator has panicked. That proves nothing else about the resource.
			v = &Verdict{Envoy: "it makes the validator of " + string(t.name) + " panic"}
		}
	}()
	tasting := t.begin(value)
	tooDeep, err := decode(tasting.message, value)
	switch {
	case err != nil:
		return t.unreadable(err)
	case tooDeep:
		return &Verdict{Envoy: errTooDeep}
	case len(value) <= mostTasted:
		v = t.judge(tasting)
	}
	t.end(tasting)
	return v
}

// begin returns a tasting of a value, with a message to decode it into.
func (k *known) begin(value []byte) *tasting {
	t := k.idle.Get().(*tasting)
	t.typeURL, t.value = k.typeURL, value
	t.refill()
	return t
}

// refill gives a tasting its budgets.
func (t *tasting) refill() { t.regexps, t.matches = mostRegexps, mostMatches }

// end keeps a tasting for another resource. It is not called after a failure: then the message may be large, or in an
// inconsistent state.
func (k *known) end(t *tasting) {
	proto.Reset(t.message)
	t.value, t.opened = nil, nil
	k.idle.Put(t)
}

func (t Type) unreadable(err error) *Verdict {
	return &Verdict{Unreadable: fmt.Sprintf("is no %s: %s", xdstype.Message(t.url), wire.ErrorText(err))}
}

// judge returns why clients would reject a decoded resource.
func (k *known) judge(t *tasting) *Verdict {
	envoy := t.envoy(t.message, k.anys)
	var grpc *violation
	if k.grpc != nil {
		grpc = k.grpc(t, t.message)
	}
	if envoy == nil && grpc == nil {
		return nil
	}
	if envoy == nil && grpc.same(t.last) {
		return t.lastVerdict
	}
	v := &Verdict{}
	if envoy != nil {
		v.Envoy = envoy.text
	}
	if grpc != nil {
		v.GRPC = grpc.String()
	}
	if envoy == nil && grpc.undecodable == nil {
		t.last, t.lastVerdict = grpc, v
	}
	if envoy != nil && envoy.undecodable && grpc != nil && grpc.undecodable != nil {
		v.Unreadable = fmt.Sprintf("has a message in it that no client can read: %s", envoy.text)
	}
	return v
}

// nameNumber is the number of the name field, in message types that have one.
const nameNumber = 1

// tasting is the state of checking one resource.
type tasting struct {
	typeURL string
	value   []byte
	message proto.Message // the decoded value
	named   bool          // field nameNumber is a string, so it contains no message
	// opened are the Anys that were decoded. Both families read some of them.
	opened map[anyKey]opened
	// last is the last violation that gRPC alone reported, for another resource, and lastVerdict its verdict:
	// resources made for Envoy mostly break the same rule, and share the verdict.
	last        *violation
	lastVerdict *Verdict
	// regexps is the remaining number of bytes of regular expressions to parse, and matches the remaining number of
	// filter chain matches to compare.
	regexps, matches int

	// The remaining fields are used for findings only.
	passed   int        // how many violations of gRPC's rules to skip
	findings *[]Finding // nil if only the first finding is wanted
	path     []byte     // of the message that Envoy checks
}
