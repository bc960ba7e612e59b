package wire

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Check returns why a value is no message of a type, nil if it is one. A value of a type that
// the binary does not know has to be any message.
func Check(typeURL string, value []byte) error {
	t, err := protoregistry.GlobalTypes.FindMessageByURL(typeURL)
	if err == nil {
		err = proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true}.Unmarshal(value, t.New().Interface())
	} else {
		_, err = InnerName(value)
	}
	return err
}

// ErrorText returns the text of an error of protobuf without the name of that package, whose
// space is not always one.
func ErrorText(err error) string {
	return strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
}
