package downstream

import (
	"slices"

	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
)

// plainParts are resources of a response that go as they go to all clients, or, of those
// with a time to live, to all that know it: as a whole or as heartbeats.
type plainParts struct {
	resources []*cache.Resource
	// forms are as [cache.Resource.Common] returns them, one for each, or none if all are 0.
	forms []cache.Form
}

// add adds a resource in its common form, and returns how many bytes that is.
func (p *plainParts) add(r *cache.Resource, form cache.Form, delta bool) int {
	if form != 0 && p.forms == nil {
		p.forms = make([]cache.Form, len(p.resources), cap(p.resources))
	}
	p.resources = append(p.resources, r)
	if p.forms != nil {
		p.forms = append(p.forms, form)
	}
	switch {
	case form == 0:
		return len(r.Plain(delta))
	case form&cache.Heartbeat != 0:
		return r.BeatSize(delta)
	}
	return r.Size(r.Name(), form) // a little more than it is
}

// appendTo appends them to a message. What is made for it is in few pieces.
func (p *plainParts) appendTo(msg mem.BufferSlice, delta bool) mem.BufferSlice {
	msg = slices.Grow(msg, len(p.resources)+1)
	if p.forms == nil {
		for _, r := range p.resources {
			msg = append(msg, mem.SliceBuffer(r.Plain(delta)))
		}
		return msg
	}
	beats := p.beats(delta)
	for i, r := range p.resources {
		switch form := p.forms[i]; {
		case form == 0:
			msg = append(msg, mem.SliceBuffer(r.Plain(delta)))
		case form&cache.Heartbeat != 0: // in beats
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

// beats are the heartbeats among them.
func (p *plainParts) beats(delta bool) []byte {
	size := 0
	for i, r := range p.resources {
		if p.forms[i]&cache.Heartbeat != 0 {
			size += r.BeatSize(delta)
		}
	}
	b := make([]byte, 0, size)
	for i, r := range p.resources {
		if p.forms[i]&cache.Heartbeat != 0 {
			b = r.AppendBeat(b, delta)
		}
	}
	return b
}
