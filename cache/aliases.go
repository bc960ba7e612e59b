package cache

import (
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/wire"
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
		head = wire.AppendString(head, wire.ResourceAliases, alias)
	}
	var parts [][]byte
	if !r.isHeartbeat(f) {
		head = append(head, wire.Without(r.extra(), wire.ResourceAliases)...)
		parts = [][]byte{r.sotw()}
	}
	return appendParts(msg, append(appendHeader(nil, len(head)+sizeParts(parts)), head...), parts)
}
