package main

import (
	"fmt"
	"strings"

	"github.com/xds-relay/xds-relay/xdstype"
)

// Shapes: the ways in the relay from what clients ask for to what an origin has. The
// clients of each get the same content as those of its plain counterpart, with which the
// shape is compared.

type shape string

const (
	// What clients ask for, the origin has: by old-style names, or a glob.
	shapeNone shape = ""
	// The same by xdstp names.
	shapeURN shape = "urn"
	// A glob that is a view of the globs of two authorities, each of which has half.
	shapeView shape = "view"
	// The same, with the members renamed.
	shapeRenamed shape = "renamed"
	// Names that redirect to names of another authority.
	shapeRedirect shape = "redirect"
	// Names with an alternative, whose primary's control plane cannot be reached.
	shapeAlt shape = "alt"
	// Old-style names that are aliases.
	shapeAlias shape = "alias"
	// Names, or a glob, of another authority, which has a server of its own.
	shapeNeighbour shape = "neighbour"
)

// plain is a spec with the same content and no shape.
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
	viewAuthority  = "fleet" // in no configuration but the view's
	goneAuthority  = "gone"  // cannot be reached
)

const endpointPath = "envoy.config.endpoint.v3.ClusterLoadAssignment"

func member(authority string, i int) string {
	return fmt.Sprintf("xdstp://%s/%s/all/r%06d", authority, endpointPath, i)
}

func collection(authority string) string {
	return "xdstp://" + authority + "/" + endpointPath + "/all/*"
}

// name is that by which clients get the i-th resource.
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

// originName is that which the i-th resource has at the origin.
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

// half is the authority of a view's member.
func (s *Spec) half(i int) string {
	if i%2 == 1 {
		return otherAuthority
	}
	return mainAuthority
}

// asked is the name by which clients ask for the i-th resource.
func (s *Spec) asked(i int) string {
	switch s.Shape {
	case shapeAlt:
		return s.name(i) + "#alt=" + s.originName(i)
	case shapeAlias:
		return s.alias(i)
	}
	return s.name(i)
}

// alias is the i-th resource's other name, if it has one.
func (s *Spec) alias(i int) string {
	if s.Shape == shapeAlias {
		return fmt.Sprintf("alias-%06d", i)
	}
	return ""
}

// neighbours is a name of the other authority, of the type that is served.
func (s *Spec) neighbours(id string) string {
	return "xdstp://" + otherAuthority + "/" + s.typeURL()[strings.LastIndexByte(s.typeURL(), '/')+1:] + "/all/" + id
}

// collection is the glob that clients ask for.
func (s *Spec) collection() string {
	if s.Shape == shapeNeighbour {
		return s.neighbours("*")
	}
	if s.Shape == shapeView || s.Shape == shapeRenamed {
		return collection(viewAuthority)
	}
	return collection(mainAuthority)
}

// supply is what the origin has, by the names by which it is asked.
type supply struct {
	spec *Spec
	// index has resources by their number, and after these the redirects to them.
	index map[string]int
	globs map[string][]int // the wildcard among them
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

// name is that by which the origin is asked for the i-th.
func (s *supply) name(i int) string {
	if i >= s.spec.Resources {
		return s.spec.name(i - s.spec.Resources)
	}
	if alias := s.spec.alias(i); alias != "" {
		return alias
	}
	return s.spec.originName(i)
}

// has says whether the i-th resource is in a glob.
func (s *supply) has(glob string, i int) bool {
	return glob == "*" || strings.HasPrefix(s.spec.originName(i), strings.TrimSuffix(glob, "*"))
}

// encode is the i-th as a field of a response.
func (s *supply) encode(i, v int, delta bool) []byte {
	if to := i - s.spec.Resources; to >= 0 {
		// The message ResourceLocator, by its fields: authority, resource_type, id.
		l := appendString(nil, 3, otherAuthority)
		l = appendString(l, 4, endpointPath)
		l = appendString(l, 2, strings.TrimPrefix(s.spec.originName(to), "xdstp://"+otherAuthority+"/"+endpointPath+"/"))
		return resourceField(s.name(i), "", 1, 0, anyOf(xdstype.Locator, l))
	}
	return s.spec.encodeNamed(s.spec.originName(i), i, v, delta)
}

// authorities is the part of a relay's configuration that a spec needs, with its origin.
func (s *Spec) authorities(origin string) (string, error) {
	one := func(name, address string) string {
		return fmt.Sprintf("  - {name: %s, servers: [{address: %q}]}\n", name, address)
	}
	text := "authorities:\n" + one(mainAuthority, origin)
	if s.Second != "" {
		text = fmt.Sprintf("authorities:\n  - name: %s\n    servers: [{address: %q}, {address: %q}]\n", mainAuthority, origin, s.Second) + failoverConfig
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
		nobody, err := freeAddress()
		if err != nil {
			return "", err
		}
		text += one(goneAuthority, nobody)
	}
	return text, nil
}
