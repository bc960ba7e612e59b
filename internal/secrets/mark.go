package secrets

// This file defines which fields are secret.

import (
	udpaannotations "github.com/cncf/xds/go/udpa/annotations"
	xdsannotations "github.com/cncf/xds/go/xds/annotations/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// unmarked are credentials that Envoy's API does not mark.
var unmarked = map[protoreflect.FullName]bool{}

func init() {
	for _, version := range []string{"envoy.config.core.v3", "envoy.api.v2.core"} {
		for _, field := range []string{"access_token", "google_refresh_token", "ServiceAccountJWTAccessCredentials.json_key", "GoogleIAMCredentials.authorization_token"} {
			unmarked[protoreflect.FullName(version+".GrpcService.GoogleGrpc.CallCredentials."+field)] = true
		}
	}
}

// sensitive reports whether a field's definition marks it as secret: private keys, passwords, session ticket keys,
// generic secrets.
func sensitive(field protoreflect.FieldDescriptor) bool {
	if isMarked(field) || unmarked[field.FullName()] {
		return true
	}
	// An operator's descriptor set may have lost the marks of Envoy's own messages.
	known, err := protoregistry.GlobalFiles.FindDescriptorByName(field.FullName())
	if err != nil || known == field {
		return false
	}
	linked, ok := known.(protoreflect.FieldDescriptor)
	return ok && isMarked(linked)
}

func isMarked(field protoreflect.FieldDescriptor) bool {
	options := field.Options()
	for _, mark := range []protoreflect.ExtensionType{udpaannotations.E_Sensitive, xdsannotations.E_Sensitive} {
		if proto.HasExtension(options, mark) && proto.GetExtension(options, mark).(bool) {
			return true
		}
	}
	return false
}

// isSecret reports whether all data in a message is secret.
func isSecret(message protoreflect.FullName) bool {
	return message == "envoy.extensions.transport_sockets.tls.v3.Secret" || message == "envoy.api.v2.auth.Secret"
}

// isDataSource reports whether a message contains data, or the location of data. inlineData are the fields that
// contain data.
func isDataSource(message protoreflect.FullName) bool {
	return message == "envoy.config.core.v3.DataSource" || message == "envoy.api.v2.core.DataSource"
}

var inlineData = map[protoreflect.Name]bool{"inline_bytes": true, "inline_string": true}

// isTypedStruct reports whether a message is a Struct that stands for another message.
func isTypedStruct(message protoreflect.FullName) bool {
	return message == "xds.type.v3.TypedStruct" || message == "udpa.type.v1.TypedStruct"
}

const (
	anyName    = "google.protobuf.Any"
	structName = "google.protobuf.Struct"
)
