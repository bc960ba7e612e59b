package session

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Which resources of a response can be stored, and the NACK for the others.

// resourceUpdate is the update of one name by a response.
type resourceUpdate struct {
	key string
	// constraints distinguish a variant from others of its name, see Name.
	constraints string
	// resource is the new resource, if it can be stored. With heartbeat it only renews the TTL of
	// the held one.
	resource  *Resource
	heartbeat bool
	// variant is stored in place of resource.
	variant *cache.Resource
	aliases []string // names by which the resource may also have been requested
	err     *cache.Error
	gone    bool // with or without err: the resource does not exist
	bad     bool // with err: the resource that was sent cannot be stored
}

// size returns the bytes of the resource.
func (v *resourceUpdate) size() int {
	if v.resource == nil {
		return 0
	}
	return len(v.resource.Raw)
}

// accepted are the updates of a whole response, as far as they can be stored, and the reasons why others
// cannot.
type accepted struct {
	list []resourceUpdate // one per name, in the response's order
	// globs are the updates of glob collections themselves.
	globs []resourceUpdate
	// nack has a line for each resource that cannot be stored, with the reason. Empty: an ACK.
	nack string
	// hidden says that a bad resource has no known name, so that a
	// name's absence means nothing.
	hidden bool
	// size is that of the response, and largest that of its largest resource, in bytes: see habits.go.
	size, largest int
	// wildcard is the error in resource_errors for the wildcard itself.
	wildcard *cache.Error
	// complete are the sets whose first answer is complete, as a relay says.
	complete []string
}

// completes reports whether a relay says that its first answer for a set is complete.
func (v *accepted) completes(set string) bool { return slices.Contains(v.complete, set) }

// onlyBeats reports whether there are only heartbeats.
func (v *accepted) onlyBeats() bool {
	return len(v.list) > 0 && !slices.ContainsFunc(v.list, func(o resourceUpdate) bool { return !o.heartbeat })
}

// errNameless says that a resource has no key.
var errNameless = errors.New("has no name")

