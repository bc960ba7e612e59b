package secrets

// This file makes Anys printable whose message is unknown or cannot be decoded.
//
// protojson fails for a whole resource that contains one such Any at any depth. So the content of each is wrapped in
// a message that protojson knows, and the type lookup returns that message for every unknown type URL. The output is
// {"@type": "...", "value": "<base64>"} or, if the content may have secrets, {"@type": "...", "hidden": "<why>"}.

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/descriptors"
)

// brokenPrefix is prepended to the type URL of a known message that cannot be decoded, so that the lookup does not
// find it.
const brokenPrefix = "undecodable/"

// opaqueType is message Opaque { bytes value = 1; string hidden = 2; }. It is
// not registered.
var opaqueType = func() protoreflect.MessageType {
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name:    proto.String("opaque.proto"),
		Package: proto.String("xds_relay.secrets"),
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

// opaque returns the encoding of an Opaque with a value, or with its size.
func (k masker) opaque(value []byte) []byte {
	switch {
	case !k.show:
		return protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), hiddenText(len(value)))
	case len(value) == 0:
		return nil
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), value)
}

// hide makes an Any printable whose message type is known but whose content cannot be decoded.
func (k masker) hide(content *anypb.Any) {
	content.TypeUrl, content.Value = brokenPrefix+content.GetTypeUrl(), k.opaque(content.GetValue())
}

// Hidden returns an Any to print instead of one that has no JSON form, such as one with a duration that is out of
// range. With show it contains the content in base64.
func Hidden(content *anypb.Any, show bool) *anypb.Any {
	if content == nil {
		return nil
	}
	c := proto.CloneOf(content)
	masker{show: show}.hide(c)
	return c
}

// Types resolves the types of a message that is printed: a type URL resolves to its message if this binary has it,
// and otherwise to Opaque.
type Types struct{ descriptors.Types }

// FindMessageByURL implements protoregistry.MessageTypeResolver. It never fails.
func (t Types) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	if !strings.HasPrefix(url, brokenPrefix) {
		if known, err := t.Types.FindMessageByURL(url); err == nil {
			return known, nil
		}
	}
	return opaqueType, nil
}
