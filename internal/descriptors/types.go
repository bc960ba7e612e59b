package descriptors

import (
	"errors"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
)

// Types finds all types that are known. It is a resolver for protojson, prototext, proto and anypb, and safe for
// concurrent use.
type Types struct{}

// FindMessageByName implements protoregistry.MessageTypeResolver.
func (Types) FindMessageByName(name protoreflect.FullName) (protoreflect.MessageType, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if errors.Is(err, protoregistry.NotFound) {
		return findMessage(name)
	}
	return t, err
}

// FindMessageByURL implements protoregistry.MessageTypeResolver.
func (Types) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	if err == nil || !errors.Is(err, protoregistry.NotFound) {
		return t, err
	}
	return findMessage(nameIn(url))
}

// FindExtensionByName implements protoregistry.ExtensionTypeResolver.
func (Types) FindExtensionByName(field protoreflect.FullName) (protoreflect.ExtensionType, error) {
	t, err := protoregistry.GlobalTypes.FindExtensionByName(field)
	if s := newest.Load(); s != nil && errors.Is(err, protoregistry.NotFound) {
		return s.extensions.FindExtensionByName(field)
	}
	return t, err
}

// FindExtensionByNumber implements protoregistry.ExtensionTypeResolver.
func (Types) FindExtensionByNumber(message protoreflect.FullName, field protoreflect.FieldNumber) (protoreflect.ExtensionType, error) {
	t, err := protoregistry.GlobalTypes.FindExtensionByNumber(message, field)
	if s := newest.Load(); s != nil && errors.Is(err, protoregistry.NotFound) {
		return s.extensions.FindExtensionByNumber(message, field)
	}
	return t, err
}

// newest is the operator's set, nil without one.
var newest atomic.Pointer[Set]

// Use makes the types of an operator's set known in the whole program, and no more those of the set before, which it
// returns. Both may be nil.
func Use(s *Set) (before *Set) { return newest.Swap(s) }

// Newest returns the set in use, nil without one.
func Newest() *Set { return newest.Load() }

// findMessage returns the type of a name that no Go package defines.
func findMessage(name protoreflect.FullName) (protoreflect.MessageType, error) {
	if s := newest.Load(); s != nil {
		if t := s.messages[name]; t != nil {
			return t, nil
		}
	}
	if t := embedded().messages[name]; t != nil {
		return t, nil
	}
	return nil, protoregistry.NotFound
}

// nameIn returns the name of the message in a type URL.
func nameIn(url string) protoreflect.FullName {
	for i := len(url) - 1; i >= 0; i-- {
		if url[i] == '/' {
			return protoreflect.FullName(url[i+1:])
		}
	}
	return protoreflect.FullName(url)
}

// RangeFiles calls f for each file that defines types, until f returns false. The same file can occur several times,
// in different versions.
func RangeFiles(f func(protoreflect.FileDescriptor) bool) {
	goes := true
	each := func(file protoreflect.FileDescriptor) bool {
		goes = goes && f(file)
		return goes
	}
	protoregistry.GlobalFiles.RangeFiles(each)
	for _, s := range []*Set{newest.Load(), embedded()} {
		if s != nil && goes {
			s.files.RangeFiles(each)
		}
	}
}

// Any returns a message as an Any. ok is false if it is a message of another type. The Any is a copy if the message is
// dynamic, as all messages in a dynamic message are.
func Any(m protoreflect.Message) (a *anypb.Any, ok bool) {
	if a, ok = m.Interface().(*anypb.Any); ok {
		return a, true
	}
	if m.Descriptor().FullName() != "google.protobuf.Any" {
		return nil, false
	}
	fields := m.Descriptor().Fields()
	return &anypb.Any{TypeUrl: m.Get(fields.ByNumber(1)).String(), Value: m.Get(fields.ByNumber(2)).Bytes()}, true
}

// Cached is a value that was computed from the types that are known, such as a cache. It becomes empty when they
// change. It is safe for concurrent use, if the value is.
type Cached[T any] struct {
	entry atomic.Pointer[cached[T]]
}

type cached[T any] struct {
	set   *Set
	value T
}

// Get returns the value. A caller that also looks up types calls it before that: then nothing of older types gets into
// a newer value.
func (c *Cached[T]) Get() *T {
	set := newest.Load()
	e := c.entry.Load()
	for e == nil || e.set != set {
		fresh := &cached[T]{set: set}
		if c.entry.CompareAndSwap(e, fresh) {
			return &fresh.value
		}
		e = c.entry.Load()
	}
	return &e.value
}

// PerMessage has a value for each message type that was asked for. The number of types that are known bounds its size. It
// is safe for concurrent use.
type PerMessage[T any] struct {
	mu    sync.Mutex
	known Cached[map[protoreflect.MessageDescriptor]*T]
}

// Get returns the value of a message type. If it is not known yet, add computes it and adds it, and those of the
// messages in such a message, to known.
func (p *PerMessage[T]) Get(message protoreflect.MessageDescriptor, add func(message protoreflect.MessageDescriptor, known map[protoreflect.MessageDescriptor]*T) *T) *T {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known.Get()
	if *known == nil {
		*known = map[protoreflect.MessageDescriptor]*T{}
	}
	return add(message, *known)
}

// MessageOf returns the message type of a field, or of a map's values; nil if there is none.
func MessageOf(field protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if field.IsMap() {
		return field.MapValue().Message()
	}
	return field.Message()
}
