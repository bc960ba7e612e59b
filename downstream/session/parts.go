package session

import (
	"slices"

	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
)

// Parts are resources of a response in the form in which they go to all clients, or, for resources with a TTL, to all
// clients that support TTLs: as a whole or as heartbeats.
type Parts struct {
	Resources []*cache.Resource
	// Forms are as [cache.Resource.Common] returns them: one for each resource, or none if all are 0.
	Forms []cache.Form
}

// Add adds a resource in its common form, and returns its size in bytes.
func (p *Parts) Add(r *cache.Resource, form cache.Form, delta bool) int {
	if form != 0 && p.Forms == nil {
		p.Forms = make([]cache.Form, len(p.Resources), cap(p.Resources))
	}
	p.Resources = append(p.Resources, r)
	if p.Forms != nil {
		p.Forms = append(p.Forms, form)
	}
	switch {
	case form == 0:
		return r.EncodedSize(delta)
	case form&cache.Heartbeat != 0:
		return r.HeartbeatSize(delta)
	}
	return r.Size(r.Name(), form) // slightly more than the actual size
}

// AppendTo appends the resources to a message. What it has to allocate is in few pieces.
func (p *Parts) AppendTo(msg mem.BufferSlice, delta bool) mem.BufferSlice {
	msg = slices.Grow(msg, len(p.Resources)+1)
	if p.Forms == nil {
		for _, r := range p.Resources {
			msg = r.AppendShared(msg, delta)
		}
		return msg
	}
	beats := p.beats(delta)
	for i, r := range p.Resources {
		switch form := p.Forms[i]; {
		case form == 0:
			msg = r.AppendShared(msg, delta)
		case form&cache.Heartbeat != 0: // beats has it
		case delta:
			msg = r.AppendDelta(msg, r.Name(), form)
		default:
			msg = r.AppendSotW(msg, r.Name(), form)
		}
	}
	if len(beats) > 0 {
		msg = append(msg, mem.SliceBuffer(beats))
	}
	return msg
}

// beats encodes the heartbeats.
func (p *Parts) beats(delta bool) []byte {
	size := 0
	for i, r := range p.Resources {
		if p.Forms[i]&cache.Heartbeat != 0 {
			size += r.HeartbeatSize(delta)
		}
	}
	b := make([]byte, 0, size)
	for i, r := range p.Resources {
		if p.Forms[i]&cache.Heartbeat != 0 {
			b = r.AppendHeartbeat(b, delta)
		}
	}
	return b
}
