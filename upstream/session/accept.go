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
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/taster"
	"github.com/xds-relay/xds-relay/xdstype"
)

// What of a response can be stored, and what is said of the rest.

// resourceUpdate is what a response has of one name.
type resourceUpdate struct {
	key string
	// constraints distinguish a variant from others of its name, see name.
	constraints string
	// resource is set if there is one that can be stored, or if heartbeat says
	// that the one that is held lives on.
	resource  *Resource
	heartbeat bool
	// variant is what is to be stored in the place of resource.
	variant *cache.Resource
	aliases []string // by which the resource may have been asked for, too
	err     *cache.Error
	gone    bool // with or without err: it does not exist
	bad     bool // with err: what was sent for it cannot be stored
}

// accepted is what a whole response has, as far as it can be stored, and why the rest cannot.
type accepted struct {
	list []resourceUpdate // one per name, in the response's order
	// globs is what is said of glob collections as such.
	globs []resourceUpdate
	// nack says what cannot be stored and why, a line each. Empty: an ACK.
	nack string
	// hidden says that the name of something bad cannot be known, so that a
	// name's absence means nothing.
	hidden bool
	// size is that of the response, and largest that of its largest resource: see habits.
	size, largest int
	// wildcard is what resource_errors say of the wildcard itself.
	wildcard *cache.Error
}

// onlyBeats says that there is nothing but heartbeats.
func (v *accepted) onlyBeats() bool {
	return len(v.list) > 0 && !slices.ContainsFunc(v.list, func(o resourceUpdate) bool { return !o.heartbeat })
}

// errNameless says that a resource cannot be kept under anything.
var errNameless = errors.New("has no name")

// accept says what of a response of a requested type can be stored. wildcard says whether a
// wildcard was requested, as whom the control plane was asked, and check what becomes of
// resources that clients would reject.
func accept(r *Response, wildcard bool, as speaker, check taster.Mode) accepted {
	v := accepted{
		list: slices.Grow(r.updates[:0], len(r.Resources)+len(r.Removed)+len(r.Errors)),
		size: r.Size,
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
			// xDS: "Duplicate Resource Names". Said twice in the same words, there
			// is no doubt what is meant; otherwise neither can be believed.
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
		case isGlob(key): // and bodiless: what removed_resources says now
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
		// TP3: "Wildcard Resources". The empty name is the old form's.
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

// nameless says that a response's resources have no name, and need none.
//
// Of the types that are known to be so that is certain. A type that is not known here
// may be so too: then the whole answer to a wildcard is one resource without anything
// that can be its name. Of any other the name is missing, and the resource is bad.
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

// unheard says that nothing is known here of a type, not even that it is one whose
// resources have their names outside.
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

// fault says why a resource cannot be stored.
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
	if r.taste == untasted { // by the stream
		r.tasteAs(taster.Of(typeURL), check)
	}
	if check.Refuses(r.verdict) {
		return r.verdict
	}
	return nil
}

// maxMessage bounds the text of a NACK, in bytes.
const maxMessage = 4 << 10

// clip returns the error, with its message bounded.
func (e *ResourceError) clip() *cache.Error {
	err := e.Err
	if err.Code == codes.OK {
		err.Code = codes.Unknown
	}
	err.Message = loglines.Clip(err.Message)
	return &err
}

// omittedPrefix begins the last line of a NACK that has no room for all.
const omittedPrefix = "and "

// reasons collects the lines of a NACK.
type reasons struct {
	b       strings.Builder
	omitted int
}

func (r *reasons) add(index int, name string, reason error) {
	if r.omitted > 0 {
		r.omitted++ // there is no room any more
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

// Reasons returns the lines of a NACK without the places of the resources in their response, and in one order:
// a control plane may shuffle what it sends. If there was no room for all lines, those that are there are
// not always the same, and do not count.
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
