package render

// How to print an Any whose message is unknown or cannot be decoded.
//
// protojson fails for a whole resource if it has one such Any, however deep. So the content
// of each is wrapped in a message that protojson knows, and the type lookup returns that
// message for every unknown type URL. The output is {"@type": "...", "value": "<base64>"} or,
// if the content may have secrets, {"@type": "...", "hidden": "<why>"}.

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"
)

// brokenPrefix is put before the type URL of a known message that cannot be decoded, so that
// the lookup does not find it.
const brokenPrefix = "undecodable/"

// opaqueType is message Opaque { bytes value = 1; string hidden = 2; }. It is
// not registered.
var opaqueType = func() protoreflect.MessageType {
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name:    proto.String("opaque.proto"),
		Package: proto.String("xds_relay.render"),
		Syntax:  proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{
			Name: proto.String("Opaque"),
			Field: []*descriptorpb.FieldDescriptorProto{
				{
					Name:   proto.String("value"),
					Number: proto.Int32(1),
					Label:  descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
					Type:   descriptorpb.FieldDescriptorProto_TYPE_BYTES.Enum(),
				},
				{
					Name:   proto.String("hidden"),
					Number: proto.Int32(2),
					Label:  descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
					Type:   descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
				},
			},
		}},
	}, nil)
	if err != nil {
		panic(err) // the descriptor above is wrong
	}
	return dynamicpb.NewMessageType(file.Messages().Get(0))
}()

// opaque returns the encoding of an Opaque with a value.
func opaque(value []byte) []byte {
	if len(value) == 0 {
		return nil
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), value)
}

// hidden returns the encoding of an Opaque that says only how many bytes it hides.
func hidden(value []byte) []byte {
	text := fmt.Sprintf("%d bytes that may have secrets in them", len(value))
	return protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), text)
}

// broken makes an Any printable whose message is known but cannot be decoded. Its secrets
// cannot be found, so the content is shown only if secrets are.
func (c cleaner) broken(content *anypb.Any) {
	if content == nil {
		return
	}
	encode := hidden
	if c.showSecrets {
		encode = opaque
	}
	content.TypeUrl, content.Value = brokenPrefix+content.GetTypeUrl(), encode(content.GetValue())
}

// lenientTypes resolves every type URL: to the message if this binary has it, otherwise to
// Opaque.
type lenientTypes struct{}

// FindMessageByName implements protoregistry.MessageTypeResolver.
func (lenientTypes) FindMessageByName(name protoreflect.FullName) (protoreflect.MessageType, error) {
	return protoregistry.GlobalTypes.FindMessageByName(name)
}

// FindMessageByURL implements protoregistry.MessageTypeResolver. It never fails.
func (lenientTypes) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	if !strings.HasPrefix(url, brokenPrefix) {
		if known, err := protoregistry.GlobalTypes.FindMessageByURL(url); err == nil {
			return known, nil
		}
	}
	return opaqueType, nil
}

// FindExtensionByName implements protoregistry.ExtensionTypeResolver.
func (lenientTypes) FindExtensionByName(field protoreflect.FullName) (protoreflect.ExtensionType, error) {
	return protoregistry.GlobalTypes.FindExtensionByName(field)
}

// FindExtensionByNumber implements protoregistry.ExtensionTypeResolver.
func (lenientTypes) FindExtensionByNumber(message protoreflect.FullName, field protoreflect.FieldNumber) (protoreflect.ExtensionType, error) {
	return protoregistry.GlobalTypes.FindExtensionByNumber(message, field)
}
