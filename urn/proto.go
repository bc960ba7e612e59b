package urn

// The protobuf forms of names. Their strings are decoded, and the id is one string in which
// every '/' separates segments. So they cannot express a '/' within a segment (%2F).
// TP1: "Proto3 expression".

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev3 "github.com/cncf/xds/go/xds/core/v3"
)

// Proto returns the URN as a ResourceName. It returns an error if a segment of the id contains a
// '/', because the message would name another resource.
func (u URN) Proto() (*corev3.ResourceName, error) {
	id, context, err := protoFields(u.key.Name)
	if err != nil {
		return nil, err
	}
	return &corev3.ResourceName{
		Authority:    u.key.Authority,
		ResourceType: u.key.Type,
		Id:           id,
		Context:      context,
	}, nil
}

// URLFromProto returns the URL of a ResourceLocator, such as a redirect or the locator of a
// CollectionEntry. A scheme other than XDSTP, and a directive that is neither alt nor entry,
// are errors; all other errors are an [*Error].
func URLFromProto(m *corev3.ResourceLocator) (URL, error) {
	if m.GetScheme() != corev3.ResourceLocator_XDSTP {
		return URL{}, fmt.Errorf("xds.core.v3.ResourceLocator.scheme: %v is not supported (want XDSTP)", m.GetScheme())
	}
	name := []byte(spell(m.GetAuthority(), m.GetResourceType(), m.GetId(), m.GetExactContext()))
	sep := byte('#')
	for i, d := range m.GetDirectives() {
		name = append(name, sep)
		sep = ','
		switch d.GetDirective().(type) {
		case *corev3.ResourceLocator_Directive_Alt:
			url, err := URLFromProto(d.GetAlt())
			if err != nil {
				return URL{}, err
			}
			name = escape(append(name, altDirective+"="...), url.name, inDirective)
		case *corev3.ResourceLocator_Directive_Entry:
			name = escape(append(name, entryDirective+"="...), d.GetEntry(), inEntry)
		default:
			return URL{}, fmt.Errorf("xds.core.v3.ResourceLocator.directives[%d]: neither alt nor entry", i)
		}
	}
	return ParseURL(string(name))
}

// Proto returns the URL as a ResourceLocator. It returns an error if a segment of an id contains a
// '/', because the message would locate another resource.
func (u URL) Proto() (*corev3.ResourceLocator, error) {
	id, context, err := protoFields(u.key.Name)
	if err != nil {
		return nil, err
	}
	m := &corev3.ResourceLocator{
		Scheme:       corev3.ResourceLocator_XDSTP,
		Authority:    u.key.Authority,
		ResourceType: u.key.Type,
		Id:           id,
	}
	if context != nil {
		m.ContextParamSpecifier = &corev3.ResourceLocator_ExactContext{ExactContext: context}
	}
	if alt, ok := u.Alt(); ok {
		locator, err := alt.Proto()
		if err != nil {
			return nil, err
		}
		m.Directives = append(m.Directives, &corev3.ResourceLocator_Directive{
			Directive: &corev3.ResourceLocator_Directive_Alt{Alt: locator}})
	}
	if entry, ok := u.Entry(); ok {
		m.Directives = append(m.Directives, &corev3.ResourceLocator_Directive{
			Directive: &corev3.ResourceLocator_Directive_Entry{Entry: entry}})
	}
	return m, nil
}

// protoFields returns the id and the parameters of a canonical name in the form of the
// messages.
func protoFields(name string) (id string, context *corev3.ContextParams, err error) {
	p, _ := split(name)
	if i := strings.Index(p.id.text, "%2F"); i >= 0 {
		return "", nil, &Error{Name: name, Offset: p.id.at + i, Part: "%2F",
			Problem: "protobuf has no form for a / within an id segment"}
	}
	if params := p.params(); params != nil {
		context = &corev3.ContextParams{Params: params}
	}
	return decoded(p.id.text), context, nil
}

// spell returns the string form of a message's name, which may be malformed.
func spell(authority, typ, id string, context *corev3.ContextParams) string {
	name := escape([]byte(prefix), authority, inAuthority)
	name = escape(append(name, '/'), typ, inSegment)
	for segment := range strings.SplitSeq(id, "/") {
		name = escape(append(name, '/'), segment, inSegment)
	}
	sep := byte('?')
	for _, key := range slices.Sorted(maps.Keys(context.GetParams())) {
		name = escape(append(name, sep), key, inParam)
		name = escape(append(name, '='), context.GetParams()[key], inParam)
		sep = '&'
	}
	return string(name)
}
