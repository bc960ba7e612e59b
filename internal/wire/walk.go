package wire

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrUTF8 is the error for a string field that is not UTF-8.
var ErrUTF8 = errors.New("not UTF-8")

var errFieldNumber = errors.New("invalid field number")

// Fields walks over the fields of an encoded message:
//
//	f := wire.Walk(message)
//	for f.Next() {
//		switch f.Num { … }
//	}
//	return f.Err
type Fields struct {
	rest []byte
	Err  error // why Next returned false, nil at the end of the message

	Num    protowire.Number
	Type   protowire.Type
	Raw    []byte // tag and value
	Bytes  []byte // the value, of BytesType; a part of the message
	Varint uint64 // the value, of VarintType
}

// Walk begins before the first field of a message.
func Walk(message []byte) Fields { return Fields{rest: message} }

// Next moves to the next field.
func (f *Fields) Next() bool {
	if len(f.rest) == 0 || f.Err != nil {
		return false
	}
	num, typ, n := protowire.ConsumeTag(f.rest)
	if n >= 0 && num > protowire.MaxValidNumber { // protowire accepts it, but no message has it
		f.Err = errFieldNumber
		return false
	}
	f.Num, f.Type, f.Bytes, f.Varint = num, typ, nil, 0
	m := n
	if n >= 0 {
		switch value := f.rest[n:]; typ {
		case protowire.BytesType:
			f.Bytes, m = protowire.ConsumeBytes(value)
		case protowire.VarintType:
			f.Varint, m = protowire.ConsumeVarint(value)
		default:
			m = protowire.ConsumeFieldValue(num, typ, value)
		}
	}
	if m < 0 {
		f.Err = protowire.ParseError(m)
		return false
	}
	f.Raw, f.rest = f.rest[:n+m], f.rest[n+m:]
	return true
}

// Ahead counts the remaining fields with a number, up to the first field that is not a string, bytes
// or a message, or cannot be read.
func (f *Fields) Ahead(num protowire.Number) (n int) {
	for rest := f.rest; ; {
		got, _, size := NextBytes(rest)
		if size == 0 {
			return n
		}
		if got == num {
			n++
		}
		rest = rest[size:]
	}
}

// OnlyBytes sets Num to 0 unless the field is a string, bytes or a message: protobuf treats a field
// of the wrong wire type as unknown.
func (f *Fields) OnlyBytes() {
	if f.Type != protowire.BytesType {
		f.Num = 0
	}
}

// Text returns a copy of the value of a string field.
func (f *Fields) Text() (string, error) {
	if !utf8.Valid(f.Bytes) {
		return "", ErrUTF8
	}
	return string(f.Bytes), nil
}

// Merge appends a part of a message to the parts before it: a message field that occurs
// several times is the concatenation of its values. It does not write to the parts.
func Merge(parts, part []byte) []byte {
	if parts == nil {
		return part
	}
	return append(parts[:len(parts):len(parts)], part...)
}

// Last returns the last value of a string, bytes or message field, nil if there is none. The value
// is a part of the message. An error means that the bytes are not a protobuf message; the value is
// then the last one before the error.
func Last(message []byte, num protowire.Number) (value []byte, err error) {
	f := Walk(message)
	for f.Next() {
		if f.Num == num && f.Type == protowire.BytesType {
			value = f.Bytes
		}
	}
	return value, f.Err
}

// InnerName returns the name in field 1 of an encoded resource, empty if there is none. An error
// means that the bytes are not a protobuf message.
func InnerName(value []byte) (string, error) {
	name, err := Last(value, InnerNameField)
	if err != nil {
		return "", err
	}
	return string(name), nil
}

// Without returns a message without the fields with a number, or the message itself if there are
// none. Bytes that cannot be read are kept.
func Without(message []byte, num protowire.Number) []byte {
	var out []byte
	copied, offset := 0, 0
	for f := Walk(message); f.Next(); {
		if f.Num == num {
			out = append(out, message[copied:offset]...)
			copied = offset + len(f.Raw)
		}
		offset += len(f.Raw)
	}
	if copied == 0 {
		return message
	}
	return append(out, message[copied:]...)
}
