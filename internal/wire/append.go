package wire

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// AppendString appends a string field.
func AppendString(b []byte, num protowire.Number, s string) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendString(b, s)
}

// AppendBytes appends a bytes field, or a field with an encoded message.
func AppendBytes(b []byte, num protowire.Number, value []byte) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendBytes(b, value)
}

// AppendHeader appends the tag and the length of a field, whose value is to follow. length is in bytes.
func AppendHeader(b []byte, num protowire.Number, length int) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(length))
}

// SizeString is the length of a string field with a number below 16, in bytes.
func SizeString(s string) int { return SizeBytes(len(s)) }

// SizeBytes is the length of a field with a value of length bytes and a number below 16.
func SizeBytes(length int) int { return 1 + protowire.SizeBytes(length) }

// AppendDuration appends a google.protobuf.Duration field. d must not be negative.
func AppendDuration(b []byte, num protowire.Number, d time.Duration) []byte {
	b = AppendHeader(b, num, SizeDuration(d))
	b = protowire.AppendTag(b, DurationSeconds, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(d/time.Second))
	if rest := d % time.Second; rest > 0 {
		b = protowire.AppendTag(b, DurationNanos, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(rest))
	}
	return b
}

// SizeDuration is the length of a google.protobuf.Duration without its header.
func SizeDuration(d time.Duration) int {
	n := protowire.SizeTag(DurationSeconds) + protowire.SizeVarint(uint64(d/time.Second))
	if rest := d % time.Second; rest > 0 {
		n += protowire.SizeTag(DurationNanos) + protowire.SizeVarint(uint64(rest))
	}
	return n
}

// AppendResourceName appends a ResourceName field with a name and, unless constraints is empty,
// encoded DynamicParameterConstraints.
func AppendResourceName(b []byte, num protowire.Number, name, constraints string) []byte {
	size := SizeString(name)
	if constraints != "" {
		size += SizeString(constraints)
	}
	b = AppendHeader(b, num, size)
	b = AppendString(b, NameName, name)
	if constraints != "" {
		b = AppendString(b, NameConstraints, constraints)
	}
	return b
}
