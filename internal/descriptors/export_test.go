package descriptors

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Embedded is the embedded set.
var Embedded = compressed

// Messages returns the types of a set.
func (s *Set) Messages() map[protoreflect.FullName]protoreflect.MessageType { return s.messages }

// Files returns the files of a set.
func (s *Set) Files() *protoregistry.Files { return s.files }
