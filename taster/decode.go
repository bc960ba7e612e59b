package taster

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/wire"
)

// Decoding, within bounds.

const (
	// deepest is how deep messages may be nested for clients in C++ and in Java: protobuf's
	// default there. Go's is a hundred times that.
	deepest = 100
	// mostTasted is the length of the longest resource that is validated, in bytes.
	mostTasted = 16 << 20
	// mostMessages is how many messages a resource may have. They take some 100 bytes of memory
	// each. It is several times what a resource of mostTasted has that is not made for this.
	mostMessages = 4 << 20
	// uncounted is the length of a resource whose messages are not counted before.
	uncounted = 1 << 20
	// anyDepth is how deep Anys in Anys are looked at.
	anyDepth = 16
)

const errTooDeep = "its messages are nested more than 100 deep"

var errTooMany = errors.New("it has more messages than anybody can hold")

// decode decodes a message into m, which is empty. tooDeep says that some clients cannot: what m
// is then is not defined.
func decode(m proto.Message, value []byte) (tooDeep bool, err error) {
	if len(value) > uncounted && countMessages(value, m.ProtoReflect().Descriptor().Fields(), 0) > mostMessages {
		return false, errTooMany
	}
	if (proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true, RecursionLimit: deepest}).Unmarshal(value, m) == nil {
		return false, nil
	}
	// Why is in no error that could be told from others.
	if err := (proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true}).Unmarshal(value, m); err != nil {
		return false, err
	}
	return true, nil
}

// countMessages counts the messages in a message, and the texts. It counts too many rather than
// too few, and ends when there are more than mostMessages, or where the message cannot be read.
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

// anyKey tells the Anys of a resource from each other.
type anyKey = *anypb.Any

// opened is what is in an Any.
type opened struct {
	message proto.Message // nil if it could not be decoded
	known   bool          // the binary knows the type
	failed  bool          // its bytes are no message of its type
}

// open decodes what is in an Any, once.
func (t *tasting) open(a *anypb.Any) opened {
	if o, ok := t.opened[a]; ok {
		return o
	}
	var o opened
	if of, err := protoregistry.GlobalTypes.FindMessageByURL(a.GetTypeUrl()); err == nil {
		m := of.New().Interface()
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
