package render

// What to print for an Any whose message is not known or does not decode.
//
// protojson gives up on a whole resource for one such Any, however deep. So the
// content of each is put into a message that it does know, and the type lookup
// answers with that message for every type URL that this binary does not have.
// On paper: {"@type": "...", "value": "<base64>"}, or where the content may have
// secrets, {"@type": "...", "hidden": "<why>"}.

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

// brokenPrefix goes before the type URL of a message that is known but does not
// decode, which must not be looked up as itself.
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
		panic(err) // the description above is wrong
	}
	return dynamicpb.NewMessageType(file.Messages().Get(0))
}()

// opaque is the encoding of an Opaque with a value.
func opaque(value []byte) []byte {
	if len(value) == 0 {
		return nil
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), value)
}

// hidden is the encoding of an Opaque that only says how much it hides.
func hidden(value []byte) []byte {
	text := fmt.Sprintf("%d bytes that may have secrets in them", len(value))
	return protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), text)
}

// broken makes an Any printable whose message is known but does not decode.
// Nobody can tell where in it the secrets are, so it is shown only if they are.
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

// lenientTypes finds every message: those of this binary as themselves, all
// others as Opaque.
type lenientTypes struct{}

// FindMessageByName is protoregistry's.
func (lenientTypes) FindMessageByName(name protoreflect.FullName) (protoreflect.MessageType, error) {
	return protoregistry.GlobalTypes.FindMessageByName(name)
}

// FindMessageByURL never fails.
func (lenientTypes) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	if !strings.HasPrefix(url, brokenPrefix) {
		if known, err := protoregistry.GlobalTypes.FindMessageByURL(url); err == nil {
			return known, nil
		}
	}
	return opaqueType, nil
}

// FindExtensionByName is protoregistry's.
func (lenientTypes) FindExtensionByName(field protoreflect.FullName) (protoreflect.ExtensionType, error) {
	return protoregistry.GlobalTypes.FindExtensionByName(field)
}

// FindExtensionByNumber is protoregistry's.
func (lenientTypes) FindExtensionByNumber(message protoreflect.FullName, field protoreflect.FieldNumber) (protoreflect.ExtensionType, error) {
	return protoregistry.GlobalTypes.FindExtensionByNumber(message, field)
}