// accept returns the updates of a response of a requested type. wildcard says whether a
// wildcard was requested, as for which authority the control plane speaks, and check what becomes of
// resources that clients would reject.
func accept(r *Response, wildcard bool, as speaker, check taster.Mode) accepted {
	v := accepted{
		list: slices.Grow(r.updates[:0], len(r.Resources)+len(r.Removed)+len(r.Errors)),
		size: r.Size, complete: r.Complete,
	}
	index := make(map[Name]int, len(r.Resources)+len(r.Removed)+len(r.Errors)) // in v.list, by key
	var nack reasons
	nameless := r.nameless(wildcard)
	for i := range r.Resources {
		yield(i, yieldEvery)
		res := &r.Resources[i]
		v.largest = max(v.largest, len(res.Raw))
		if res.unnamed && (nameless || unheard(r.TypeURL)) {
			res.Name, res.key = "", ""
		}
		if nameless && res.Err == errNameUTF8 { //nolint:errorlint // no other that wraps the same
			res.Err = nil
		}
		if of, foreign := as.foreign(res.Name); foreign && (as.oldStyle || len(res.aliases) > 0) {
			nack.add(i, res.Name, as.errForeign(of))
			continue
		}
		err := fault(r.TypeURL, res, nameless, check)
		if err == nil {
			err = as.foreignAlias(res.aliases)
		}
		key := ""
		if res.Name != "" && res.Name != cache.Wildcard {
			key = res.canonical()
		}
		id := Name{key, res.constraints}
		if first, twice := index[id]; twice {
			// xDS: "Duplicate Resource Names". If both are equal, there is no doubt
			// about the resource. Otherwise it is unknown which one is right.
			if same := v.list[first].resource; same != nil && bytes.Equal(same.Raw, res.Raw) {
				nack.add(i, res.Name, errors.New("is there twice (the same, so the first was taken)"))
				continue
			}
			err = errors.New("is there twice, and not the same (neither was taken)")
			nack.add(i, res.Name, err)
			v.list[first] = badResource(id, err)
			continue
		}
		if err != nil {
			nack.add(i, res.Name, err)
		}
		if key == "" && (!nameless || !res.unnamed) {
			v.hidden = true
			continue
		}
		if !isGlob(key) {
			index[id] = len(v.list)
		}
		switch {
		case isGlob(key) && err != nil:
			v.globs = append(v.globs, badResource(id, err))
		case err != nil:
			v.list = append(v.list, badResource(id, err))
		case isGlob(key): // without a body it is a removal, like one in removed_resources
			v.globs = append(v.globs, resourceUpdate{key: key, gone: true})
		case res.Present:
			v.list = append(v.list, resourceUpdate{key: key, constraints: res.constraints, resource: res, aliases: res.aliases})
		case res.TTL > 0:
			v.list = append(v.list, resourceUpdate{key: key, constraints: res.constraints, resource: res, heartbeat: true})
		default:
			v.list = append(v.list, resourceUpdate{key: key, constraints: res.constraints, gone: true, aliases: res.aliases})
		}
	}
	for _, removed := range r.Removed {
		if of, foreign := as.foreign(removed.Name); foreign && as.oldStyle {
			nack.add(-1, removed.Name, as.errForeign(of))
			continue
		}
		id := Name{canonical(removed.Name), removed.constraints}
		if isGlob(id.Name) {
			v.globs = append(v.globs, resourceUpdate{key: id.Name, gone: true})
			continue
		}
		if first, twice := index[id]; !twice {
			index[id] = len(v.list)
			v.list = append(v.list, resourceUpdate{key: id.Name, constraints: id.constraints, gone: true})
		} else if v.list[first].resource != nil {
			err := errors.New("is there and removed in one response (neither was taken)")
			nack.add(-1, removed.Name, err)
			v.list[first] = badResource(id, err)
		}
	}
	for i := range r.Errors {
		e := &r.Errors[i]
		err := e.clip()
		// TP3: "Wildcard Resources". In the old form the name is empty.
		if e.Name.Name == cache.Wildcard || e.Name.Name == "" {
			v.wildcard = err
			continue
		}
		if _, foreign := as.foreign(e.Name.Name); foreign && as.oldStyle {
			continue
		}
		id := Name{canonical(e.Name.Name), e.Name.constraints}
		if isGlob(id.Name) {
			v.globs = append(v.globs, resourceUpdate{key: id.Name, err: err, gone: err.Code == codes.NotFound})
			continue
		}
		if first, twice := index[id]; !twice {
			index[id] = len(v.list)
			v.list = append(v.list, resourceUpdate{key: id.Name, constraints: id.constraints, err: err, gone: err.Code == codes.NotFound})
		} else if !v.list[first].bad {
			v.list[first].err = err
		}
	}
	v.nack = nack.String()
	r.updates = v.list
	return v
}

// nameless reports whether a response's resources have no name, and need none.
//
// Some known types are nameless (xdstype.NoName). An unknown type
// may be nameless too: then the whole answer to a wildcard is one resource without
// anything that can be a name. In any other case the name is missing, and the resource is bad.
func (r *Response) nameless(wildcard bool) bool {
	if xdstype.Of(r.TypeURL).Naming == xdstype.NoName {
		return true
	}
	if !wildcard || len(r.Resources) != 1 {
		return false
	}
	res := &r.Resources[0]
	return res.unnamed && res.Present && res.typeURL == r.TypeURL && unheard(r.TypeURL)
}

// unheard reports whether the relay knows nothing of a type, not even that its
// resources have their names in a Resource around them.
func unheard(typeURL string) bool {
	_, err := protoregistry.GlobalTypes.FindMessageByURL(typeURL)
	return err != nil && xdstype.Of(typeURL) == xdstype.Other && xdstype.HasInnerName(typeURL)
}

