package taster

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// This file decodes resources within bounds.

const (
	// deepest is how deep messages may be nested for clients in C++ and Java: the default of protobuf there. Go's
	// default is a hundred times that.
	deepest = 100
	// mostTasted is the length of the longest resource that is validated, in bytes.
	mostTasted = 16 << 20
	// mostMessages bounds the messages in a resource, which take about 100 bytes of memory each. Ordinary resources
	// of length mostTasted have far fewer.
	mostMessages = 4 << 20
	// uncounted is the length up to which a resource's messages are not counted before decoding.
	uncounted = 1 << 20
	// anyDepth is how deep nested Anys are checked.
	anyDepth = 16
)

const errTooDeep = "its messages are nested more than 100 deep"

var errTooMany = errors.New("it has too many messages")

// decode decodes a message into m, which is empty. tooDeep: some clients cannot decode the message. The content of m
// is undefined then.
func decode(m proto.Message, value []byte) (tooDeep bool, err error) {
	if len(value) > uncounted && countMessages(value, m.ProtoReflect().Descriptor().Fields(), 0) > mostMessages {
		return false, errTooMany
	}
	if (proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true, RecursionLimit: deepest}).Unmarshal(value, m) == nil {
		return false, nil
	}
	// protobuf has no distinguishable error for this.
	if err := (proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true}).Unmarshal(value, m); err != nil {
		return false, err
	}
	return true, nil
}

// countMessages counts the messages and strings in a message. It counts too many rather than too few, and stops at
// more than mostMessages, or where the message cannot be decoded.
func countMessages(message []byte, fields protoreflect.FieldDescriptors, depth int) (n int) {
	if depth > deepest {
		return 0
	}
	for len(message) > 0 && n <= mostMessages {
		num, value, size := wire.NextBytes(message)
		if size == 0 {
			if _, _, size = protowire.ConsumeField(message); size < 0 {
				return n
			}
		}
		message = message[size:]
		n++
		if field := fields.ByNumber(num); field != nil && field.Kind() == protoreflect.MessageKind {
			n += countMessages(value, field.Message().Fields(), depth+1)
		}
	}
	return n
}

// anyKey identifies an Any in a resource.
type anyKey = *anypb.Any

// opened is the content of an Any.
type opened struct {
	message proto.Message // nil if it could not be decoded
	known   bool          // the binary knows the type
	failed  bool          // its bytes are not a message of its type
}

// open decodes the content of an Any, once.
func (t *tasting) open(a *anypb.Any) opened {
	if o, ok := t.opened[a]; ok {
		return o
	}
	var o opened
	if known, err := (descriptors.Types{}).FindMessageByURL(a.GetTypeUrl()); err == nil {
		m := known.New().Interface()
		tooDeep, err := decode(m, a.GetValue())
		if o.known, o.failed = true, err != nil || tooDeep; !o.failed {
			o.message = m
		}
	}
	if t.opened == nil {
		t.opened = map[anyKey]opened{}
	}
	t.opened[a] = o
	return o
}
