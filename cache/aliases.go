package cache

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Aliases. A resource has one name, its own; a client may have asked for it by others.
// xDS: "Resource names" of "Incremental xDS".

// AliasOf returns the own name of the entry's resource, if the entry's name is an alias
// of it; empty otherwise. It is a part of the resource's bytes.
func (e *Entry) AliasOf() string {
	if r := e.state.Load().Resource; r != nil && r.alias {
		return r.Name()
	}
	return ""
}

// AppendAliased is AppendDelta for a client that asks for the resource by aliases, which
// go in the place of those that the origin said. name is the resource's own.
func (r *Resource) AppendAliased(msg mem.BufferSlice, name string, f Form, aliases []string) mem.BufferSlice {
	head := r.appendHead(nil, name, f)
	for _, alias := range aliases {
		head = appendString(head, resourceAliases, alias)
	}
	var parts [][]byte
	if !r.beats(f) {
		head = append(head, withoutAliases(r.extra())...)
		parts = [][]byte{r.sotw()}
	}
	return appendParts(msg, append(appendHeader(nil, len(head)+sizeParts(parts)), head...), parts)
}

// withoutAliases returns the fields of a Resource but its aliases.
func withoutAliases(extra []byte) []byte {
	var out []byte
	copied := 0
	for at := 0; at < len(extra); {
		num, _, n := protowire.ConsumeField(extra[at:])
		if n < 0 {
			break // they were read before
		}
		if num == resourceAliases {
			out = append(out, extra[copied:at]...)
			copied = at + n
		}
		at += n
	}
	if copied == 0 {
		return extra
	}
	return append(out, extra[copied:]...)
}
