package descriptors

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Bounds of an operator's file, before and after decompression. Envoy's whole API with its comments takes about 10 MiB.
const (
	mostBytes = 64 << 20
	mostFiles = 20_000
)

// Set has the types of descriptor sets, except those that a Go package of the program defines. It is immutable.
type Set struct {
	messages   map[protoreflect.FullName]protoreflect.MessageType
	files      *protoregistry.Files
	extensions *dynamicpb.Types
	hash       string
}

// Fingerprint returns a text that is equal for sets that were read from equal files.
func (s *Set) Fingerprint() string {
	if s == nil {
		return ""
	}
	return s.hash
}

// Load reads an operator's files: FileDescriptorSets, which may be compressed with gzip. It returns nil if there are
// none. The error names the file.
func Load(paths ...string) (*Set, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	b := newBuilder()
	sum := sha256.New()
	for _, path := range paths {
		if err := b.load(path, sum); err != nil {
			return nil, err
		}
	}
	for _, s := range b.order {
		if !isNew(s.proto) {
			continue
		}
		if err := b.build(s); err != nil {
			return nil, err
		}
	}
	return b.set(hex.EncodeToString(sum.Sum(nil))), nil
}

// source is a file of a descriptor set.
type source struct {
	set      string // the path of the descriptor set, for errors
	proto    *descriptorpb.FileDescriptorProto
	building bool
}

func (s *source) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %s %w", s.set, s.proto.GetName(), fmt.Errorf(format, args...))
}

// builder makes a Set. As a resolver, it finds what the files built so far define, and then what Go packages define.
type builder struct {
	sources map[string]*source // by the path in the set
	order   []*source
	files   *protoregistry.Files
}

func newBuilder() *builder {
	return &builder{sources: map[string]*source{}, files: &protoregistry.Files{}}
}

// load reads a file, and adds its content to sum.
func (b *builder) load(path string, sum hash.Hash) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	text, err := readAll(file)
	if err == nil && bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
		var unzip *gzip.Reader
		if unzip, err = gzip.NewReader(bytes.NewReader(text)); err == nil {
			text, err = readAll(unzip)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	_, _ = sum.Write(binarySize(len(text)))
	_, _ = sum.Write(text)
	return b.add(path, text)
}

func binarySize(n int) []byte { return fmt.Appendf(nil, "%d ", n) }

func readAll(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, mostBytes+1))
	if err == nil && len(text) > mostBytes {
		err = fmt.Errorf("larger than %d MiB", mostBytes>>20)
	}
	return text, err
}

// add adds the files of an encoded FileDescriptorSet.
func (b *builder) add(set string, text []byte) error {
	var parsed descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(text, &parsed); err != nil || len(parsed.File) == 0 {
		return fmt.Errorf("%s: no FileDescriptorSet (want the output of protoc --include_imports --descriptor_set_out, or of buf build)", set)
	}
	if len(parsed.File)+len(b.order) > mostFiles {
		return fmt.Errorf("%s: more than %d files", set, mostFiles)
	}
	for _, f := range parsed.File {
		f.SourceCodeInfo = nil
		f.ProtoReflect().SetUnknown(nil) // buf adds fields
		s := &source{set: set, proto: f}
		if earlier := b.sources[f.GetName()]; earlier != nil {
			// The sets' versions of Envoy's files may differ: the first set's counts.
			if !isLinked(f.GetName()) && !proto.Equal(earlier.proto, f) {
				return s.errorf("differs from the file of this name in %s", earlier.set)
			}
			continue
		}
		b.sources[f.GetName()] = s
		b.order = append(b.order, s)
	}
	return nil
}

// isLinked reports whether a Go package defines a file of that name.
func isLinked(path string) bool {
	_, err := protoregistry.GlobalFiles.FindFileByPath(path)
	return err == nil
}

// isNew reports whether a file defines a message that no Go package defines.
func isNew(file *descriptorpb.FileDescriptorProto) bool {
	if isWellKnown(file.GetName()) {
		return false
	}
	for _, m := range file.GetMessageType() {
		if isUnknown(protoreflect.FullName(file.GetPackage()).Append(protoreflect.Name(m.GetName()))) {
			return true
		}
	}
	return false
}

func isUnknown(message protoreflect.FullName) bool {
	_, err := protoregistry.GlobalTypes.FindMessageByName(message)
	return errors.Is(err, protoregistry.NotFound)
}

// isWellKnown reports whether a file is one of protobuf's own. These are always taken from the Go packages, because
// other code relies on their fields.
func isWellKnown(path string) bool { return strings.HasPrefix(path, "google/protobuf/") }

// build builds a file and its imports. The imports come from the set, too: its messages may refer to what the program's
// version of a file does not have.
func (b *builder) build(s *source) error {
	path := s.proto.GetName()
	if _, err := b.files.FindFileByPath(path); err == nil {
		return nil
	}
	if s.building {
		return s.errorf("imports itself")
	}
	s.building = true
	for _, name := range s.proto.GetDependency() {
		if in := b.sources[name]; in != nil && !isWellKnown(name) {
			if err := b.build(in); err != nil {
				return err
			}
		} else if _, err := b.FindFileByPath(name); err != nil {
			return s.errorf("imports %s, which is missing in the set (want protoc --include_imports)", name)
		}
	}
	for _, m := range s.proto.GetMessageType() {
		if s.proto.GetPackage() == "google.protobuf" {
			return s.errorf("defines google.protobuf.%s again", m.GetName())
		}
	}
	file, err := protodesc.NewFile(s.proto, b)
	if err == nil {
		err = b.files.RegisterFile(file)
	}
	if err != nil {
		return s.errorf("is invalid: %s", strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0"))
	}
	return nil
}

// FindFileByPath implements protodesc.Resolver.
func (b *builder) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if file, err := b.files.FindFileByPath(path); err == nil {
		return file, nil
	}
	return protoregistry.GlobalFiles.FindFileByPath(path)
}

// FindDescriptorByName implements protodesc.Resolver.
func (b *builder) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if d, err := b.files.FindDescriptorByName(name); err == nil {
		return d, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}

// set returns the Set of the files that were built.
func (b *builder) set(hash string) *Set {
	s := &Set{
		messages: map[protoreflect.FullName]protoreflect.MessageType{},
		files:    b.files, extensions: dynamicpb.NewTypes(b.files), hash: hash,
	}
	b.files.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		s.addMessages(file.Messages())
		return true
	})
	return s
}

func (s *Set) addMessages(messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		m := messages.Get(i)
		if m.IsMapEntry() {
			continue
		}
		if isUnknown(m.FullName()) {
			s.messages[m.FullName()] = dynamicpb.NewMessageType(m)
		}
		s.addMessages(m.Messages())
	}
}