func badResource(id Name, reason error) resourceUpdate {
	return resourceUpdate{key: id.Name, constraints: id.constraints, bad: true, err: &cache.Error{
		Code:    codes.InvalidArgument,
		Message: "the control plane sent a bad resource: it " + reason.Error(),
		Invalid: true,
	}}
}

// fault returns why a resource cannot be stored, nil if it can.
func fault(typeURL string, r *Resource, nameless bool, check taster.Mode) error {
	switch {
	case r.Err != nil:
		return fmt.Errorf("cannot be read: %w", r.Err)
	case r.Name == "" && r.typeURL == xdstype.Locator:
		return errUnnamedRedirect
	case r.Name == "" && !nameless:
		return errNameless
	case r.Name == cache.Wildcard:
		return errors.New("has the wildcard's name")
	case (r.Present || r.TTL > 0) && isGlob(r.canonical()):
		// TP1: "Server redirects": nor is the collection itself redirectable.
		return errors.New("has the name of a glob collection, which is no resource's")
	}
	if _, err := parseConstraints(r.constraints); err != nil {
		return fmt.Errorf("has dynamic_parameter_constraints that cannot be read: %w", err)
	}
	switch {
	case !r.Present:
		return nil
	case r.typeURL == xdstype.Locator && typeURL != xdstype.Locator:
		var err error
		r.redirect, err = parseRedirect(typeURL, r.value)
		return err
	case r.typeURL != typeURL:
		return fmt.Errorf("is of type %q in a response of type %q", r.typeURL, typeURL)
	}
	if r.taste == untasted { // the stream has not checked it
		r.tasteAs(taster.Of(typeURL), check)
	}
	if check.Refuses(r.verdict) {
		return r.verdict
	}
	return nil
}

// maxMessage bounds the text of a NACK, in bytes.
const maxMessage = 4 << 10

// clip returns the error with a bounded message.
func (e *ResourceError) clip() *cache.Error {
	err := e.Err
	if err.Code == codes.OK {
		err.Code = codes.Unknown
	}
	err.Message = loglines.Clip(err.Message)
	return &err
}

// omittedPrefix begins the last line of a NACK that has no room for all lines.
const omittedPrefix = "and "

// reasons collects the lines of a NACK.
type reasons struct {
	b       strings.Builder
	omitted int
}

func (r *reasons) add(index int, name string, reason error) {
	if r.omitted > 0 {
		r.omitted++ // no room was left before
		return
	}
	where := "removed_resources"
	if index >= 0 {
		where = fmt.Sprintf("resources[%d]", index)
	}
	if name != "" {
		where = fmt.Sprintf("%s %q", where, loglines.Clip(name))
	}
	line := fmt.Sprintf("%s %s", where, loglines.Clip(reason.Error()))
	if r.b.Len() > 0 && r.b.Len()+len(line) > maxMessage {
		r.omitted++
		return
	}
	if r.b.Len() > 0 {
		r.b.WriteByte('\n')
	}
	r.b.WriteString(line)
}

func (r *reasons) String() string {
	if r.omitted > 0 {
		fmt.Fprintf(&r.b, "\n%s%d more", omittedPrefix, r.omitted)
	}
	return r.b.String()
}

// Reasons returns the lines of a NACK sorted, and without the indexes of the resources, because
// a control plane may shuffle its resources. If there was no room for all lines, it returns omittedPrefix
// alone, because the lines that had room vary.
func Reasons(nack string) string {
	lines := strings.Split(nack, "\n")
	if strings.HasPrefix(lines[len(lines)-1], omittedPrefix) {
		return omittedPrefix
	}
	for i, line := range lines {
		if in, rest, ok := strings.Cut(line, " "); ok && strings.HasPrefix(in, "resources[") {
			lines[i] = rest
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
