package main

import (
	"fmt"
	"strings"

	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Shapes: the ways in which the relay maps requested names to resources of an origin. Clients
// get the same content as with the plain counterpart, with which a shape is compared.

type shape string

const (
	// The origin has the requested resources: old-style names, or a glob.
	shapeNone shape = ""
	// The same with xdstp names.
	shapeURN shape = "urn"
	// A glob that is a view of the globs of two authorities, with half of the members each.
	shapeView shape = "view"
	// The same, with renamed members.
	shapeRenamed shape = "renamed"
	// Names that redirect to names of another authority.
	shapeRedirect shape = "redirect"
	// Names with an alternative; the control plane of the primary is unreachable.
	shapeAlt shape = "alt"
	// Old-style names that are aliases.
	shapeAlias shape = "alias"
	// Names, or a glob, of another authority with another server.
	shapeNeighbour shape = "neighbour"
)

// plain returns a spec with the same content and no shape.
func (s *Spec) plain() *Spec {
	p := *s
	switch s.Shape {
	case shapeRedirect, shapeAlt:
		p.Shape = shapeURN
	default:
		p.Shape = shapeNone
	}
	return &p
}

// Authorities of xdstp names. All but the last two are the same origin.
const (
	mainAuthority  = "bench"
	otherAuthority = "other"
	viewAuthority  = "fleet" // only in the configuration of the view
	goneAuthority  = "gone"  // cannot be reached
)

const endpointPath = "envoy.config.endpoint.v3.ClusterLoadAssignment"

func member(authority string, i int) string {
	return fmt.Sprintf("xdstp://%s/%s/all/r%06d", authority, endpointPath, i)
}

func collection(authority string) string {
	return "xdstp://" + authority + "/" + endpointPath + "/all/*"
}

// name returns the name of the i-th resource in responses to clients.
func (s *Spec) name(i int) string {
	switch {
	case s.Shape == shapeNeighbour:
		return s.neighbours(fmt.Sprintf("r%06d", i))
	case s.Shape == shapeView:
		return s.originName(i)
	case s.Shape == shapeRenamed:
		return member(viewAuthority, i)
	case s.Shape == shapeAlt:
		return member(goneAuthority, i)
	case s.Glob, s.Shape == shapeURN, s.Shape == shapeRedirect:
		return member(mainAuthority, i)
	}
	return fmt.Sprintf("resource-%06d", i)
}

// originName returns the name of the i-th resource at the origin.
func (s *Spec) originName(i int) string {
	switch s.Shape {
	case shapeView, shapeRenamed:
		return member(s.half(i), i)
	case shapeRedirect:
		return member(otherAuthority, i)
	case shapeAlt:
		return member(mainAuthority, i)
	}
	return s.name(i)
}

// half returns the authority of the i-th member of a view.
func (s *Spec) half(i int) string {
	if i%2 == 1 {
		return otherAuthority
	}
	return mainAuthority
}

// requested returns the name by which clients request the i-th resource.
func (s *Spec) requested(i int) string {
	switch s.Shape {
	case shapeAlt:
		return s.name(i) + "#alt=" + s.originName(i)
	case shapeAlias:
		return s.alias(i)
	}
	return s.name(i)
}

// alias returns the alias of the i-th resource, or "".
func (s *Spec) alias(i int) string {
	if s.Shape == shapeAlias {
		return fmt.Sprintf("alias-%06d", i)
	}
	return ""
}

// neighbours returns a name of the other authority, of the served type.
func (s *Spec) neighbours(id string) string {
	return "xdstp://" + otherAuthority + "/" + s.typeURL()[strings.LastIndexByte(s.typeURL(), '/')+1:] + "/all/" + id
}

// collection returns the glob that clients request.
func (s *Spec) collection() string {
	if s.Shape == shapeNeighbour {
		return s.neighbours("*")
	}
	if s.Shape == shapeView || s.Shape == shapeRenamed {
		return collection(viewAuthority)
	}
	return collection(mainAuthority)
}

// supply has the resources of the origin, by the names that the origin uses.
type supply struct {
	spec *Spec
	// index has the numbers of resources, followed by those of redirects to them.
	index map[string]int
	globs map[string][]int // including the wildcard
}

func newSupply(spec *Spec) *supply {
	s := &supply{spec: spec, index: map[string]int{}, globs: map[string][]int{}}
	for i := range spec.Resources {
		s.index[s.name(i)] = i
		if spec.Shape == shapeRedirect {
			s.index[s.name(spec.Resources+i)] = spec.Resources + i
		}
		glob := collection(mainAuthority)
		if spec.Shape == shapeView || spec.Shape == shapeRenamed {
			glob = collection(spec.half(i))
		}
		s.globs["*"] = append(s.globs["*"], i)
		s.globs[glob] = append(s.globs[glob], i)
	}
	return s
}

// name returns the name of the i-th at the origin.
func (s *supply) name(i int) string {
	if i >= s.spec.Resources {
		return s.spec.name(i - s.spec.Resources)
	}
	if alias := s.spec.alias(i); alias != "" {
		return alias
	}
	return s.spec.originName(i)
}

// has returns whether the i-th resource is in a glob.
func (s *supply) has(glob string, i int) bool {
	return glob == "*" || strings.HasPrefix(s.spec.originName(i), strings.TrimSuffix(glob, "*"))
}

// encode returns the i-th as a field of a response.
func (s *supply) encode(i, v int, delta bool) []byte {
	if to := i - s.spec.Resources; to >= 0 {
		// The message ResourceLocator, by its fields: authority, resource_type, id.
		l := wire.AppendString(nil, 3, otherAuthority)
		l = wire.AppendString(l, 4, endpointPath)
		l = wire.AppendString(l, 2, strings.TrimPrefix(s.spec.originName(to), "xdstp://"+otherAuthority+"/"+endpointPath+"/"))
		return resourceField(s.name(i), "", 1, 0, anyOf(xdstype.Locator, l))
	}
	return s.spec.encodeNamed(s.spec.originName(i), i, v, delta)
}

// authorities returns the part of a relay's configuration for a spec and its origin.
func (s *Spec) authorities(origin string) (string, error) {
	one := func(name, address string) string {
		return fmt.Sprintf("  - {name: %s, servers: [{address: %q}]}\n", name, address)
	}
	text := "authorities:\n" + one(mainAuthority, origin)
	if s.Second != "" {
		text = fmt.Sprintf("authorities:\n  - name: %s\n    servers: [{address: %q}, {address: %q}]\n", mainAuthority, origin, s.Second) + failoverConfig
	}
	if s.Rollout != "" {
		text = fmt.Sprintf("authorities:\n  - {name: %s, servers: [{address: %q}], rollout: {%s}}\n", mainAuthority, origin, s.Rollout)
	}
	if s.Neighbour != "" {
		text += one(otherAuthority, s.Neighbour)
	}
	switch s.Shape {
	case shapeView, shapeRenamed:
		text += one(otherAuthority, origin)
		text += fmt.Sprintf("views:\n  - {match: {glob: %q}, collections: [%q, %q], rename: %v}\n",
			collection(viewAuthority), collection(mainAuthority), collection(otherAuthority), s.Shape == shapeRenamed)
	case shapeRedirect:
		text += one(otherAuthority, origin)
	case shapeAlt:
		nobody, err := freeAddresses(1)
		if err != nil {
			return "", err
		}
		text += one(goneAuthority, nobody[0])
	}
	return text, nil
}
