package wire

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Check returns an error if a value is not a message of a type. If the binary does not know the
// type, the value only has to be some message.
func Check(typeURL string, value []byte) error {
	t, err := protoregistry.GlobalTypes.FindMessageByURL(typeURL)
	if err == nil {
		err = proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true}.Unmarshal(value, t.New().Interface())
	} else {
		_, err = InnerName(value)
	}
	return err
}

// ErrorText returns the text of an error of protobuf without its "proto:" prefix, which sometimes
// ends in a non-breaking space.
func ErrorText(err error) string {
	return strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
}
